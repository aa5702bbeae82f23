//! SASL, which Java configures with `sasl.jaas.config`. librdkafka cannot create a client for a mechanism that it lacks.

mod oauth;

use super::Translation;
use crate::config::kafka_properties::is_built_with;
use crate::import::findings::Level;
use crate::import::reference::Reference;
use crate::import::settings::{Setting, Settings};
use crate::import::write::{Section, key, literal, quoted};

/// The login of a Java client, with its password.
const JAAS: &str = "sasl.jaas.config";

/// librdkafka's name for Kerberos among its features.
const GSSAPI: &str = "sasl_gssapi";
const KERBEROS: &str =
    "Kerberos needs a router that was built with `--features gssapi`; import the file again with that one";

pub(super) fn translate(translation: &mut Translation, producer: &mut Settings) {
    match choose(translation, producer) {
        Login::OAuth(client) => oauth::write(translation, producer, client),
        Login::Other => {
            if let Some(setting) = producer.take(JAAS) {
                jaas(translation, &setting);
            }
        }
        Login::None => {
            without_sasl(translation, producer);
            let meaning = "It belongs to a kind of login that the router does not support";
            let of_login = producer.take(JAAS);
            of_login.iter().for_each(|setting| translation.find(Level::NoEquivalent, setting, meaning));
        }
    }
    for prefix in [
        "sasl.oauthbearer.",
        "sasl.login.",
        "sasl.kerberos.kinit.",
        "sasl.kerberos.ticket.",
        "sasl.kerberos.min.",
    ] {
        let meaning = "Only concerns how Java logs in";
        translation.find_all(Level::NoEquivalent, producer.take_prefix(prefix), meaning);
    }
    if let Some(setting) = producer.take("sasl.client.callback.handler.class") {
        let meaning = "The router cannot run Java classes";
        translation.find(Level::NoEquivalent, &setting, meaning);
    }
}

/// How the router logs in.
enum Login {
    /// As an OAuth client.
    OAuth(oauth::Client),
    /// With a password or a certificate, or by Kerberos.
    Other,
    /// Not: it cannot do what the connector does.
    None,
}

/// Decides how to log in. A mechanism that the router lacks is reported.
fn choose(translation: &mut Translation, producer: &mut Settings) -> Login {
    let Some(setting) = producer.get("sasl.mechanism").cloned() else {
        // Kerberos is the default in Java
        if !uses_sasl(producer) || is_built_with(GSSAPI) {
            return Login::Other;
        }
        translation.find_unset(
            Level::ToDo,
            "producer.override.sasl.mechanism",
            format!("By default it is GSSAPI: {KERBEROS}"),
        );
        return Login::None;
    };
    if translation.reference(&setting).is_some() {
        return Login::Other;
    }
    let found = match setting.value.to_ascii_uppercase().as_str() {
        "GSSAPI" if is_built_with(GSSAPI) => return Login::Other,
        "GSSAPI" => (Level::ToDo, KERBEROS.to_owned()),
        "OAUTHBEARER" => match oauth::read(translation, producer) {
            Ok(client) => return Login::OAuth(client),
            Err(found) => found,
        },
        "PLAIN" | "SCRAM-SHA-256" | "SCRAM-SHA-512" => return Login::Other,
        other => (Level::NoEquivalent, format!("librdkafka has no {other}: use SCRAM or TLS certificates")),
    };
    producer.take("sasl.mechanism");
    translation.find(found.0, &setting, found.1);
    Login::None
}

fn uses_sasl(producer: &Settings) -> bool {
    let protocol = producer.get("security.protocol");
    protocol.is_some_and(|protocol| protocol.value.to_ascii_uppercase().starts_with("SASL_"))
}

/// Leaves SASL out, because librdkafka does not start with a mechanism that it lacks.
fn without_sasl(translation: &mut Translation, producer: &mut Settings) {
    if !uses_sasl(producer) {
        return;
    }
    let Some(setting) = producer.take("security.protocol") else { return };
    if setting.value.eq_ignore_ascii_case("SASL_SSL") {
        translation.set(Section::Kafka, key("security.protocol"), quoted("SSL"), &setting);
    }
    let meaning = "The configuration leaves SASL out, so that it can be loaded: once you know how the router will log in, set \
                   `\"security.protocol\"`, `\"sasl.mechanism\"` and what belongs to it in [kafka]";
    translation.find(Level::ToDo, &setting, meaning);
}

fn jaas(translation: &mut Translation, setting: &Setting) {
    // the whole setting may be stored elsewhere
    if let Some(reference) = translation.reference(setting)
        && !matches!(reference, Reference::Other(_))
    {
        let meaning = "The router needs user and password separately: set `\"sasl.username\"` in [kafka], and \
                       `\"sasl.password\"` as a file of its own";
        return translation.find(Level::ToDo, setting, meaning);
    }
    let Some(login) = Jaas::parse(&setting.value) else {
        let meaning = "The router cannot read it: set `\"sasl.username\"` and `\"sasl.password\"` in [kafka]";
        return translation.find(Level::NoEquivalent, setting, meaning);
    };
    match login.class() {
        "PlainLoginModule" | "ScramLoginModule" => {
            let member = |name: &str| Some(Setting { name: setting.name.clone(), value: login.get(name)? });
            if let Some(user) = member("username")
                && let Some(user) = translation.for_key(user, Section::Kafka, "sasl.username")
            {
                translation.text(Section::Kafka, &key("sasl.username"), &user);
            }
            if let Some(password) = member("password") {
                translation.secret("sasl.password", &password);
            }
        }
        "Krb5LoginModule" => {
            for (member, property) in [
                ("keyTab", "sasl.kerberos.keytab"),
                ("principal", "sasl.kerberos.principal"),
                ("serviceName", "sasl.kerberos.service.name"),
            ] {
                if let Some(value) = login.get(member) {
                    translation.set(Section::Kafka, key(property), literal(&value), setting);
                }
            }
        }
        other => {
            let meaning = format!("The router does not support {other}: use SCRAM or TLS certificates");
            translation.find(Level::NoEquivalent, setting, meaning);
        }
    }
}

/// `org.apache...PlainLoginModule required username="shop" password="...";`
struct Jaas {
    module: String,
    options: Vec<(String, String)>,
}

impl Jaas {
    fn parse(text: &str) -> Option<Self> {
        let mut tokens = tokens(text.trim().trim_end_matches(';'))?.into_iter();
        let module = tokens.next()?;
        tokens
            .next()
            .filter(|flag| ["required", "requisite", "sufficient", "optional"].contains(&flag.as_str()))?;
        let options = tokens.map(|token| token.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned())));
        Some(Jaas { module, options: options.collect::<Option<_>>()? })
    }

    /// What the client tells the broker besides its token, as librdkafka reads it.
    fn extensions(&self) -> String {
        let named =
            |(name, value): &(String, String)| Some(format!("{}={value}", name.strip_prefix("extension_")?));
        self.options.iter().filter_map(named).collect::<Vec<_>>().join(",")
    }

    /// The name of the login module without its package.
    fn class(&self) -> &str {
        self.module.rsplit('.').next().unwrap_or_default()
    }

    fn get(&self, name: &str) -> Option<String> {
        self.options.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }
}

/// Splits at blanks; a value may be in quotes of either kind, with backslashes before literal characters.
fn tokens(text: &str) -> Option<Vec<String>> {
    let mut tokens = Vec::new();
    let mut token = String::new();
    let mut quote = None;
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        match (quote, character) {
            (Some(_), '\\') => token.push(rest.next()?),
            (Some(open), close) if open == close => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, blank) if blank.is_whitespace() => {
                if !token.is_empty() {
                    tokens.push(std::mem::take(&mut token));
                }
            }
            (_, other) => token.push(other),
        }
    }
    if !token.is_empty() {
        tokens.push(token);
    }
    quote.is_none().then_some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_read_as_java_writes_it() {
        let login = Jaas::parse(
            "org.apache.kafka.common.security.plain.PlainLoginModule required\n username=\"shop\" \
                                                                                           password='a \
                                                                                           \"b\\' ;';",
        )
        .unwrap();
        assert_eq!(login.module, "org.apache.kafka.common.security.plain.PlainLoginModule");
        assert_eq!(login.get("username").as_deref(), Some("shop"));
        assert_eq!(login.get("password").as_deref(), Some("a \"b' ;"));
        assert_eq!(login.get("x"), None);
    }

    #[test]
    fn what_is_no_login_is_none() {
        for text in ["", "x", "x needed a=b;", "x required a", "x required a=\"b", "x required a=\"\\"] {
            assert!(Jaas::parse(text).is_none(), "{text}");
        }
    }
}
