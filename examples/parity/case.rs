//! A case: a folder with a connector's file as users write it, a table, and rows.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The placeholder for one of `each`.
const EACH: &str = "@EACH@";

/// The settings in case.toml.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// The `id` header of the last record.
    pub(crate) last_id: String,
    /// Whether Debezium has OpenTelemetry on its class path.
    pub(crate) tracing: bool,
    /// Whether to ignore the order of members of JSON objects in values, where Debezium's is random.
    pub(crate) any_member_order: bool,
    /// The case runs once for each of these, in place of `@EACH@`.
    each: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let last_id = "ffffffff-ffff-ffff-ffff-ffffffffffff".to_owned();
        Settings { last_id, tracing: false, any_member_order: false, each: Vec::new() }
    }
}

/// A table with rows, and a connector for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Case {
    /// The folder's name, followed by one of `each` if there are any.
    pub(crate) name: String,
    /// SQL that creates tables, publication and anything else needed.
    pub(crate) table: String,
    /// SQL that writes the rows after the slots were created, with its own BEGIN and COMMIT.
    pub(crate) rows: String,
    pub(crate) settings: Settings,
    /// The expected differences.
    pub(crate) known: Vec<Known>,
    pub(crate) connector: String,
}

/// An expected difference, from a line `- ID FIELD: why` of differences.md.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) id: String,
    pub(crate) field: String,
}

/// The values of the connector's placeholders.
#[derive(Debug, Clone)]
pub(crate) struct Place<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) user: &'a str,
    pub(crate) database: &'a str,
    pub(crate) slot: &'a str,
}

impl Case {
    /// The connector's file with the placeholders replaced.
    pub(crate) fn connector(&self, place: &Place<'_>) -> String {
        self.connector
            .replace("@HOST@", place.host)
            .replace("@PORT@", &place.port.to_string())
            .replace("@USER@", place.user)
            .replace("@SLOT@", place.slot)
            .replace("@DATABASE@", place.database)
    }

    /// A name for databases and slots, of lower-case letters, digits and underscores.
    pub(crate) fn identifier(&self) -> String {
        let fold = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        format!("parity_{}", self.name.chars().map(fold).collect::<String>())
    }

    /// A setting of the event router, whatever the name of its transform.
    pub(crate) fn setting(&self, name: &str) -> Option<String> {
        let file: Value = serde_json::from_str(&self.connector).ok()?;
        let config: &Map<String, Value> = file.get("config")?.as_object()?;
        let ending = format!(".{name}");
        config
            .iter()
            .find(|(key, _)| key.ends_with(&ending))
            .and_then(|(_, value)| Some(value.as_str()?.to_owned()))
    }
}

/// All cases in `folder`, by name.
pub(crate) fn read_all(folder: &Path) -> anyhow::Result<Vec<Case>> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let mut folders = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("list {}", folder.display()))?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    let mut cases = Vec::new();
    for folder in folders {
        cases.extend(read(&folder)?);
    }
    Ok(cases)
}

fn read(folder: &Path) -> anyhow::Result<Vec<Case>> {
    let name = folder.file_name().context("the case has no name")?.to_string_lossy().into_owned();
    let text = |file: &str| {
        let path = folder.join(file);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let optional = |file: &str| folder.join(file).exists().then(|| text(file)).transpose();
    let rows = text("rows.sql")?;
    let settings: Settings = toml::from_str(&optional("case.toml")?.unwrap_or_default())
        .with_context(|| format!("read {}", folder.join("case.toml").display()))?;
    let case = Case {
        settings,
        connector: text("connector.json")?,
        table: text("table.sql")?,
        known: known(&optional("differences.md")?.unwrap_or_default())
            .with_context(|| format!("read {}", folder.join("differences.md").display()))?,
        name,
        rows,
    };
    let file: Value = serde_json::from_str(&case.connector)
        .with_context(|| format!("parse {}", folder.join("connector.json").display()))?;
    if !file.get("config").is_some_and(Value::is_object) {
        bail!("{} has no member `config`", folder.join("connector.json").display());
    }
    let each = case.settings.each.clone();
    if each.is_empty() {
        return Ok(vec![case]);
    }
    let one = |value: &String| Case {
        name: format!("{}-{value}", case.name),
        connector: case.connector.replace(EACH, value),
        table: case.table.replace(EACH, value),
        rows: case.rows.replace(EACH, value),
        ..case.clone()
    };
    Ok(each.iter().map(one).collect())
}

/// The differences that a differences.md lists: `- ID FIELD: why`, where FIELD may have several words.
fn known(text: &str) -> anyhow::Result<Vec<Known>> {
    let listed = text.lines().filter_map(|line| line.strip_prefix("- "));
    listed
        .map(|line| {
            let named = line.split_once(':').and_then(|(named, _)| named.trim().split_once(' '));
            let (id, field) = named.with_context(|| format!("a line is not `- ID FIELD: why`: {line}"))?;
            Ok(Known { id: id.to_owned(), field: field.trim().to_owned() })
        })
        .collect()
}
