// Places orders with pgx. Every statement goes through the transaction tx, none through the pool.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type orderPlaced struct {
	OrderID  int64  `json:"orderId"`
	Customer string `json:"customer"`
	Total    string `json:"total"`
}

// placeOrder inserts the order and its event in the transaction tx.
func placeOrder(ctx context.Context, tx pgx.Tx, customer, total string) (int64, error) {
	event := orderPlaced{Customer: customer, Total: total}
	err := tx.QueryRow(ctx, `INSERT INTO orders (customer, total) VALUES ($1, $2::text::numeric) RETURNING id`, customer, total).
		Scan(&event.OrderID)
	if err != nil {
		return 0, fmt.Errorf("insert order: %w", err)
	}
	_, err = tx.Exec(ctx,
		`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
		 VALUES ('order', $1::bigint::text, 'order.placed', $2)`,
		event.OrderID, event)
	if err != nil {
		return 0, fmt.Errorf("insert event: %w", err)
	}
	return event.OrderID, nil
}

var errOutOfStock = errors.New("out of stock")

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()

	var orderID int64
	// BeginFunc commits if the function returns nil, and rolls back otherwise.
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if orderID, err = placeOrder(ctx, tx, "Ada", "10.00"); err != nil {
			return err
		}
		return errOutOfStock
	})
	if !errors.Is(err, errOutOfStock) {
		return fmt.Errorf("this order should have been rolled back: %w", err)
	}
	fmt.Println("rolled back order", orderID)

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		orderID, err = placeOrder(ctx, tx, "Grace", "99.50")
		return err
	})
	if err != nil {
		return err
	}
	fmt.Println("placed order", orderID)
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
