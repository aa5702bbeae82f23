"""Stands in for a payment service, for charge_cards: it does what is asked once for each idempotency key.

The first answers to requests with the key $LOSE are lost. Prints "done PATH KEY" or "repeated PATH KEY" for each request.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer

ANSWERS: dict[tuple[str, str], dict[str, str]] = {}


class PaymentService(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = (self.path.strip("/"), self.headers["Idempotency-Key"])
        repeated = request in ANSWERS
        answer = ANSWERS.setdefault(request, {"id": f"{request[0]}-{len(ANSWERS) + 1}"})
        print("repeated" if repeated else "done", *request, flush=True)
        if not repeated and request[1] == os.environ["LOSE"]:
            return  # closes the connection
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


HTTPServer(("127.0.0.1", int(os.environ["PORT"])), PaymentService).serve_forever()
