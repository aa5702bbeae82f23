//! Places orders with sqlx. Every statement goes through the transaction, none through the pool.

use std::env;
use std::error::Error;

use serde_json::json;
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgConnection, query, query_scalar};

/// Inserts the order and its event in the transaction of this connection.
async fn place_order(connection: &mut PgConnection, customer: &str, total: &str) -> Result<i64, sqlx::Error> {
    let order_id: i64 =
        query_scalar("INSERT INTO orders (customer, total) VALUES ($1, $2::text::numeric) RETURNING id")
            .bind(customer)
            .bind(total)
            .fetch_one(&mut *connection)
            .await?;
    query(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
         VALUES ('order', $1, 'order.placed', $2)",
    )
    .bind(order_id.to_string())
    .bind(json!({ "orderId": order_id, "customer": customer, "total": total }))
    .execute(&mut *connection)
    .await?;
    Ok(order_id)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = PgPoolOptions::new().connect(&env::var("DATABASE_URL")?).await?;

    let mut transaction = pool.begin().await?;
    let order_id = place_order(&mut transaction, "Ada", "10.00").await?;
    // Out of stock. Dropping the transaction, as `?` does, would roll it back too.
    transaction.rollback().await?;
    println!("rolled back order {order_id}");

    let mut transaction = pool.begin().await?;
    let order_id = place_order(&mut transaction, "Grace", "99.50").await?;
    transaction.commit().await?;
    println!("placed order {order_id}");
    Ok(())
}
