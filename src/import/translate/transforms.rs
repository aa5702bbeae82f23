//! The chain of transforms: the outbox event router, and those before and after it.

use super::{Translation, choices, earlier};
use crate::error::{Error, ErrorCode};
use crate::import::findings::Level;
use crate::import::java::Expression;
use crate::import::settings::{Setting, Settings, list};
use crate::import::write::{Section, key, quoted};

/// A topic before any transform: `<prefix>.<schema>.<table>`.
pub(super) type Topic = String;

const EVENT_ROUTER: &str = "io.debezium.transforms.outbox.EventRouter";

/// One transform.
pub(super) struct Transform {
    /// `transforms.NAME.type`
    pub(super) class: Setting,
    /// Which records it applies to; `None`: all.
    pub(super) predicate: Option<Predicate>,
    /// `transforms.NAME.*`
    pub(super) options: Settings,
}

/// The chain without the outbox event router.
pub(super) struct Chain {
    before: Vec<Transform>,
    pub(super) router: Transform,
    behind: Vec<Transform>,
}

/// Selects the records that a transform applies to.
#[derive(Clone)]
pub(super) struct Predicate {
    /// `transforms.NAME.predicate`
    pub(super) setting: Setting,
    /// The pattern for topics, or why it is unknown.
    pub(super) topics: Result<(String, std::rc::Rc<Expression>), String>,
    /// The transform applies to the other records.
    pub(super) negated: bool,
}

impl Predicate {
    /// Whether it selects records of this topic; `None`: unknown.
    pub(super) fn takes(&self, topic: &str) -> Option<bool> {
        let (_, expression) = self.topics.as_ref().ok()?;
        Some(expression.matches(topic) != self.negated)
    }
}

/// Takes all transforms and predicates.
pub(super) fn read(translation: &mut Translation) -> Result<Chain, Error> {
    let names = translation.take_any("transforms");
    let mut predicates = translation.settings.take_prefix("predicates.");
    translation.settings.take("predicates");
    let mut before: Vec<Transform> = Vec::new();
    let mut behind = Vec::new();
    let mut router = None;
    for name in names.iter().flat_map(|names| list(&names.value)) {
        let mut options = translation.settings.take_prefix(&format!("transforms.{name}."));
        let Some(class) = options.take("type") else { continue };
        options.take("plugin.version");
        if class.value == EVENT_ROUTER {
            earlier::rename(translation, &mut options);
        }
        choices::check(translation, &mut options);
        let negated = options.take("negate").is_some_and(|negate| negate.is_true());
        let predicate = options.take("predicate").map(|setting| predicate(setting, negated, &mut predicates));
        let transform = Transform { class, predicate, options };
        match (transform.class.value == EVENT_ROUTER, &router) {
            (true, None) => router = Some(transform),
            (true, Some(_)) => {
                translation.keeps_slot = true;
                let meaning = "A configuration has only one outbox event router: import this one separately, from a copy of the file without the first. Give each \
                               configuration a `slot` of its own, and run `outbox-router init` with both before you stop \
                               the connector";
                translation.find(Level::NoEquivalent, &transform.class, meaning);
            }
            (false, None) => before.push(transform),
            (false, Some(_)) => behind.push(transform),
        }
    }
    let idle = translation.settings.take_prefix("transforms.");
    let Some(router) = router else { return Err(no_router(idle)) };
    let meaning = "Its transform is not named in `transforms`, so it does nothing";
    translation.find_all(Level::Ignored, idle, meaning);
    Ok(Chain { before, router, behind })
}

fn no_router(idle: Settings) -> Error {
    let forgotten = idle.into_rest().find(|(_, setting)| setting.value == EVENT_ROUTER);
    let remedy = match forgotten {
        Some((_, setting)) => format!("`{}` is one: name that transform in `transforms`", setting.name),
        None => "Name the configuration of a connector with the outbox event router; a connector that sends \
                 change events as they are has nothing that the router could take over"
            .to_owned(),
    };
    Error::usage(
        ErrorCode::DebeziumConfiguration,
        format!("There is no outbox event router in it: no transform has the type {EVENT_ROUTER}"),
        remedy,
    )
}

fn predicate(setting: Setting, negated: bool, predicates: &mut Settings) -> Predicate {
    let class = predicates.get(&format!("{}.type", setting.value)).map(|class| class.value.clone());
    let topics = match class.as_deref().map(|class| class.rsplit('.').next().unwrap_or_default()) {
        Some("TopicNameMatches") => {
            let pattern = predicates.get(&format!("{}.pattern", setting.value));
            let pattern = pattern.map(|pattern| pattern.value.clone()).unwrap_or_default();
            Expression::translate(&pattern).map(|expression| (pattern, expression.into()))
        }
        Some(other) => Err(format!("{other} does not test the topic")),
        None => Err("it is not defined".to_owned()),
    };
    Predicate { setting, topics, negated }
}

/// Reports what to use instead of each other transform.
pub(super) fn others(translation: &mut Translation, chain: Chain, topics: &[Topic]) {
    for transform in chain.before {
        let excludes_all =
            |predicate: &Predicate| topics.iter().all(|topic| predicate.takes(topic) == Some(false));
        if !topics.is_empty() && transform.predicate.as_ref().is_some_and(excludes_all) {
            let meaning = "Only concerns records of other tables, by its predicate";
            translation.find(Level::Ignored, &transform.class, meaning);
            continue;
        }
        let (level, meaning) = advice(&transform.class.value, false);
        translation.find(level, &transform.class, meaning);
    }
    for mut transform in chain.behind {
        if insert_header(translation, &mut transform) || drops_context_headers(&transform) {
            continue;
        }
        let (level, meaning) = advice(&transform.class.value, true);
        translation.find(level, &transform.class, meaning);
    }
}

/// `InsertHeader` can be translated to a key.
fn insert_header(translation: &mut Translation, transform: &mut Transform) -> bool {
    if !transform.class.value.ends_with(".InsertHeader") || transform.predicate.is_some() {
        return false;
    }
    let (Some(header), Some(value)) =
        (transform.options.take("header"), transform.options.take("value.literal"))
    else {
        return false;
    };
    let name = format!("headers.{}", key(&header.value));
    if translation.document.has(Section::Route, &name) || header.value == "id" {
        return false;
    }
    let template = value.value.replace('$', "$$");
    translation.set(Section::Route, name, quoted(&template), &value);
    true
}

/// Whether it only drops headers that the router does not write anyway.
fn drops_context_headers(transform: &Transform) -> bool {
    let headers = transform.options.get("headers").map(|headers| headers.value.as_str()).unwrap_or_default();
    transform.class.value.ends_with(".DropHeaders")
        && list(headers).all(|header| header.starts_with("__debezium.context"))
}

/// What to use instead of a transform, by the last part of its class name.
fn advice(class: &str, behind: bool) -> (Level, String) {
    use Level::{Ignored, NoEquivalent};
    let last = class.rsplit('.').next().unwrap_or_default();
    let last = last.split('$').next().unwrap_or_default();
    let (level, meaning) = match last {
        "RegexRouter" | "TopicRegexRouter" | "ExtractTopic" if behind => (
            NoEquivalent,
            "Topics would not be renamed: write the new name as `topic` in [route], or in rules",
        ),
        "ByLogicalTableRouter" => (
            NoEquivalent,
            "The router does not merge topics of several tables: name all the tables in `table` in [outbox]",
        ),
        "Filter" | "Drop" => {
            (NoEquivalent, "No event would be dropped: write a rule with `drop = true` in [[route.rules]]")
        }
        "ContentBasedRouter" => (
            NoEquivalent,
            "The router runs no scripts: write the conditions as rules with a `topic` in [[route.rules]]",
        ),
        "TimestampRouter" | "MessageTimestampRouter" => {
            (NoEquivalent, "The router cannot put the time into a topic's name")
        }
        "ExtractNewRecordState" | "ExtractNewDocumentState" | "ExtractChangedRecordState" if behind => (
            Ignored,
            "Only concerns change events of other tables; records of the outbox event router pass through it unchanged",
        ),
        "SchemaChangeEventFilter"
        | "SetSchemaMetadata"
        | "ExtractSchemaToNewRecord"
        | "GeometryFormatTransformer" => {
            (Ignored, "Only concerns Connect's schemas, or values that an outbox does not have")
        }
        "InsertHeader" => {
            (NoEquivalent, "The header would be missing: write it into `headers` in [route], or into a rule")
        }
        "DropHeaders" => (NoEquivalent, "Headers would stay: leave them out of `headers` in [route]"),
        "HeaderFrom" | "HeaderToValue" => (
            NoEquivalent,
            "The router moves nothing between value and headers: take it from a column of the table",
        ),
        "InsertField" | "HoistField" => (
            NoEquivalent,
            "Values would lack what it adds: use `value = \"envelope\"` in [route], with columns as its members",
        ),
        "ReplaceField" | "MaskField" | "Cast" | "TimestampConverter" | "TimezoneConverter" | "Flatten"
        | "ExtractField" => (
            NoEquivalent,
            "The router does not change payloads or columns: have the application write them in their final form",
        ),
        "ValueToKey" => (
            NoEquivalent,
            "Keys would differ: set `columns.aggregate_id` in [outbox] to the column of the key",
        ),
        "PartitionRouting" => (
            NoEquivalent,
            "Records would go to other partitions: `partition` in [route] takes a column with a number",
        ),
        "ActivateTracingSpan" => (
            NoEquivalent,
            "No span is opened; `columns.tracing_span_context` passes the application's trace on",
        ),
        "DecodeLogicalDecodingMessageContent" => (
            NoEquivalent,
            "Messages of pg_logical_emit_message are read in another form: see `message_prefix` in [outbox]",
        ),
        _ => (NoEquivalent, "The router runs no transforms, and so records lack what it changes"),
    };
    (level, meaning.to_owned())
}
