using System.Text.Json;
using Microsoft.EntityFrameworkCore;

class Order
{
    public long Id { get; private set; }
    public required string Customer { get; init; }
    public required decimal Total { get; init; }
}

class OutboxEvent
{
    // Generated here and not by the database, so that the INSERT has no RETURNING, which would need SELECT on the table.
    public Guid Id { get; init; } = Guid.NewGuid();
    public required string AggregateType { get; init; }
    public required string AggregateId { get; init; }
    public required string EventType { get; init; }
    public required JsonDocument Payload { get; init; }
}

class ShopContext : DbContext
{
    public DbSet<Order> Orders => Set<Order>();
    public DbSet<OutboxEvent> Outbox => Set<OutboxEvent>();

    protected override void OnConfiguring(DbContextOptionsBuilder options) => options
        .UseNpgsql(Environment.GetEnvironmentVariable("ConnectionStrings__Shop"))
        .UseSnakeCaseNamingConvention();

    protected override void OnModelCreating(ModelBuilder model)
    {
        model.Entity<Order>(order =>
        {
            order.ToTable("orders");
            order.Property(o => o.Id).UseIdentityAlwaysColumn();
        });
        // "outbox-router init" creates this table, so migrations leave it alone.
        model.Entity<OutboxEvent>(outbox =>
        {
            outbox.ToTable("outbox", table => table.ExcludeFromMigrations());
            outbox.Property(e => e.Id).ValueGeneratedNever();
        });
    }
}
