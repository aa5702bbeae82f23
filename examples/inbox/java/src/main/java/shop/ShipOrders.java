package shop;

import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Ships each order once, however often Kafka delivers its event. */
public final class ShipOrders {
    public static void main(String[] arguments) throws SQLException {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", System.getenv("KAFKA_BOOTSTRAP_SERVERS"),
            "group.id", System.getenv().getOrDefault("KAFKA_GROUP_ID", "shipping"),
            "auto.offset.reset", "earliest",
            "isolation.level", "read_committed",
            "enable.auto.commit", false, // the offset may only be committed after the transaction
            "metadata.max.age.ms", 5000);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
                var database = Database.connect()) {
            consumer.subscribe(List.of("outbox.event.order"));
            while (true) {
                for (var event : consumer.poll(Duration.ofSeconds(1))) ship(database, event);
                consumer.commitSync();
            }
        }
    }

    private static void ship(Connection database, ConsumerRecord<String, String> event) throws SQLException {
        String eventId = new String(event.headers().lastHeader("id").value(), StandardCharsets.UTF_8);
        // If another process is processing the same event, this waits until that one commits or rolls back.
        String claim = "SELECT outcome FROM outbox_router.inbox_claim('shipping', ?)";
        String outcome = Database.ask(database, claim, eventId).getString("outcome");
        // Only if the same consumer name is used with leases or the queue: the event is not processed yet.
        if (outcome.equals("busy")) throw new IllegalStateException("event " + eventId + " is processed elsewhere");
        if (outcome.equals("fresh")) {
            Database.ask(database, """
                INSERT INTO shipments (order_id, customer)
                  SELECT (event->>'orderId')::bigint, event->>'customer' FROM (SELECT ?::jsonb AS event) e RETURNING id""", event.value());
        }
        database.commit();
        System.out.println((outcome.equals("fresh") ? "shipped " : "skipped ") + eventId);
    }
}
