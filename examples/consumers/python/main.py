"""Prints the events of orders, each once: skips those whose header "id" it has seen.

The ids are in a table. The id and whatever the event causes are written in one transaction, and the offset is committed after it.
If the consumer stops in between, Kafka delivers the event again, and its id is there already.
"""

import json
import os
import signal
import sys
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

SEEN_IDS = """
CREATE TABLE IF NOT EXISTS processed_events (
  id uuid PRIMARY KEY,
  processed_at timestamptz NOT NULL DEFAULT now()
)
"""
# Two consumers that get the same event wait for each other here, and the second finds the id.
REMEMBER = "INSERT INTO processed_events (id) VALUES (%s) ON CONFLICT DO NOTHING"


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def handle(database: psycopg.Connection[Any], message: Message, headers: dict[str, str | None]) -> None:
    """The work of the consumer, in the transaction that stores the id. This one only prints."""
    event = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "key": text(message.key()),
        "headers": headers,
        "value": text(message.value()),
    }
    print(json.dumps(event), flush=True)


def process(database: psycopg.Connection[Any], message: Message) -> None:
    headers = {name: text(value) for name, value in message.headers() or []}
    with database.transaction():
        if database.execute(REMEMBER, [headers["id"]]).rowcount:
            handle(database, message, headers)
        else:
            print(f"skipped duplicate {headers['id']}", flush=True)


def main() -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
            "group.id": os.environ.get("KAFKA_GROUP_ID", "order-printer"),
            "auto.offset.reset": "earliest",
            # The offset may only be committed after the transaction.
            "enable.auto.commit": False,
            # How soon a topic that was missing is found.
            "topic.metadata.refresh.interval.ms": 5000,
        }
    )
    consumer.subscribe(["outbox.event.order"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as database:
            database.execute(SEEN_IDS)
            while True:
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if error := message.error():
                    # The router creates the topic before the first event.
                    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        continue
                    raise KafkaException(error)
                process(database, message)
                consumer.commit(message, asynchronous=False)
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
