//! Numbers without rounding: how they compare, and the bounds of numbers in the validator. Those of the library compare a fraction with a
//! large integer as floats.

use std::cmp::Ordering;

use jsonschema::paths::Location;
use jsonschema::{Keyword, ValidationError, ValidationOptions};
use jsonschema_value::numeric::bignum::Decimal;
use serde_json::{Map, Number, Value};

/// Which numbers a bound permits: its keyword, how they compare with it, and how that is said.
#[derive(Clone, Copy)]
struct Kind {
    keyword: &'static str,
    permits: fn(Ordering) -> bool,
    words: &'static str,
}

const KINDS: [Kind; 4] = [
    Kind { keyword: "minimum", permits: Ordering::is_ge, words: "at least" },
    Kind { keyword: "maximum", permits: Ordering::is_le, words: "at most" },
    Kind { keyword: "exclusiveMinimum", permits: Ordering::is_gt, words: "more than" },
    Kind { keyword: "exclusiveMaximum", permits: Ordering::is_lt, words: "less than" },
];

/// The number as the validator compares it, without rounding.
pub(super) fn exact(number: &Number) -> Decimal {
    Decimal::parse(number.as_str())
}

/// Replaces the library's bounds.
pub(super) fn with_exact_bounds<'o>(options: ValidationOptions<'o>) -> ValidationOptions<'o> {
    KINDS.into_iter().fold(options, |options, kind| {
        options.with_keyword(kind.keyword, move |_: &Map<String, Value>, limit: &Value, _: Location| {
            match limit.as_number() {
                Some(limit) => Ok(Box::new(Bound::new(kind, limit)) as Box<dyn for<'i> Keyword<'i>>),
                // the schemas of the drafts refuse it before
                None => Err(ValidationError::custom("a bound is a number")),
            }
        })
    })
}

struct Bound {
    kind: Kind,
    limit: Number,
    exact: Decimal,
}

impl Bound {
    fn new(kind: Kind, limit: &Number) -> Self {
        Bound { kind, limit: limit.clone(), exact: exact(limit) }
    }

    fn permits(&self, number: &Number) -> bool {
        let ordering = match (number.as_i64(), self.limit.as_i64()) {
            (Some(number), Some(limit)) => number.cmp(&limit),
            _ => exact(number).cmp(&self.exact),
        };
        (self.kind.permits)(ordering)
    }
}

impl<'i> Keyword<'i> for Bound {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        match self.is_valid(instance) {
            true => Ok(()),
            false => Err(ValidationError::custom(format!("it must be {} {}", self.kind.words, self.limit))),
        }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        instance.as_number().is_none_or(|number| self.permits(number))
    }
}
