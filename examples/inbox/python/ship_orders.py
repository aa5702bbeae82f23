"""Ships each order once, however often Kafka delivers its event."""

import os
import signal
import sys
from collections.abc import Callable

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

SHIP = """
INSERT INTO shipments (order_id, customer)
  SELECT (event->>'orderId')::bigint, event->>'customer' FROM (SELECT %s::jsonb AS event) e
"""


def ship(database: psycopg.Connection, message: Message) -> None:
    event_id = dict(message.headers())["id"].decode()
    with database.transaction():
        # If another process is processing the same event, this waits until that one commits or rolls back.
        claim = "SELECT outcome FROM outbox_router.inbox_claim('shipping', %s)"
        (outcome,) = database.execute(claim, [event_id]).fetchone()
        if outcome == "fresh":
            database.execute(SHIP, [message.value().decode()])
        elif outcome == "busy":
            # Only if the same consumer name is used with leases or the queue: the event is not processed yet.
            raise RuntimeError(f"event {event_id} is processed elsewhere")
    print("shipped" if outcome == "fresh" else "skipped", event_id, flush=True)


def consume(group: str, handle: Callable[[psycopg.Connection, Message], None]) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
            "group.id": os.environ.get("KAFKA_GROUP_ID", group),
            "auto.offset.reset": "earliest",
            # The offset may only be committed after the transaction.
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 5000,
        }
    )
    consumer.subscribe(["outbox.event.order"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as database:
            while True:
                message = consumer.poll(1.0)
                if message is None or (message.error() and message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
                    continue
                if message.error():
                    raise KafkaException(message.error())
                handle(database, message)
                consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()


if __name__ == "__main__":
    consume("shipping", ship)
