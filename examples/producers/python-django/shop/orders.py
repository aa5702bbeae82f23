from decimal import Decimal

from django.db import transaction

from .models import Order, OutboxEvent


def place_order(customer: str, total: Decimal) -> Order:
    """Inserts the order and its event in one transaction, that of the caller if there is one."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer, total=total)
        OutboxEvent.objects.create(
            aggregate_type="order",
            aggregate_id=str(order.pk),
            event_type="order.placed",
            payload={"orderId": order.pk, "customer": customer, "total": str(total)},
        )
    return order
