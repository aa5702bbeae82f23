//! SASL, which Java configures with `sasl.jaas.config`.

use super::Translation;
use crate::import::findings::Level;
use crate::import::reference::Reference;
use crate::import::settings::{Setting, Settings};
use crate::import::write::{Section, key, quoted};

/// The origin in comments, instead of the setting's secret value.
const JAAS: &str = "sasl.jaas.config";

pub(super) fn translate(translation: &mut Translation, producer: &mut Settings) {
    if let Some(setting) = producer.get("sasl.mechanism").cloned() {
        let mechanism = setting.value.to_ascii_uppercase();
        if matches!(mechanism.as_str(), "OAUTHBEARER" | "AWS_MSK_IAM") {
            producer.take("sasl.mechanism");
            let meaning =
                format!("This build of librdkafka has no {mechanism}: use SCRAM or TLS certificates");
            translation.find(Level::NoEquivalent, &setting, meaning);
        } else if setting.value == "GSSAPI" {
            let meaning = "Kerberos needs a router that was built with `--features gssapi`";
            translation.find(Level::ToDo, &setting, meaning);
        }
    }
    if let Some(setting) = producer.take(JAAS) {
        jaas(translation, &setting);
    }
    for prefix in [
        "sasl.oauthbearer.",
        "sasl.login.",
        "sasl.kerberos.kinit.",
        "sasl.kerberos.ticket.",
        "sasl.kerberos.min.",
    ] {
        let meaning = "Only concerns how Java logs in; the router uses a user and a password";
        translation.find_all(Level::NoEquivalent, producer.take_prefix(prefix), meaning);
    }
    if let Some(setting) = producer.take("sasl.client.callback.handler.class") {
        let meaning = "Classes of Java do not run; the router uses a user and a password";
        translation.find(Level::NoEquivalent, &setting, meaning);
    }
}

fn jaas(translation: &mut Translation, setting: &Setting) {
    // the whole setting may be stored elsewhere
    if let Some(reference) = translation.reference(setting)
        && !matches!(reference, Reference::Other(_))
    {
        let meaning = "The router takes user and password apart: set `\"sasl.username\"` in [kafka], and \
                       `\"sasl.password\"` as a file of its own";
        return translation.find(Level::ToDo, setting, meaning);
    }
    let Some(login) = Login::parse(&setting.value) else {
        let meaning = "It cannot be read: set `\"sasl.username\"` and `\"sasl.password\"` in [kafka]";
        return translation.find(Level::NoEquivalent, setting, meaning);
    };
    match login.module.rsplit('.').next().unwrap_or_default() {
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
                    translation.set(Section::Kafka, key(property), quoted(&value), setting);
                }
            }
        }
        other => {
            let meaning =
                format!("The router does not log in as {other} does: use SCRAM or TLS certificates");
            translation.find(Level::NoEquivalent, setting, meaning);
        }
    }
}

/// `org.apache...PlainLoginModule required username="shop" password="...";`
struct Login {
    module: String,
    options: Vec<(String, String)>,
}

impl Login {
    fn parse(text: &str) -> Option<Self> {
        let mut tokens = tokens(text.trim().trim_end_matches(';'))?.into_iter();
        let module = tokens.next()?;
        tokens
            .next()
            .filter(|flag| ["required", "requisite", "sufficient", "optional"].contains(&flag.as_str()))?;
        let options = tokens.map(|token| token.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned())));
        Some(Login { module, options: options.collect::<Option<_>>()? })
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
        let login = Login::parse(
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
            assert!(Login::parse(text).is_none(), "{text}");
        }
    }
}
