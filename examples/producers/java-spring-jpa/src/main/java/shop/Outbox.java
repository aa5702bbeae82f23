package shop;

import jakarta.persistence.EntityManager;
import java.util.Map;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Propagation;
import org.springframework.transaction.annotation.Transactional;

@Component
class Outbox {
    private final EntityManager entityManager;

    Outbox(EntityManager entityManager) {
        this.entityManager = entityManager;
    }

    /** Fails if the caller has no transaction, instead of committing the event alone. */
    @Transactional(propagation = Propagation.MANDATORY)
    public void write(String aggregateType, String aggregateId, String eventType, Map<String, Object> payload) {
        // Not a repository's save(): for an entity with an id it calls merge, which first looks for the row.
        entityManager.persist(new OutboxEvent(aggregateType, aggregateId, eventType, payload));
    }
}
