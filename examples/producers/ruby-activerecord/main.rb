# Places orders with Active Record. The event is inserted in the transaction of the order, not in a callback after it.
require "active_record"

ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))

class Order < ActiveRecord::Base
  # Inserts the order and its event in one transaction, that of the caller if there is one.
  def self.place(customer:, total:)
    transaction do
      order = create!(customer: customer, total: total)
      OutboxEvent.write(
        aggregate_type: "order",
        aggregate_id: order.id,
        event_type: "order.placed",
        payload: { orderId: order.id, customer: customer, total: total }
      )
      order
    end
  end
end

class OutboxEvent < ActiveRecord::Base
  self.table_name = "outbox"

  # Not create!, whose RETURNING needs SELECT on the table.
  def self.write(**event)
    insert!(event, returning: false)
  end
end

class OutOfStock < StandardError; end

order_id = nil
begin
  ActiveRecord::Base.transaction do
    order_id = Order.place(customer: "Ada", total: "10.00").id
    raise OutOfStock
  end
rescue OutOfStock
  puts "rolled back order #{order_id}"
end

order = Order.place(customer: "Grace", total: "99.50")
puts "placed order #{order.id}"
