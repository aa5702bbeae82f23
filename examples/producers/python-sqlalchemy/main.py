"""Places orders with SQLAlchemy. The event is one more object of the session, so it has the order's fate."""

import os
import uuid
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger, Identity, Numeric, create_engine, make_url
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    customer: Mapped[str]
    total: Mapped[Decimal] = mapped_column(Numeric(12, 2))


class OutboxEvent(Base):
    __tablename__ = "outbox"

    # Generated here and not by the database, so that the INSERT has no RETURNING, which would need SELECT on the table.
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    aggregate_type: Mapped[str]
    aggregate_id: Mapped[str]
    event_type: Mapped[str]
    payload: Mapped[dict[str, Any]] = mapped_column(JSONB)


class OutOfStock(Exception):
    pass


def place_order(session: Session, customer: str, total: Decimal) -> Order:
    """Adds the order and its event to the caller's transaction."""
    order = Order(customer=customer, total=total)
    session.add(order)
    session.flush()  # the database assigns the id, which the event needs
    session.add(
        OutboxEvent(
            aggregate_type="order",
            aggregate_id=str(order.id),
            event_type="order.placed",
            payload={"orderId": order.id, "customer": customer, "total": str(total)},
        )
    )
    return order


def main() -> None:
    url = make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")
    sessions = sessionmaker(create_engine(url))

    try:
        with sessions.begin() as session:
            order_id = place_order(session, "Ada", Decimal("10.00")).id
            session.flush()  # both rows are in the database now
            raise OutOfStock
    except OutOfStock:
        print(f"rolled back order {order_id}")

    with sessions.begin() as session:
        order_id = place_order(session, "Grace", Decimal("99.50")).id
    print(f"placed order {order_id}")


if __name__ == "__main__":
    main()
