//! Each subject takes its settings out of the connector, writes keys, and reports findings.

mod choices;
mod columns;
mod converters;
mod delivery;
mod earlier;
mod kafka;
mod known;
mod postgres;
mod routing;
mod sasl;
mod table;
mod topics;
mod transforms;
mod truststore;

use super::Import;
use super::connector::{Connector, Form};
use super::findings::{Finding, Level, shown, shown_name};
use super::load;
use super::reference::{self, Reference};
use super::settings::{Setting, Settings};
use super::write::{Document, Section, file, key, literal};
use crate::error::{Error, ErrorCode};

/// Translates the subjects in the order of the file that is written.
pub(super) fn translate(connector: Connector) -> Result<Import, Error> {
    let mut translation = Translation {
        form: connector.form,
        settings: connector.settings,
        document: Document::default(),
        findings: Vec::new(),
        keeps_slot: false,
        has_worker: connector.has_worker,
        variables: Vec::new(),
    };
    is_for_postgres(&mut translation)?;
    let mut settings = std::mem::take(&mut translation.settings);
    earlier::rename(&mut translation, &mut settings);
    choices::check(&mut translation, &mut settings);
    translation.settings = settings;
    for setting in &connector.unread {
        let meaning = "Connect does not read it: the connector names no such converter, and the worker's takes its \
                       options from the worker";
        translation.find(Level::Ignored, setting, meaning);
    }
    let mut chain = transforms::read(&mut translation)?;
    let outboxes = table::translate(&mut translation, &chain);
    let value = routing::translate(&mut translation, std::mem::take(&mut chain.router.options), &outboxes);
    transforms::others(&mut translation, chain, &outboxes.topics);
    converters::translate(&mut translation, &value);
    postgres::translate(&mut translation);
    kafka::translate(&mut translation);
    topics::translate(&mut translation);
    delivery::translate(&mut translation);
    known::translate(&mut translation);
    Ok(translation.finish())
}

/// The state that the subjects share.
struct Translation {
    form: Form,
    settings: Settings,
    document: Document,
    findings: Vec<Finding>,
    /// The connector's slot is not taken over, and the router has one of its own.
    keeps_slot: bool,
    /// What the worker sets is known.
    has_worker: bool,
    /// The variables that findings ask the user to set.
    variables: Vec<String>,
}

impl Translation {
    fn finish(mut self) -> Import {
        let unknown = std::mem::take(&mut self.settings);
        let meaning =
            "It is not a known setting of Debezium 3, Kafka Connect or Kafka's producer: check what it does";
        self.find_all(Level::NoEquivalent, unknown, meaning);
        self.findings.extend(load::check(&self.document, &self.variables));
        self.findings.sort_by(|a, b| (a.level, &a.setting).cmp(&(b.level, &b.setting)));
        Import { configuration: self.document.text(), findings: self.findings }
    }

    /// Reports something about a setting.
    fn find(&mut self, level: Level, setting: &Setting, meaning: impl Into<String>) {
        self.findings.push(Finding {
            level,
            setting: shown_name(&setting.name),
            value: Some(shown(&setting.name, &setting.value, self.is_reference(setting))),
            meaning: meaning.into(),
        });
    }

    /// Reports the same about each of these settings.
    fn find_all(&mut self, level: Level, settings: Settings, meaning: &str) {
        for (_, setting) in settings.into_rest() {
            self.find(level, &setting, meaning);
        }
    }

    /// Reports something about a setting that is not set.
    fn find_unset(&mut self, level: Level, name: &str, meaning: impl Into<String>) {
        let meaning = meaning.into();
        self.findings.push(Finding { level, setting: name.to_owned(), value: None, meaning });
    }

    /// Whether a finding is about this setting.
    fn has_found(&self, name: &str) -> bool {
        self.findings.iter().any(|finding| finding.setting.ends_with(name))
    }

    fn reference(&self, setting: &Setting) -> Option<Reference> {
        match self.form {
            // in this setting `${name}` is a group of the expression, escaped or not
            Form::Server if setting.name.ends_with(".route.topic.replacement") => None,
            Form::Server => reference::in_server(&setting.value),
            Form::Connect => reference::in_connect(&setting.value),
        }
    }

    /// Whether the value is only a reference: Debezium Server's `${NAME:default}` also contains a value.
    fn is_reference(&self, setting: &Setting) -> bool {
        let alone = match self.reference(setting) {
            None => false,
            Some(Reference::Other(text)) => {
                text.strip_prefix("${").and_then(|rest| rest.find('}')) == text.len().checked_sub(3)
            }
            Some(_) => true,
        };
        alone && (self.form == Form::Connect || !setting.value.contains(':'))
    }

    /// Takes a setting without a key of its own. If its value is stored elsewhere, that is reported.
    fn take_any(&mut self, name: &str) -> Option<Setting> {
        let setting = self.settings.take(name)?;
        if self.reference(&setting).is_none() {
            return Some(setting);
        }
        let meaning = "Its value is stored elsewhere, and so it counts as not set: write the value into a copy of the file, and import that";
        self.find(Level::Differs, &setting, meaning);
        None
    }

    /// Takes a setting that becomes a key. If its value is stored elsewhere, that is reported.
    fn take(&mut self, name: &str, section: Section, key: &str) -> Option<Setting> {
        let setting = self.settings.take(name)?;
        self.for_key(setting, section, key)
    }

    fn for_key(&mut self, setting: Setting, section: Section, key: &str) -> Option<Setting> {
        self.unless_stored_elsewhere(setting, &variable(section, key))
    }

    /// The setting, unless its value is stored elsewhere, so that it has to come from this variable.
    fn unless_stored_elsewhere(&mut self, setting: Setting, variable: &str) -> Option<Setting> {
        let meaning = match self.reference(&setting) {
            None => return Some(setting),
            Some(Reference::Variable(name)) => start_with(variable, &name),
            Some(_) => format!("Its value is stored elsewhere: start the router with {variable} set to it"),
        };
        self.variables.push(variable.to_owned());
        self.find(Level::ToDo, &setting, meaning);
        None
    }

    /// Writes a key that comes from a setting. `value` is TOML.
    fn set(&mut self, section: Section, key: impl Into<String>, value: impl Into<String>, setting: &Setting) {
        self.document.set(section, key, value, comment(setting));
    }

    /// Writes the text of a setting as a key.
    fn text(&mut self, section: Section, key: &str, setting: &Setting) {
        self.set(section, key, literal(&setting.value), setting);
    }

    /// Writes a secret property of `[kafka]`, which refers to a file.
    fn secret(&mut self, property: &str, setting: &Setting) {
        let place = format!("secrets/kafka_{}", property.replace('.', "_"));
        if let Some(path) = self.secret_file(setting, &variable(Section::Kafka, property), &place) {
            self.document.set_to_do(
                Section::Kafka,
                key(property),
                file(&path),
                comment(setting),
                "\"secret\"",
            );
        }
    }

    /// The file of a secret: the one that it is in already, or `place`, where a finding asks the user to put it. `None` if the
    /// secret must come from the environment variable.
    fn secret_file(&mut self, setting: &Setting, variable: &str, place: &str) -> Option<String> {
        let what = match self.reference(setting) {
            Some(Reference::WholeFile(path)) => return Some(path),
            Some(Reference::Variable(name)) => {
                self.find(Level::ToDo, setting, start_with(variable, &name));
                self.variables.push(variable.to_owned());
                return None;
            }
            Some(Reference::Property { path, key }) => Some(format!("the value of `{key}` in {path}")),
            Some(Reference::Other(_)) => Some("the value that it refers to".to_owned()),
            None => None,
        };
        let meaning = match what {
            Some(what) => format!(
                "Write {what}, and nothing else, to the file {place} next to the configuration, or name another file there"
            ),
            None => format!(
                "Write it, and nothing else, to the file {place} next to the configuration, readable only by the router's user"
            ),
        };
        self.find(Level::ToDo, setting, meaning);
        Some(place.to_owned())
    }
}

fn start_with(variable: &str, holder: &str) -> String {
    format!("Start the router with {variable} set to the value of {holder}")
}

/// The origin of a key, on one line.
fn comment(setting: &Setting) -> String {
    setting.name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The environment variable that sets a key.
fn variable(section: Section, key: &str) -> String {
    let (section, separator) = match section {
        Section::Postgres => ("POSTGRES", "__"),
        Section::Outbox => ("OUTBOX", "__"),
        Section::Route | Section::Rule => ("ROUTE", "__"),
        Section::Kafka => ("KAFKA", "_"),
        Section::Topics => ("TOPICS", "__"),
        Section::Delivery => ("DELIVERY", "__"),
    };
    format!("OUTBOX_ROUTER_{section}__{}", key.replace('.', separator).to_ascii_uppercase())
}

/// Refuses connectors for other databases, whose settings have other meanings.
fn is_for_postgres(translation: &mut Translation) -> Result<(), Error> {
    translation.settings.take("name");
    let Some(class) = translation.settings.take("connector.class") else { return Ok(()) };
    // Connect accepts the full class name, or its last part with or without `Connector`
    let last = class.value.rsplit('.').next().unwrap_or_default();
    if matches!(last, "PostgresConnector" | "Postgres") {
        return Ok(());
    }
    Err(Error::usage(
        ErrorCode::DebeziumConfiguration,
        format!("`connector.class` is {}, and the router reads only Postgres", class.value),
        "Name the configuration of an io.debezium.connector.postgresql.PostgresConnector",
    ))
}
