//! `database.*`, slot and publication (`PostgresConnectorConfig`).

use super::{Translation, comment};
use crate::import::findings::Level;
use crate::import::settings::Setting;
use crate::import::write::{Section, literal, quoted};

/// The file in which the user should put a password from the connector's file.
const PASSWORD_FILE: &str = "secrets/postgres_password";

/// Debezium's defaults (`ReplicationConnection.Builder`).
const SLOT: &str = "debezium";
const PUBLICATION: &str = "dbz_publication";

pub(super) fn translate(translation: &mut Translation) {
    url(translation);
    password(translation);
    tls(translation);
    slot(translation);
    flushing(translation);
}

/// The parts of the connection: setting, libpq's keyword, and libpq's variable.
const PARTS: [(&str, &str, &str); 5] = [
    ("database.hostname", "host", "PGHOST"),
    ("database.port", "port", "PGPORT"),
    ("database.user", "user", "PGUSER"),
    ("database.dbname", "dbname", "PGDATABASE"),
    ("database.sslmode", "sslmode", "PGSSLMODE"),
];

/// Writes a URL with the known parts. Parts that are stored elsewhere have to come from libpq's variables.
fn url(translation: &mut Translation) {
    let mut known: Vec<(&str, String)> = Vec::new();
    let mut from = Vec::new();
    for (name, keyword, variable) in PARTS {
        let Some(setting) = translation.settings.take(name) else { continue };
        let setting = translation.unless_stored_elsewhere(setting, variable);
        if let Some(setting) = setting.filter(|setting| !setting.value.is_empty()) {
            from.push(comment(&setting));
            known.push((keyword, setting.value));
        }
    }
    for (name, keyword) in [
        ("database.sslrootcert", "sslrootcert"),
        ("database.sslcert", "sslcert"),
        ("database.sslkey", "sslkey"),
    ] {
        let Some(setting) = translation.take_any(name).filter(|setting| !setting.value.is_empty()) else {
            continue;
        };
        from.push(comment(&setting));
        known.push((keyword, setting.value.clone()));
        if keyword == "sslkey" {
            let meaning = "The router reads PEM, and Java's driver DER: `openssl pkcs8 -inform DER -in KEY \
                           -out KEY.pem`, unless it is PEM already; only the router's user may read it";
            translation.find(Level::ToDo, &setting, meaning);
        }
    }
    translation.document.set(Section::Postgres, "url", literal(&write_url(&known)), from.join(", "));
}

fn write_url(known: &[(&str, String)]) -> String {
    let get =
        |keyword: &str| known.iter().find(|(name, _)| *name == keyword).map(|(_, value)| value.as_str());
    let host = get("host").unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if host.is_empty() || !host.chars().all(plain) {
        let quote = |value: &str| {
            let bare = |c: char| c.is_ascii_alphanumeric() || "._-/:,".contains(c);
            match value.chars().all(bare) {
                true => value.to_owned(),
                false => format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'")),
            }
        };
        let pairs = known.iter().map(|(name, value)| format!("{name}={}", quote(value)));
        return pairs.collect::<Vec<_>>().join(" ");
    }
    let mut url = "postgres://".to_owned();
    if let Some(user) = get("user") {
        url += &format!("{}@", encode(user));
    }
    url += host;
    if let Some(port) = get("port") {
        url += &format!(":{}", encode(port));
    }
    if let Some(dbname) = get("dbname") {
        url += &format!("/{}", encode(dbname));
    }
    let options = known.iter().filter(|(name, _)| name.starts_with("ssl"));
    // a slash is valid in a query, and paths stay readable
    let options: Vec<String> =
        options.map(|(name, value)| format!("{name}={}", encode(value).replace("%2F", "/"))).collect();
    if !options.is_empty() {
        url += &format!("?{}", options.join("&"));
    }
    url
}

/// Percent-encodes everything except RFC 3986's unreserved characters.
fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn password(translation: &mut Translation) {
    let Some(setting) = translation.settings.take("database.password") else { return };
    if let Some(path) = translation.secret_file(&setting, "PGPASSWORD", PASSWORD_FILE) {
        translation.set(Section::Postgres, "password_file", literal(&path), &setting);
    }
}

fn tls(translation: &mut Translation) {
    if let Some(setting) = translation.settings.take("database.sslpassword") {
        let meaning = "The router reads keys without a password: remove it with openssl, and let only the router's user read the key";
        translation.find(Level::ToDo, &setting, meaning);
    }
    if let Some(setting) = translation.take_any("database.sslfactory") {
        let meaning = "The router cannot run Java classes: `sslmode` in the URL decides how much of the server's certificate is verified";
        translation.find(Level::NoEquivalent, &setting, meaning);
    }
}

fn slot(translation: &mut Translation) {
    let plugin = translation.take_any("plugin.name");
    let is_readable = plugin.as_ref().is_some_and(|plugin| plugin.value == "pgoutput");
    if !is_readable {
        let meaning = "The router reads slots with the plugin pgoutput only, and cannot take this one over: run \
                       `outbox-router init`, which creates a slot and a publication for the router, then stop the \
                       connector, then start the router; events in between arrive twice";
        match &plugin {
            Some(plugin) => translation.find(Level::NoEquivalent, plugin, meaning),
            None => {
                let meaning = format!("By default it is decoderbufs. {meaning}");
                translation.find_unset(Level::NoEquivalent, "plugin.name", meaning);
            }
        }
    }
    if !is_readable || translation.keeps_slot {
        translation.keeps_slot = true;
        return connectors_own(translation);
    }
    let slot = translation.take("slot.name", Section::Postgres, "slot");
    named(translation, "slot", slot.as_ref(), "slot.name", SLOT);
    let publication = translation.take("publication.name", Section::Postgres, "publication");
    named(translation, "publication", publication.as_ref(), "publication.name", PUBLICATION);
    let meaning = "Debezium's publication has all tables unless somebody else created it. It can stay, but one of the \
                   outbox alone spares the router from reading the changes of all other tables";
    match translation.settings.take("publication.autocreate.mode") {
        Some(mode) if !mode.value.eq_ignore_ascii_case("all_tables") => {}
        Some(mode) => translation.find(Level::Note, &mode, meaning),
        None if translation.has_found("publication.autocreate.mode") => {}
        None => translation.find_unset(Level::Note, "publication.autocreate.mode", meaning),
    }
    if let Some(setting) = translation.take_any("slot.drop.on.stop").filter(Setting::is_true) {
        let meaning = "Stopping the connector, or changing its configuration, drops the slot, and the router loses what \
                       nobody has read: while the connector runs, and connected to its database, copy the slot with \
                       pg_copy_logical_replication_slot, and set `slot` in [postgres] to the copy";
        translation.find(Level::ToDo, &setting, meaning);
    }
}

/// Reports the settings of a slot and a publication that the router does not use.
fn connectors_own(translation: &mut Translation) {
    let meaning = "The router has one of its own: drop this one once no connector uses it";
    for name in ["slot.name", "publication.name"] {
        let setting = translation.settings.take(name);
        setting.iter().for_each(|setting| translation.find(Level::Note, setting, meaning));
    }
    if let Some(setting) = translation.take_any("slot.drop.on.stop").filter(Setting::is_true) {
        let meaning = "Only concerns the connector's slot; the router has one of its own";
        translation.find(Level::Ignored, &setting, meaning);
    }
}

fn named(translation: &mut Translation, key: &str, setting: Option<&Setting>, name: &str, default: &str) {
    match setting {
        Some(setting) => translation.text(Section::Postgres, key, setting),
        // a value that is stored elsewhere was already reported
        None if translation.has_found(name) => {}
        None => {
            let from = format!("{name} is not set");
            translation.document.set(Section::Postgres, key, quoted(default), from);
        }
    }
}

/// When the slot advances, and so where it is when the connector stops.
fn flushing(translation: &mut Translation) {
    let manual = |setting: &Setting| match setting.name.contains("flush.lsn.source") {
        true => setting.value.eq_ignore_ascii_case("false"),
        false => setting.value.eq_ignore_ascii_case("manual"),
    };
    for name in ["lsn.flush.mode", "flush.lsn.source"] {
        let Some(setting) = translation.take_any(name) else { continue };
        let (level, meaning) = match manual(&setting) && !translation.keeps_slot {
            true => (
                Level::ToDo,
                "Debezium does not move the slot, and so the router would send everything again that came after it was last moved by hand. After stopping the connector, advance it to `lsn_commit` of the stored offset",
            ),
            false => (
                Level::Ignored,
                "Only concerns how Debezium moves the slot; the router moves it after acknowledgements",
            ),
        };
        translation.find(level, &setting, meaning);
    }
    for name in ["offset.mismatch.strategy", "internal.slot.seek.to.known.offset.on.start"] {
        let Some(setting) = translation.take_any(name) else { continue };
        translation.find(
            Level::Note,
            &setting,
            "Only concerns the way back, when the slot is ahead of Debezium's stored offset: with trust_slot it continues from the slot, with trust_offset and trust_greater_lsn it tries to move the slot back and fails",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_those_of_libpq() {
        let write = |known: &[(&str, &str)]| {
            write_url(&known.iter().map(|(name, value)| (*name, (*value).to_owned())).collect::<Vec<_>>())
        };
        assert_eq!(
            write(&[
                ("host", "db.local"),
                ("port", "5433"),
                ("user", "a@b"),
                ("dbname", "my shop"),
                ("sslmode", "require")
            ]),
            "postgres://a%40b@db.local:5433/my%20shop?sslmode=require"
        );
        assert_eq!(write(&[("host", "::1"), ("dbname", "it's")]), r"host=::1 dbname='it\'s'");
        assert_eq!(write(&[("user", "debezium")]), "user=debezium");
        assert_eq!(write(&[]), "");
    }
}
