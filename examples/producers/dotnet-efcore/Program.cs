// Places orders with EF Core. Two calls of SaveChanges are two transactions unless one is begun around them.
using System.Globalization;
using System.Text.Json;

try
{
    await using var shop = new ShopContext();
    await using var transaction = await shop.Database.BeginTransactionAsync();
    var order = await PlaceOrderAsync(shop, "Ada", 10.00m);
    throw new OutOfStockException(order.Id);
}
catch (OutOfStockException e)
{
    Console.WriteLine($"rolled back order {e.OrderId}");
}

await using (var shop = new ShopContext())
await using (var transaction = await shop.Database.BeginTransactionAsync())
{
    var order = await PlaceOrderAsync(shop, "Grace", 99.50m);
    await transaction.CommitAsync();
    Console.WriteLine($"placed order {order.Id}");
}

// Inserts the order and its event in the transaction that the caller has begun.
static async Task<Order> PlaceOrderAsync(ShopContext shop, string customer, decimal total)
{
    var order = new Order { Customer = customer, Total = total };
    shop.Orders.Add(order);
    await shop.SaveChangesAsync(); // the database assigns the id, which the event needs
    shop.Outbox.Add(new OutboxEvent
    {
        AggregateType = "order",
        AggregateId = order.Id.ToString(),
        EventType = "order.placed",
        Payload = JsonSerializer.SerializeToDocument(new { orderId = order.Id, customer, total = total.ToString(CultureInfo.InvariantCulture) }),
    });
    await shop.SaveChangesAsync();
    return order;
}

class OutOfStockException(long orderId) : Exception
{
    public long OrderId { get; } = orderId;
}
