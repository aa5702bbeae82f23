package shop;

import com.sun.net.httpserver.Headers;
import com.sun.net.httpserver.HttpExchange;
import java.io.IOException;
import java.security.*;
import java.sql.SQLException;
import java.util.Base64;
import java.util.stream.Stream;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Stores webhooks that are signed as in Standard Webhooks, and answers 200. Workers process them from the queue. */
public final class ReceiveWebhooks {
    public static void main(String[] arguments) throws IOException {
        Server.start(ReceiveWebhooks::receive);
    }

    private static void receive(HttpExchange request) throws IOException {
        byte[] body = request.getRequestBody().readAllBytes();
        int status = 200;
        String answer = "{\"status\":\"ok\"}";
        try {
            if (!isSigned(request.getRequestHeaders(), body)) {
                status = 401;
                answer = "{\"status\":\"error\",\"detail\":\"the signature is wrong or too old\"}";
            } else if (put(request.getRequestHeaders().getFirst("Webhook-Id"), body).equals("duplicate")) {
                // Never an error for a duplicate, or the sender repeats it until it gives up.
                answer = "{\"status\":\"ok\",\"already_processed\":true}";
            }
        } catch (SQLException | GeneralSecurityException e) {
            status = 503;
            answer = "{\"status\":\"error\",\"detail\":\"try again later\"}";
        }
        Server.answer(request, status, "application/json", answer.getBytes());
    }

    private static boolean isSigned(Headers headers, byte[] body) throws GeneralSecurityException {
        String timestamp = String.valueOf(headers.getFirst("Webhook-Timestamp"));
        if (!timestamp.matches("[0-9]{1,12}")) return false;
        if (Math.abs(System.currentTimeMillis() / 1000 - Long.parseLong(timestamp)) > 300) return false;
        var mac = Mac.getInstance("HmacSHA256");
        byte[] secret = Base64.getDecoder().decode(System.getenv("WEBHOOK_SECRET").replaceFirst("^whsec_", ""));
        mac.init(new SecretKeySpec(secret, "HmacSHA256"));
        mac.update((headers.getFirst("Webhook-Id") + "." + timestamp + ".").getBytes()); // otherwise anybody could change the id
        byte[] expected = ("v1," + Base64.getEncoder().encodeToString(mac.doFinal(body))).getBytes();
        String[] signatures = String.valueOf(headers.getFirst("Webhook-Signature")).split(" ");
        return Stream.of(signatures).anyMatch(signature -> MessageDigest.isEqual(expected, signature.getBytes()));
    }

    private static String put(String eventId, byte[] body) throws SQLException {
        try (var database = Database.connect()) {
            String outcome = Database.ask(database, "SELECT outbox_router.inbox_put('payments', ?, ?)", eventId, body).getString(1);
            database.commit();
            return outcome;
        }
    }
}
