// Places orders with Prisma. Everything goes through the client of the transaction, tx.
import { PrismaPg } from "@prisma/adapter-pg";
import { Prisma, PrismaClient } from "./generated/prisma/client";

const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: process.env.DATABASE_URL }) });

/** Inserts the order and its event in the transaction of tx. */
async function placeOrder(tx: Prisma.TransactionClient, customer: string, total: string): Promise<bigint> {
  const order = await tx.order.create({ data: { customer, total } });
  // Not create(), which reads the row back and so needs SELECT on the outbox.
  await tx.outboxEvent.createMany({
    data: {
      aggregateType: "order",
      aggregateId: order.id.toString(),
      eventType: "order.placed",
      payload: { orderId: Number(order.id), customer, total },
    },
  });
  return order.id;
}

class OutOfStock extends Error {}

let rolledBack: bigint | undefined;
try {
  await prisma.$transaction(async (tx) => {
    rolledBack = await placeOrder(tx, "Ada", "10.00");
    throw new OutOfStock();
  });
} catch (error) {
  if (!(error instanceof OutOfStock)) throw error;
  console.log(`rolled back order ${rolledBack}`);
}

const placed = await prisma.$transaction((tx) => placeOrder(tx, "Grace", "99.50"));
console.log(`placed order ${placed}`);

await prisma.$disconnect();
