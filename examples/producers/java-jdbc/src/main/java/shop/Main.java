package shop;

import java.math.BigDecimal;
import java.sql.DriverManager;

/** Places an order that is rolled back, and one that is not. */
public final class Main {
    public static void main(String[] arguments) throws Exception {
        try (var connection = DriverManager.getConnection(System.getenv("JDBC_DATABASE_URL"))) {
            // Without this each statement is its own transaction, and an event can be committed without its order.
            connection.setAutoCommit(false);
            var orders = new Orders(connection);

            long orderId = orders.place("Ada", new BigDecimal("10.00"));
            connection.rollback(); // out of stock
            System.out.println("rolled back order " + orderId);

            try {
                orderId = orders.place("Grace", new BigDecimal("99.50"));
                connection.commit();
            } catch (Exception e) {
                connection.rollback();
                throw e;
            }
            System.out.println("placed order " + orderId);
        }
    }
}
