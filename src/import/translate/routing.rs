//! The options of the outbox event router (`EventRouterConfigDefinition`).

use super::columns::{Columns, Unread};
use super::table::Outboxes;
use super::{Translation, comment};
use crate::import::findings::Level;
use crate::import::java::{self, Expression, Piece};
use crate::import::settings::{Setting, Settings, lists, split};
use crate::import::write::{Section, key, literal, quoted};
use crate::topic_name;

/// What the converters need to know about the value.
pub(super) struct Value {
    /// It is a structure of the payload and other members.
    pub(super) envelope: Option<Setting>,
    /// It is parsed: `table.expand.json.payload`.
    pub(super) expand: Option<Setting>,
    pub(super) expand_null: Option<Setting>,
    pub(super) expand_empty_array: Option<Setting>,
}

/// Takes the options of the outbox event router.
pub(super) fn translate(translation: &mut Translation, options: Settings, outboxes: &Outboxes) -> Value {
    let mut router = Router {
        read: Columns::take(translation, outboxes),
        translation,
        options,
        columns: COLUMNS.map(|(_, key, column)| (key, column.to_owned())).to_vec(),
    };
    router.columns();
    router.topic();
    let ignores_missing = router.missing_columns();
    let envelope = router.placement(ignores_missing);
    router.choices();
    let expand = router.take("table.expand.json.payload", "payload_json").filter(Setting::is_true);
    let expand_null = router.unlike("table.json.payload.null.behavior", "expand.null", "ignore");
    let expand_empty_array =
        router.unlike("table.json.payload.empty.array.behavior", "expand.empty_array", "ignore");
    router.rest();
    let Router { translation, read, .. } = router;
    read.finish(translation);
    Value { envelope, expand, expand_null, expand_empty_array }
}

/// The option, the router's key, and the default name of the column in both.
const COLUMNS: [(&str, &str, &str); 4] = [
    ("table.field.event.id", "id", "id"),
    ("route.by.field", "aggregate_type", "aggregatetype"),
    ("table.field.event.key", "aggregate_id", "aggregateid"),
    ("table.field.event.payload", "payload", "payload"),
];

struct Router<'a> {
    translation: &'a mut Translation,
    options: Settings,
    /// The columns that have a key, with that key.
    columns: Vec<(&'static str, String)>,
    /// Which columns Debezium reads.
    read: Columns<'a>,
}

impl Router<'_> {
    fn take(&mut self, option: &str, key: &str) -> Option<Setting> {
        let setting = self.options.take(option)?;
        self.translation.for_key(setting, Section::Route, key)
    }

    /// Takes a setting, if its value is not the default.
    fn unlike(&mut self, option: &str, key: &str, default: &str) -> Option<Setting> {
        self.take(option, key).filter(|setting| !setting.value.eq_ignore_ascii_case(default))
    }

    fn columns(&mut self) {
        for (option, key, default) in COLUMNS {
            let Some(setting) = self.options.take(option) else { continue };
            let name = format!("columns.{key}");
            let Some(setting) = self.translation.for_key(setting, Section::Outbox, &name) else { continue };
            if setting.value != default {
                self.translation.text(Section::Outbox, &name, &setting);
            }
            if let Some((_, column)) = self.columns.iter_mut().find(|(known, _)| *known == key) {
                *column = setting.value;
            }
        }
        if let Some(setting) = self.take("table.field.event.timestamp", "timestamp") {
            self.translation.text(Section::Outbox, "columns.created_at", &setting);
            self.columns.push(("created_at", setting.value.clone()));
            self.translation.set(Section::Route, "timestamp", quoted("created_at"), &setting);
        } else {
            let meaning = "Records have the time of the commit; Debezium stamps the time at which it reads the \
                           change, a little later";
            self.translation.find_unset(Level::Note, "table.field.event.timestamp", meaning);
        }
        for (key, column) in &self.columns {
            let Some(unread) = self.read.unread(column) else { continue };
            let meaning = format!(
                "It leaves out the column `{column}` of {}, without which Debezium fails; the router reads it as \
                 `columns.{key}`",
                unread.tables
            );
            self.read.find(self.translation, &unread, Level::Differs, &meaning);
        }
        if let Some(setting) = self.take("tracing.span.context.field", "tracing_span_context") {
            if let Some(unread) = self.read.unread(&setting.value) {
                return self.leave_out(&format!("`{}`, with the trace,", setting.value), &unread, true);
            }
            self.translation.text(Section::Outbox, "columns.tracing_span_context", &setting);
            self.columns.push(("tracing_span_context", setting.value.clone()));
            let meaning = "Debezium makes headers of it only with OpenTelemetry on its class path, which is \
                           not so by default; leave `columns.tracing_span_context` out if there are none \
                           now";
            self.translation.find(Level::Note, &setting, meaning);
        }
    }

    /// The topic as `RegexRouter` computes it: the replacement if the expression matches the whole value, else the value.
    fn topic(&mut self) {
        let regex = self.take("route.topic.regex", "topic");
        let replacement = self.take("route.topic.replacement", "topic");
        let java = regex.as_ref().map_or("(?<routedByValue>.*)", |regex| regex.value.as_str());
        let template =
            replacement.as_ref().map_or("outbox.event.${routedByValue}", |with| with.value.as_str());
        let (Some(blamed_for_regex), Some(blamed_for_replacement)) =
            (regex.as_ref().or(replacement.as_ref()), replacement.as_ref().or(regex.as_ref()))
        else {
            return;
        };
        let expression = match Expression::translate(java) {
            Ok(expression) => expression,
            Err(reason) => {
                let meaning = format!(
                    "Topics would differ: {reason}. Write rules that do the same into [[route.rules]]"
                );
                return self.translation.find(Level::NoEquivalent, blamed_for_regex, meaning);
            }
        };
        let pieces = match java::replacement(template, &expression) {
            Ok(pieces) => pieces,
            Err(reason) => {
                let meaning = format!(
                    "Debezium would fail with it: {reason}. Set `topic` in [route] to the one that is meant"
                );
                return self.translation.find(Level::Differs, blamed_for_replacement, meaning);
            }
        };
        let illegal = |piece: &Piece| match piece {
            Piece::Text(text) => text.chars().find(|c| !u8::try_from(*c).is_ok_and(topic_name::legal)),
            Piece::Group(_) => None,
        };
        if let Some(character) = pieces.iter().find_map(illegal) {
            let meaning = format!(
                "No topic has {character:?} in its name, and Debezium fails with it: set `topic` in [route] to the one that is meant"
            );
            return self.translation.find(Level::Differs, blamed_for_replacement, meaning);
        }
        let from = [&regex, &replacement].into_iter().flatten().map(comment).collect::<Vec<_>>().join(", ");
        let document = &mut self.translation.document;
        if expression.matches_any_text() {
            let topic = write_template(&pieces, |_| "aggregate_type".to_owned());
            if topic != "outbox.event.${aggregate_type}" {
                document.set(Section::Route, "topic", quoted(&topic), from);
            }
            return;
        }
        // in Java a group that does not take part in the match is empty
        let optional = ["|", ")?", ")*", "){0"].iter().any(|sign| expression.text.contains(sign));
        let topic = write_template(&pieces, |group| match group {
            "0" => "aggregate_type".to_owned(),
            group if optional => format!("match.{group} | default('')"),
            group => format!("match.{group}"),
        });
        let itself = "the value itself, where no rule matches";
        document.set(Section::Route, "topic", quoted("${aggregate_type}"), itself);
        let condition = literal(&format!("/{}/", expression.text));
        document.set(Section::Rule, "match", format!("{{ aggregate_type = {condition} }}"), from.clone());
        document.set(Section::Rule, "topic", quoted(&topic), from);
        if ["*?", "+?", "??", "}?"].iter().any(|lazy| java.contains(lazy)) {
            let meaning = "With a lazy quantifier, Debezium replaces only the first part of the value that matches, and keeps the rest: compare the topics with `outbox-router \
                           preview`";
            self.translation.find(Level::Note, blamed_for_regex, meaning);
        }
    }

    /// `column:header|envelope|partition[:alias]`, in order. Returns the setting if it makes the value an envelope.
    fn placement(&mut self, ignores_missing: bool) -> Option<Setting> {
        let setting = self.take("table.fields.additional.placement", "headers")?;
        let mut envelope = false;
        let mut partition = None;
        for member in split(&setting.value, ',') {
            let parts: Vec<&str> = split(member, ':').into_iter().map(str::trim).collect();
            let (column, place, alias) = match parts.as_slice() {
                [column, place] => (*column, place.to_ascii_lowercase(), *column),
                [column, place, alias] => (*column, place.to_ascii_lowercase(), *alias),
                _ => ("", String::new(), ""),
            };
            if !["header", "envelope", "partition"].contains(&place.as_str()) {
                let meaning = format!("Debezium fails with `{}`; it is left out", member.trim());
                self.translation.find(Level::Differs, &setting, meaning);
                continue;
            }
            // the value is an envelope even if the column is missing
            envelope |= place == "envelope";
            if let Some(unread) = self.read.unread(column) {
                self.leave_out(&format!("`{}`", member.trim()), &unread, ignores_missing);
                continue;
            }
            let Some(template) = self.column(column, &setting) else { continue };
            match place.as_str() {
                "header" => self.named("headers", alias, &template, &setting),
                "envelope" => self.named("envelope", alias, &template, &setting),
                // the last one wins
                _ => partition = Some(template),
            }
        }
        if let Some(partition) = partition {
            self.translation.set(Section::Route, "partition", quoted(&partition), &setting);
        }
        if envelope {
            self.translation.set(Section::Route, "value", quoted("envelope"), &setting);
        }
        envelope.then_some(setting)
    }

    /// Reports that something is not written, because Debezium does not read its column, which may be private.
    fn leave_out(&mut self, what: &str, unread: &Unread, ignores_missing: bool) {
        let tables = &unread.tables;
        let (level, meaning) = match (ignores_missing, unread.everywhere) {
            (true, true) => (
                Level::Note,
                format!(
                    "{what} is left out of the configuration: Debezium does not read this column of {tables}, and so its \
                     records lack it too"
                ),
            ),
            (true, false) => (
                Level::Differs,
                format!(
                    "{what} is left out of the configuration: Debezium does not read this column of {tables}. Records of \
                     the other outbox tables lose it"
                ),
            ),
            (false, _) => (
                Level::Differs,
                format!(
                    "{what} is left out of the configuration: Debezium does not read this column of {tables}, and fails \
                     without it unless `table.fields.additional.error.on.missing` is false"
                ),
            ),
        };
        self.read.find(self.translation, unread, level, &meaning);
    }

    fn named(&mut self, table: &str, alias: &str, template: &str, setting: &Setting) {
        let name = format!("{table}.{}", key(alias));
        if alias.is_empty() {
            let meaning =
                format!("The name after the last colon is empty; {template} is left out of `{table}`");
            return self.translation.find(Level::Differs, setting, meaning);
        }
        let taken = matches!((table, alias), ("headers", "id") | ("envelope", "payload"));
        if taken || self.translation.document.has(Section::Route, &name) {
            let meaning =
                format!("There would be two with the name `{alias}`; the router writes only the first");
            return self.translation.find(Level::Differs, setting, meaning);
        }
        self.translation.set(Section::Route, name, quoted(template), setting);
    }

    /// A template with the value of a column. A name in a template refers to a key of that name first, and one in capitals to a
    /// variable of the environment.
    fn column(&mut self, column: &str, setting: &Setting) -> Option<String> {
        if let Some((key, _)) = self.columns.iter().find(|(_, name)| name == column) {
            return Some(format!("${{{key}}}"));
        }
        if column.is_empty() || column.contains(['}', '|', '\'']) {
            let meaning =
                format!("A template cannot name the column `{column}`, and so this placement is left out");
            self.translation.find(Level::NoEquivalent, setting, meaning);
            return None;
        }
        let is_variable = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let means_another = column.chars().all(is_variable)
            || self.columns.iter().any(|(key, _)| *key == column)
            || ["column.", "headers.", "source.", "match."].iter().any(|prefix| column.starts_with(prefix));
        Some(if means_another { format!("${{column.{column}}}") } else { format!("${{{column}}}") })
    }

    /// Whether a column that the table lacks is ignored. The setting has one name in 3.4 and another in later versions.
    fn missing_columns(&mut self) -> bool {
        let ignored = self
            .take("table.fields.additional.error.on.missing", "missing_columns")
            .filter(|setting| !setting.is_true())
            .or_else(|| self.unlike("table.field.additional.missing", "missing_columns", "error"));
        if let Some(setting) = &ignored {
            self.translation.set(Section::Route, "missing_columns", quoted("ignore"), setting);
        }
        ignored.is_some()
    }

    fn choices(&mut self) {
        if let Some(setting) =
            self.take("route.tombstone.on.empty.payload", "tombstone_on_empty").filter(Setting::is_true)
        {
            self.translation.set(Section::Route, "tombstone_on_empty", "true", &setting);
        }
        let Some(setting) = self.unlike("table.op.invalid.behavior", "on_update", "warn") else { return };
        if self.translation.settings.get("skipped.operations").is_some_and(|skipped| lists(skipped, "u")) {
            let meaning = "Debezium skips updates (skipped.operations), and so it never applied this; the router \
                           warns of an update";
            return self.translation.find(Level::Note, &setting, meaning);
        }
        let action = if setting.value.eq_ignore_ascii_case("fatal") { "stop" } else { "error" };
        self.translation.set(Section::Outbox, "on_update", quoted(action), &setting);
    }

    fn rest(&mut self) {
        for (option, setting) in std::mem::take(&mut self.options).into_rest() {
            let (level, meaning) = match option.as_str() {
                "table.field.event.type" => (
                    Level::Ignored,
                    "Debezium 3 does not use it: `table.fields.additional.placement` makes a header of the type",
                ),
                "table.field.event.schema.version" => (
                    Level::Ignored,
                    "Only concerns the version of the envelope's schema in Connect, which schemaless \
                     converters do not write",
                ),
                "tracing.operation.name" | "tracing.with.context.field.only" => (
                    Level::Ignored,
                    "Only concerns the span that Debezium opens; the router passes the application's on",
                ),
                _ => (
                    Level::NoEquivalent,
                    "Debezium 3's outbox event router does not have this option: check what it did",
                ),
            };
            self.translation.find(level, &setting, meaning);
        }
    }
}

fn write_template(pieces: &[Piece], name: impl Fn(&str) -> String) -> String {
    let pieces = pieces.iter().map(|piece| match piece {
        Piece::Text(text) => text.replace('$', "$$"),
        Piece::Group(group) => format!("${{{}}}", name(group)),
    });
    pieces.collect()
}
