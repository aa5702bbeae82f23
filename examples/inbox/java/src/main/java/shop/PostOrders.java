package shop;

import com.sun.net.httpserver.HttpExchange;
import java.io.IOException;
import java.sql.SQLException;
import java.util.List;
import java.util.Map;

/** POST /orders with an Idempotency-Key: order, event and response are stored in one transaction, once for each key. */
public final class PostOrders {
    private static final String BEGIN = "SELECT * FROM outbox_router.idempotency_begin(?, ?, sha256('POST /orders '::bytea || ?))";
    private static final String FINISH = "SELECT outbox_router.idempotency_finish(?, ?, ?::uuid, 201, NULL, ?)";
    private static final String PLACE_ORDER = """
        WITH placed AS (INSERT INTO orders (customer, total)
          SELECT o->>'customer', (o->>'total')::numeric FROM (SELECT convert_from(?, 'UTF8')::jsonb) AS request (o) RETURNING *
        ), event AS (INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
          SELECT 'order', id, 'order.placed', jsonb_build_object('orderId', id, 'customer', customer) FROM placed
        ) SELECT convert_to(jsonb_build_object('orderId', id)::text, 'UTF8') FROM placed""";

    private static final Map<String, String> PROBLEMS = Map.of("mismatch", "Idempotency key reused with different request body",
        "in_progress", "The first request with this key has not ended", "expired", "The key has expired; use a new one");

    public static void main(String[] arguments) throws IOException {
        Server.start(PostOrders::post);
    }

    private static void post(HttpExchange request) throws IOException {
        byte[] answer, body = request.getRequestBody().readAllBytes();
        // A proxy authenticates the caller and sets X-User. Nobody gets the response of another caller.
        String scope = request.getRequestHeaders().getFirst("X-User") + " POST /orders";
        List<String> keys = request.getRequestHeaders().getOrDefault("Idempotency-Key", List.of());
        int status = 201;
        try (var database = Database.connect()) {
            var begun = Database.ask(database, BEGIN, scope, keys.size() == 1 ? keys.get(0) : "", body);
            String outcome = begun.getString("outcome");
            if (outcome.equals("new")) {
                answer = Database.ask(database, PLACE_ORDER, body).getBytes(1);
                Database.ask(database, FINISH, scope, keys.get(0), begun.getString("token"), answer);
                database.commit();
            } else if (outcome.equals("replay")) {
                request.getResponseHeaders().set("Idempotent-Replayed", "true");
                status = begun.getInt("status");
                answer = begun.getBytes("body");
            } else {
                status = outcome.equals("expired") ? 410 : 409;
                if (outcome.equals("in_progress")) request.getResponseHeaders().set("Retry-After", "1");
                answer = "{\"title\":\"%s\"}".formatted(PROBLEMS.get(outcome)).getBytes();
            }
        } catch (SQLException e) { // rolled back, so that a retry runs again
            status = e.getSQLState().matches("2[23].*") ? 400 : 503;
            answer = "{\"title\":\"%s\"}".formatted(status == 400 ? "The key or the order is not valid" : "Repeat the request").getBytes();
            if (status == 503) request.getResponseHeaders().set("Retry-After", "1");
        }
        Server.answer(request, status, status < 400 ? "application/json" : "application/problem+json", answer);
    }
}
