package shop;

import java.math.BigDecimal;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/** Places an order that is rolled back, and one that is not. */
@SpringBootApplication
public class ShopApplication {
    static class OutOfStock extends RuntimeException {
        final Long orderId;

        OutOfStock(Long orderId) {
            this.orderId = orderId;
        }
    }

    @Bean
    CommandLineRunner run(OrderService orders, PlatformTransactionManager transactions) {
        return arguments -> {
            try {
                new TransactionTemplate(transactions).executeWithoutResult(status -> {
                    Order order = orders.place("Ada", new BigDecimal("10.00"));
                    throw new OutOfStock(order.getId());
                });
            } catch (OutOfStock e) {
                System.out.println("rolled back order " + e.orderId);
            }

            Order order = orders.place("Grace", new BigDecimal("99.50"));
            System.out.println("placed order " + order.getId());
        };
    }

    public static void main(String[] arguments) {
        SpringApplication.run(ShopApplication.class, arguments);
    }
}
