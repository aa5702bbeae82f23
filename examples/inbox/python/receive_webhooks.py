"""Stores webhooks that are signed as in Standard Webhooks, and answers 200. Workers process them from the queue."""

import base64
import hashlib
import hmac
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from psycopg_pool import ConnectionPool

SECRET = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
POOL = ConnectionPool(os.environ["DATABASE_URL"], open=True)


def is_signed(event_id: str, timestamp: str, signatures: str, body: bytes) -> bool:
    if not timestamp.isascii() or not timestamp.isdigit() or abs(time.time() - int(timestamp)) > 300:
        return False
    # The id is signed too. Otherwise anybody could send the body again under another id.
    mac = hmac.new(SECRET, f"{event_id}.{timestamp}.".encode() + body, hashlib.sha256)
    expected = b"v1," + base64.b64encode(mac.digest())
    return any(hmac.compare_digest(expected, signature.encode()) for signature in signatures.split())


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        event_id, timestamp, signatures = (
            self.headers.get(f"Webhook-{name}", "") for name in ("Id", "Timestamp", "Signature")
        )
        if not is_signed(event_id, timestamp, signatures, body):
            return self.answer(401, {"status": "error", "detail": "the signature is wrong or too old"})
        try:
            with POOL.connection(timeout=3) as database:
                put = "SELECT outbox_router.inbox_put('payments', %s, %s)"
                (outcome,) = database.execute(put, [event_id, body]).fetchone()
        except Exception as error:
            self.log_error("%s", error)
            return self.answer(503, {"status": "error", "detail": "try again later"})
        # Never an error for a duplicate, or the sender repeats it until it gives up.
        self.answer(200, {"status": "ok"} | ({"already_processed": True} if outcome == "duplicate" else {}))

    def answer(self, status: int, content: dict[str, object]) -> None:
        body = json.dumps(content, separators=(",", ":")).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Receiver).serve_forever()
