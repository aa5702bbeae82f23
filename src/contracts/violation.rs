//! Describes how a payload violates its contract, without quoting the payload: no values, and no names of properties that no
//! contract has.

use std::collections::HashSet;

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::paths::{Location, LocationSegment};
use serde_json::Value;

use super::keywords::walk;

/// How many names and numbers of a place are shown.
const MAX_SEGMENTS: usize = 20;

/// The names of properties in schemas, which may be shown.
#[derive(Debug, Default)]
pub(super) struct KnownNames(HashSet<String>);

impl KnownNames {
    pub(super) fn add(&mut self, schema: &Value) {
        walk(schema, "", &mut |_, schema| {
            let properties = schema.get("properties").and_then(Value::as_object);
            self.0.extend(properties.into_iter().flatten().map(|(name, _)| name.clone()));
        });
    }

    /// The place as a JSON pointer, with `*` for a name that comes from the payload, and without its end if it is long.
    fn place(&self, place: &Location) -> String {
        let mut text = String::new();
        for (number, segment) in place.segments().enumerate() {
            text.push('/');
            if number == MAX_SEGMENTS {
                text.push_str("...");
                break;
            }
            match segment {
                LocationSegment::Index(index) => text.push_str(&index.to_string()),
                LocationSegment::Property(name) if self.0.contains(&*name) => text.push_str(&name),
                LocationSegment::Property(_) => text.push('*'),
            }
        }
        text
    }

    /// The first fault of a payload: where it is, and which keyword requires what.
    pub(super) fn sentence(&self, error: &ValidationError<'_>) -> String {
        let kind = error.kind();
        let place = match self.place(error.instance_path()).as_str() {
            "" => "as a whole".to_owned(),
            place => format!("at {place}"),
        };
        format!("{place} it violates \"{}\": {}", kind.keyword(), requirement(kind))
    }
}

/// What the schema requires. Only the parts of `kind` that come from the schema are used.
fn requirement(kind: &ValidationErrorKind) -> String {
    use ValidationErrorKind as Kind;
    match kind {
        Kind::Required { property } => format!("{property} is missing"),
        Kind::Type { kind: TypeKind::Single(wanted) } => format!("it must be of type {wanted}"),
        Kind::Type { kind: TypeKind::Multiple(wanted) } => {
            let names: Vec<String> = wanted.iter().map(|wanted| wanted.to_string()).collect();
            format!("it must be of one of the types {}", names.join(", "))
        }
        // those of `bounds`
        Kind::Custom { message, .. } => message.clone(),
        Kind::MultipleOf { multiple_of } => format!("it must be a multiple of {multiple_of}"),
        Kind::MinLength { limit } => format!("it must have at least {limit} characters"),
        Kind::MaxLength { limit } => format!("it must have at most {limit} characters"),
        Kind::MinItems { limit } => format!("it must have at least {limit} items"),
        Kind::MaxItems { limit } => format!("it must have at most {limit} items"),
        Kind::MinProperties { limit } => format!("it must have at least {limit} properties"),
        Kind::MaxProperties { limit } => format!("it must have at most {limit} properties"),
        Kind::UniqueItems => "its items must be unique".to_owned(),
        Kind::Format { format } => format!("it is not of the format {format}"),
        Kind::Pattern { pattern } => format!("it does not match {pattern}"),
        Kind::Enum { .. } => "it is not one of the listed values".to_owned(),
        Kind::Constant { .. } => "it is another value".to_owned(),
        Kind::AdditionalProperties { .. } | Kind::UnevaluatedProperties { .. } => {
            "it has a property that the schema does not list".to_owned()
        }
        Kind::AdditionalItems { .. } | Kind::UnevaluatedItems { .. } => {
            "it has an item that the schema does not list".to_owned()
        }
        Kind::PropertyNames { .. } => "the name of a property is not allowed".to_owned(),
        Kind::AnyOf { .. } | Kind::OneOfNotValid { .. } => "none of its forms fits".to_owned(),
        Kind::OneOfMultipleValid { .. } => "more than one of the alternatives match".to_owned(),
        Kind::Contains => "too few or too many items match".to_owned(),
        Kind::FalseSchema => "nothing may stand there".to_owned(),
        Kind::BacktrackLimitExceeded { .. } | Kind::RegexEngineFailure { .. } => {
            "matching it took too long".to_owned()
        }
        _ => "it does not fit".to_owned(),
    }
}
