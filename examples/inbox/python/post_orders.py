"""POST /orders with an Idempotency-Key: order, event and response are stored in one transaction, once for each key."""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from psycopg_pool import ConnectionPool

POOL = ConnectionPool(os.environ["DATABASE_URL"], open=True)
BEGIN = "SELECT outcome, token, status, headers, body FROM outbox_router.idempotency_begin(%s, %s, sha256(%s))"
FINISH = "SELECT outbox_router.idempotency_finish(%s, %s, %s, %s, %s, %s)"
PLACE_ORDER = """WITH placed AS (INSERT INTO orders (customer, total)
    SELECT o->>'customer', (o->>'total')::numeric FROM (SELECT %s::jsonb) AS request (o) RETURNING *
  ), event AS (INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
    SELECT 'order', id, 'order.placed', jsonb_build_object('orderId', id, 'customer', customer) FROM placed
  ) SELECT id FROM placed"""


def problem(status: int, title: str, headers: dict[str, str] = {}) -> tuple[int, dict[str, str], bytes]:
    return status, headers | {"Content-Type": "application/problem+json"}, json.dumps({"title": title}).encode()


def place_order(scope: str, key: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    with POOL.connection(timeout=3) as database:  # one transaction, committed at the end of the block
        outcome, token, status, headers, stored = database.execute(BEGIN, [scope, key, b"POST /orders " + body]).fetchone()
        if outcome == "replay":
            return status, headers | {"Idempotent-Replayed": "true"}, stored
        if outcome == "in_progress":
            return problem(409, "The first request with this key has not ended", {"Retry-After": "1"})
        if outcome == "mismatch":
            return problem(409, "Idempotency key reused with different request body")
        if outcome == "expired":
            return problem(410, "The idempotency key has expired; use a new one for a new request")
        (order_id,) = database.execute(PLACE_ORDER, [body.decode()]).fetchone()
        headers, answer = {"Content-Type": "application/json"}, json.dumps({"orderId": order_id}).encode()
        database.execute(FINISH, [scope, key, token, 201, json.dumps(headers), answer])
    return 201, headers, answer


class Orders(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        # A proxy authenticates the caller and sets X-User. Nobody gets the response of another caller.
        scope, keys = f"{self.headers['X-User']} POST /orders", self.headers.get_all("Idempotency-Key", [])
        try:
            status, headers, answer = place_order(scope, keys[0] if len(keys) == 1 else "", body)
        except (psycopg.DataError, psycopg.IntegrityError, UnicodeDecodeError) as error:
            status, headers, answer = problem(400, str(error).partition("\n")[0])
        except psycopg.Error:  # rolled back, so that a retry runs again
            status, headers, answer = problem(503, "Repeat the request", {"Retry-After": "1"})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Orders).serve_forever()
