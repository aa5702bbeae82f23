package shop;

import jakarta.persistence.Entity;
import jakarta.persistence.GeneratedValue;
import jakarta.persistence.GenerationType;
import jakarta.persistence.Id;
import jakarta.persistence.Table;
import java.math.BigDecimal;

@Entity
@Table(name = "orders")
class Order {
    @Id
    @GeneratedValue(strategy = GenerationType.IDENTITY)
    private Long id;

    private String customer;

    private BigDecimal total;

    protected Order() {}

    Order(String customer, BigDecimal total) {
        this.customer = customer;
        this.total = total;
    }

    Long getId() {
        return id;
    }

    String getCustomer() {
        return customer;
    }

    BigDecimal getTotal() {
        return total;
    }
}
