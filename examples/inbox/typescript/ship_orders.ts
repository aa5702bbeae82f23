// Ships each order once, however often Kafka delivers its event.
import { Kafka, type KafkaMessage } from "kafkajs";
import pg from "pg";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });

async function ship(message: KafkaMessage): Promise<void> {
  const id = message.headers?.["id"];
  if (!id) throw new Error(`the record at offset ${message.offset} has no id`);
  const eventId = String(id);
  const client = await pool.connect();
  let failure: Error | undefined;
  try {
    await client.query("BEGIN");
    // If another process is processing the same event, this waits until that one commits or rolls back.
    const claim = await client.query("SELECT outcome FROM outbox_router.inbox_claim('shipping', $1)", [eventId]);
    const outcome: string = claim.rows[0].outcome;
    if (outcome === "fresh") {
      await client.query(
        `INSERT INTO shipments (order_id, customer)
           SELECT (event->>'orderId')::bigint, event->>'customer' FROM (SELECT $1::jsonb AS event) e`,
        [String(message.value)],
      );
    } else if (outcome === "busy") {
      // Only if the same consumer name is used with leases or the queue: the event is not processed yet.
      throw new Error(`event ${eventId} is processed elsewhere`);
    }
    await client.query("COMMIT");
    console.log(outcome === "fresh" ? "shipped" : "skipped", eventId);
  } catch (error) {
    failure = error as Error;
    throw error; // the offset is not committed
  } finally {
    client.release(failure); // after a failure the connection is closed, which rolls back
  }
}

const kafka = new Kafka({ brokers: process.env.KAFKA_BOOTSTRAP_SERVERS!.split(",") });
const consumer = kafka.consumer({ groupId: process.env.KAFKA_GROUP_ID ?? "shipping" });
await consumer.connect();
await consumer.subscribe({ topic: "outbox.event.order", fromBeginning: true });
consumer.on(consumer.events.CRASH, ({ payload }) => {
  console.error(payload.error);
  process.exit(1);
});
await consumer.run({
  autoCommit: false,
  eachMessage: async ({ topic, partition, message }) => {
    await ship(message);
    // The offset may only be committed after the transaction.
    await consumer.commitOffsets([{ topic, partition, offset: String(BigInt(message.offset) + 1n) }]);
  },
});
process.on("SIGTERM", () => void consumer.disconnect().then(() => process.exit()));
