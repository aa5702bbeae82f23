package shop;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.SQLException;

/** Inserts an order and its event in the transaction of one connection, which the caller commits. */
final class Orders {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Connection connection;

    Orders(Connection connection) {
        this.connection = connection;
    }

    record OrderPlaced(long orderId, String customer, String total) {}

    long place(String customer, BigDecimal total) throws SQLException, JsonProcessingException {
        long orderId = insertOrder(customer, total);
        insertEvent(orderId, new OrderPlaced(orderId, customer, total.toPlainString()));
        return orderId;
    }

    private long insertOrder(String customer, BigDecimal total) throws SQLException {
        try (var statement = connection.prepareStatement("INSERT INTO orders (customer, total) VALUES (?, ?) RETURNING id")) {
            statement.setString(1, customer);
            statement.setBigDecimal(2, total);
            try (var result = statement.executeQuery()) {
                result.next();
                return result.getLong("id");
            }
        }
    }

    private void insertEvent(long orderId, OrderPlaced event) throws SQLException, JsonProcessingException {
        try (var statement = connection.prepareStatement("""
                INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
                VALUES ('order', ?, 'order.placed', ?::jsonb)""")) {
            statement.setString(1, Long.toString(orderId));
            statement.setString(2, JSON.writeValueAsString(event));
            statement.executeUpdate();
        }
    }
}
