//! The columns of an outbox and what they are for.

use crate::config::Columns;

/// The columns with a meaning to the router, in the order of [`Columns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// `id`
    Id,
    /// `aggregate_type`
    AggregateType,
    /// `aggregate_id`
    AggregateId,
    /// `event_type`
    EventType,
    /// `payload`
    Payload,
    /// `headers`
    Headers,
    /// `created_at`
    CreatedAt,
    /// `tracing_span_context`
    TracingSpanContext,
    /// `idempotency_key`
    IdempotencyKey,
}

/// All fields.
pub const FIELDS: [Field; 9] = [
    Field::Id,
    Field::AggregateType,
    Field::AggregateId,
    Field::EventType,
    Field::Payload,
    Field::Headers,
    Field::CreatedAt,
    Field::TracingSpanContext,
    Field::IdempotencyKey,
];

impl Field {
    /// The field's key under `[outbox] columns`.
    pub fn key(self) -> &'static str {
        match self {
            Field::Id => "id",
            Field::AggregateType => "aggregate_type",
            Field::AggregateId => "aggregate_id",
            Field::EventType => "event_type",
            Field::Payload => "payload",
            Field::Headers => "headers",
            Field::CreatedAt => "created_at",
            Field::TracingSpanContext => "tracing_span_context",
            Field::IdempotencyKey => "idempotency_key",
        }
    }

    /// The name of the table's column; `None` if the configuration says there is none.
    pub fn column(self, columns: &Columns) -> Option<&str> {
        match self {
            Field::Id => Some(&columns.id),
            Field::AggregateType => Some(&columns.aggregate_type),
            Field::AggregateId => Some(&columns.aggregate_id),
            Field::EventType => columns.event_type.as_deref(),
            Field::Payload => Some(&columns.payload),
            Field::Headers => columns.headers.as_deref(),
            Field::CreatedAt => columns.created_at.as_deref(),
            Field::TracingSpanContext => columns.tracing_span_context.as_deref(),
            Field::IdempotencyKey => columns.idempotency_key.as_deref(),
        }
    }

    /// Whether the column may be missing: `headers`, `created_at` and `idempotency_key`, unless the user set their names.
    pub fn optional(self, columns: &Columns) -> bool {
        match self {
            Field::Headers => !columns.headers_required,
            Field::CreatedAt => !columns.created_at_required,
            Field::IdempotencyKey => !columns.idempotency_key_required,
            _ => false,
        }
    }
}

/// A column that a template names and that is not one of the [`Field`]s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraColumn {
    /// Its name.
    pub name: String,
    /// The key in the configuration that names it.
    pub key: &'static str,
    /// Whether it may be missing.
    pub optional: bool,
}

/// `[route] topic`
pub const IN_TOPIC: &str = "topic";

/// `[route.headers]`
pub const IN_ROUTE_HEADERS: &str = "route.headers";

/// `[route] partition`
pub const IN_PARTITION: &str = "partition";

/// `[route.envelope]`
pub const IN_ENVELOPE: &str = "route.envelope";

/// `[route.cloudevents]`
pub const IN_CLOUDEVENTS: &str = "route.cloudevents";

/// `[[route.rules]]`
pub const IN_ROUTE_RULES: &str = "route.rules";
