"""Charges the card for each order and sends a receipt. A handler that starts again after a crash repeats no finished step."""

import json
import os
import time
import urllib.request

import psycopg
from confluent_kafka import Message
from psycopg.types.json import Jsonb

from ship_orders import consume

LEASE = os.environ.get("LEASE", "1 min")
START = "SELECT outcome, token, result FROM outbox_router.inbox_start(%s, %s, %s::interval)"
FINISH = "SELECT outbox_router.inbox_finish(%s, %s, %s, %s)"


def start(database: psycopg.Connection, name: str, event_id: str) -> tuple[str | None, dict]:
    """A token if there is work to do, else the result of the work that is done."""
    while True:
        outcome, token, result = database.execute(START, [name, event_id, LEASE]).fetchone()
        if outcome != "busy":
            return token, result
        time.sleep(1)  # another process has the lease, or had it and died


def finish(database: psycopg.Connection, name: str, event_id: str, token: str, result: dict) -> None:
    if not database.execute(FINISH, [name, event_id, token, Jsonb(result)]).fetchone()[0]:
        raise RuntimeError(f"the lease for {event_id} ended, and another process has taken over")


def step(database: psycopg.Connection, path: str, event_id: str, content: dict) -> dict:
    token, result = start(database, f"billing:{path}", event_id)
    if token:
        # If the answer is lost, or this process dies, the request is repeated with the same key.
        headers = {"Content-Type": "application/json", "Idempotency-Key": event_id}
        url, body = f"{os.environ['PAYMENTS_URL']}/{path}", json.dumps(content).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20) as answer:
            result = json.load(answer)
        finish(database, f"billing:{path}", event_id, token, result)
    return result


def charge(database: psycopg.Connection, message: Message) -> None:
    event_id, order = dict(message.headers())["id"].decode(), json.loads(message.value())
    token, _ = start(database, "billing", event_id)
    if token:
        charged = step(database, "charges", event_id, {"customer": order["customer"], "order": order["orderId"]})
        database.execute("SELECT outbox_router.inbox_extend('billing', %s, %s, %s::interval)", [event_id, token, LEASE])
        step(database, "receipts", event_id, {"charge": charged["id"]})
        with database.transaction():
            finish(database, "billing", event_id, token, charged)
            database.execute("INSERT INTO charges (order_id, charge) VALUES (%s, %s)", [order["orderId"], charged["id"]])
    print("charged" if token else "skipped", event_id, flush=True)


if __name__ == "__main__":
    consume("billing", charge)
