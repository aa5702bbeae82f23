import uuid

from django.db import models


class Order(models.Model):
    customer = models.TextField()
    total = models.DecimalField(max_digits=12, decimal_places=2)

    class Meta:
        managed = False
        db_table = "orders"


class OutboxEvent(models.Model):
    # Generated here and not by the database, so that the INSERT has no RETURNING, which would need SELECT on the table.
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    aggregate_type = models.TextField()
    aggregate_id = models.TextField()
    event_type = models.TextField()
    payload = models.JSONField()

    class Meta:
        # "outbox-router init" creates this table, so migrations leave it alone.
        managed = False
        db_table = "outbox"
