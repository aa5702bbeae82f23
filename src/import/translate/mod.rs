//! Each subject takes its settings out of the connector, writes keys, and reports findings.

mod converters;
mod kafka;
mod known;
mod postgres;
mod routing;
mod sasl;
mod table;
mod topics;
mod transforms;

use super::Import;
use super::connector::{Connector, Form};
use super::findings::{Finding, Level, shown, shown_name};
use super::reference::{self, Reference};
use super::settings::{Setting, Settings};
use super::write::{Document, Section, file, key, quoted};
use crate::error::Error;

/// Translates the subjects in the order of the file that is written.
pub(super) fn translate(connector: Connector) -> Result<Import, Error> {
    let mut translation = Translation {
        form: connector.form,
        settings: connector.settings,
        document: Document::default(),
        findings: Vec::new(),
    };
    is_for_postgres(&mut translation)?;
    for setting in &connector.unread {
        let meaning = "Connect does not read it: the connector names no such converter, and the worker's takes its \
                       options from the worker";
        translation.find(Level::Ignored, setting, meaning);
    }
    let mut chain = transforms::read(&mut translation)?;
    let topics = table::translate(&mut translation, &chain);
    let value = routing::translate(&mut translation, std::mem::take(&mut chain.router.options));
    transforms::others(&mut translation, chain, &topics);
    converters::translate(&mut translation, &value);
    postgres::translate(&mut translation);
    kafka::translate(&mut translation);
    topics::translate(&mut translation);
    known::translate(&mut translation);
    Ok(translation.finish())
}

/// The state that the subjects share.
struct Translation {
    form: Form,
    settings: Settings,
    document: Document,
    findings: Vec<Finding>,
}

impl Translation {
    fn finish(mut self) -> Import {
        for (_, setting) in std::mem::take(&mut self.settings).into_rest() {
            self.find(
                Level::NoEquivalent,
                &setting,
                "Neither Debezium 3, Kafka Connect nor Kafka's producer is known to have it: look up what \
                 it does",
            );
        }
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

    /// Reports something about a setting that is not set.
    fn find_unset(&mut self, level: Level, name: &str, meaning: impl Into<String>) {
        let meaning = meaning.into();
        self.findings.push(Finding { level, setting: name.to_owned(), value: None, meaning });
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

    /// Takes a setting whose value is in the file. A setting stored elsewhere is reported; `key` is what it would become.
    fn take(&mut self, name: &str, section: Section, key: &str) -> Option<Setting> {
        let setting = self.settings.take(name)?;
        self.seen(setting, Some(&variable(section, key)))
    }

    /// The same for a setting without a key of its own.
    fn take_any(&mut self, name: &str) -> Option<Setting> {
        let setting = self.settings.take(name)?;
        self.seen(setting, None)
    }

    fn seen(&mut self, setting: Setting, variable: Option<&str>) -> Option<Setting> {
        let Some(reference) = self.reference(&setting) else { return Some(setting) };
        match (variable, reference) {
            (Some(variable), Reference::Variable(name)) => {
                let meaning = format!("Start the router with {variable} set to what {name} holds");
                self.find(Level::ToDo, &setting, meaning);
            }
            (Some(variable), _) => {
                let meaning = format!(
                    "Its value is kept elsewhere: start the router with {variable} set to \
                                       it"
                );
                self.find(Level::ToDo, &setting, meaning);
            }
            (None, _) => self.find(
                Level::Differs,
                &setting,
                "Its value is kept elsewhere, and is taken as not set here: put it into a copy of the file \
                 and import that",
            ),
        }
        None
    }

    /// Writes the text of a setting as a key.
    fn text(&mut self, section: Section, key: &str, setting: &Setting) {
        self.document.set(section, key, quoted(&setting.value), comment(setting));
    }

    /// Writes a secret property of `[kafka]`, which refers to a file.
    fn secret(&mut self, property: &str, setting: &Setting) {
        let place = format!("secrets/kafka_{}", property.replace('.', "_"));
        match self.reference(setting) {
            Some(Reference::WholeFile(path)) => {
                self.document.set(Section::Kafka, key(property), file(&path), comment(setting));
                return;
            }
            Some(Reference::Variable(name)) => {
                let variable = variable(Section::Kafka, property);
                self.find(
                    Level::ToDo,
                    setting,
                    format!("Start the router with {variable} set to what {name} holds"),
                );
                return;
            }
            Some(reference) => self.find(Level::ToDo, setting, moved(&reference, &place)),
            None => self.find(Level::ToDo, setting, put(&place)),
        }
        self.document.set(Section::Kafka, key(property), file(&place), comment(setting));
    }
}

/// What to do with a secret that was in the file.
fn put(place: &str) -> String {
    format!(
        "Write it alone into the file {place} beside the configuration, readable by the router's user only"
    )
}

/// What to do with a secret that is stored elsewhere.
fn moved(reference: &Reference, place: &str) -> String {
    let what = match reference {
        Reference::Property { path, key } => format!("the value of `{key}` in {path}"),
        Reference::WholeFile(path) => format!("the value in {path}"),
        Reference::Variable(name) => format!("the value of {name}"),
        Reference::Other(_) => "what it stands for".to_owned(),
    };
    format!("Write {what} alone into the file {place} beside the configuration, or name another file there")
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
        format!("`connector.class` is {}, and the router reads Postgres only", class.value),
        "Name the configuration of an io.debezium.connector.postgresql.PostgresConnector",
    ))
}
