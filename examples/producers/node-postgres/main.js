// Places orders with node-postgres. Every statement of a transaction goes through the same client.
import pg from "pg";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });

async function inTransaction(work) {
  const client = await pool.connect();
  let failure;
  try {
    await client.query("BEGIN");
    const result = await work(client);
    await client.query("COMMIT");
    return result;
  } catch (error) {
    // A client that cannot roll back must not return to the pool with its transaction open.
    await client.query("ROLLBACK").catch((rollbackError) => (failure = rollbackError));
    throw error;
  } finally {
    client.release(failure);
  }
}

/** Inserts the order and its event in the transaction of this client. */
async function placeOrder(client, customer, total) {
  const { rows } = await client.query("INSERT INTO orders (customer, total) VALUES ($1, $2) RETURNING id", [customer, total]);
  const orderId = rows[0].id;
  await client.query(
    `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
     VALUES ('order', $1, 'order.placed', $2)`,
    [orderId, { orderId: Number(orderId), customer, total }],
  );
  return orderId;
}

class OutOfStock extends Error {}

let rolledBack;
try {
  await inTransaction(async (client) => {
    rolledBack = await placeOrder(client, "Ada", "10.00");
    throw new OutOfStock();
  });
} catch (error) {
  if (!(error instanceof OutOfStock)) throw error;
  console.log(`rolled back order ${rolledBack}`);
}

const placed = await inTransaction((client) => placeOrder(client, "Grace", "99.50"));
console.log(`placed order ${placed}`);

await pool.end();
