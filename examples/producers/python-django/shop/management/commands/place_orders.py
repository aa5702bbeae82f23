from decimal import Decimal

from django.core.management.base import BaseCommand
from django.db import transaction

from shop.orders import place_order


class OutOfStock(Exception):
    pass


class Command(BaseCommand):
    help = "Places an order that is rolled back, and one that is not"

    def handle(self, *args, **options):
        try:
            with transaction.atomic():
                order = place_order("Ada", Decimal("10.00"))
                raise OutOfStock
        except OutOfStock:
            self.stdout.write(f"rolled back order {order.pk}")

        order = place_order("Grace", Decimal("99.50"))
        self.stdout.write(f"placed order {order.pk}")
