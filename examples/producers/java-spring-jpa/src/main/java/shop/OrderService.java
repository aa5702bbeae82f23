package shop;

import java.math.BigDecimal;
import java.util.Map;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;

@Service
class OrderService {
    private final OrderRepository orders;
    private final Outbox outbox;

    OrderService(OrderRepository orders, Outbox outbox) {
        this.orders = orders;
        this.outbox = outbox;
    }

    /** Inserts the order and its event in one transaction, that of the caller if there is one. */
    @Transactional(rollbackFor = Exception.class)
    public Order place(String customer, BigDecimal total) {
        Order order = orders.save(new Order(customer, total));
        outbox.write("order", order.getId().toString(), "order.placed",
                Map.of("orderId", order.getId(), "customer", order.getCustomer(), "total", order.getTotal().toPlainString()));
        return order;
    }
}
