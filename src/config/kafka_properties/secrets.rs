//! Which values of librdkafka's properties must not be shown.

use std::borrow::Cow;

use pg_logical::REDACTED;

/// Whether the value of this property must not be shown: passwords, secrets, private keys.
pub fn is_secret(property: &str) -> bool {
    let words = ["password", "passphrase", "secret", "jaas", "key.pem", "oauthbearer.config"];
    words.iter().any(|word| property.contains(word))
}

/// Whether the value contains a secret, by the property's name or in a URL.
pub(in crate::config) fn contains_secret(property: &str, value: &str) -> bool {
    is_secret(property) || user_of_url(value).is_some()
}

/// Whether the value names a file with a secret, such as a private key. librdkafka does not warn if others can read it.
pub(in crate::config) fn names_secret_file(property: &str) -> bool {
    let words = ["key.location", "keystore.location", "private.key.file", "assertion.file", "keytab"];
    words.iter().any(|word| property.ends_with(word))
}

/// The value as it may be shown.
pub fn shown<'v>(property: &str, value: &'v str) -> Cow<'v, str> {
    // as an argument of `password_command`, a word of this command may be a password
    if is_secret(property) || property == "sasl.kerberos.kinit.cmd" {
        return REDACTED.into();
    }
    let user = user_of_url(value).and_then(|(start, end)| Some((value.get(..start)?, value.get(end..)?)));
    let value: Cow<'v, str> = match user {
        Some((before, after)) => format!("{before}{REDACTED}{after}").into(),
        None => value.into(),
    };
    // a token server may take a key as a parameter
    match value.split_once('?').filter(|(before, _)| before.contains("://")) {
        Some((before, _)) => format!("{before}?{REDACTED}").into(),
        None => value,
    }
}

/// A line of librdkafka's log as it may be shown. With `debug = "conf"` it logs all properties, and hides only those that it knows
/// to be secret.
pub fn shown_log_line<'m>(facility: &str, message: &'m str) -> Cow<'m, str> {
    match message.split_once(" = ") {
        Some((name, value)) if facility == "CONF" => {
            let property = name.rsplit(' ').next().unwrap_or_default();
            format!("{name} = {}", shown(property, value)).into()
        }
        _ => without_users_of_urls(message),
    }
}

/// A message of librdkafka as it may be shown: it may quote a URL.
pub fn without_users_of_urls(message: &str) -> Cow<'_, str> {
    if !message.contains("://") {
        return message.into();
    }
    let ends = |c: char| c.is_whitespace() || c == '"';
    message.split_inclusive(ends).map(|word| shown("", word)).collect::<Vec<_>>().concat().into()
}

/// The place of the user name and the password in a URL. A password may contain any character.
fn user_of_url(value: &str) -> Option<(usize, usize)> {
    let start = value.find("://")? + "://".len();
    let end = value.rfind('@')?;
    (start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_recognized_by_their_names() {
        for name in [
            "sasl.password",
            "ssl.key.password",
            "ssl.key.pem",
            "ssl.keystore.password",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.assertion.private.key.passphrase",
            "sasl.oauthbearer.assertion.private.key.pem",
            "sasl.oauthbearer.config",
            "sasl.jaas.config",
        ] {
            assert!(is_secret(name), "{name}");
            assert_eq!(shown(name, "hunter2"), REDACTED);
        }
        for name in ["bootstrap.servers", "ssl.key.location", "ssl.ca.pem", "sasl.username"] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn a_url_is_shown_without_what_logs_in() {
        for (url, expected) in [
            ("https://user:secret@host/", "https://****@host/"),
            ("https://secret@host/", "https://****@host/"),
            ("https://user:se@cr/et?@host/token", "https://****@host/token"),
            ("https://user:my secret,@host/", "https://****@host/"),
            ("https://host/token?key=secret", "https://host/token?****"),
            ("https://user:secret@host/?key=secret", "https://****@host/?****"),
            ("https://host:8080/token", "https://host:8080/token"),
            ("https://@host/", "https://@host/"),
            ("SSL://a:1,SSL://b:2", "SSL://a:1,SSL://b:2"),
            ("kafka/host@REALM", "kafka/host@REALM"),
            ("a?b", "a?b"),
        ] {
            assert_eq!(shown("sasl.oauthbearer.token.endpoint.url", url), expected);
        }
        assert!(
            contains_secret("x", "https://user:secret@host/") && !contains_secret("x", "kafka/host@REALM")
        );
    }

    #[test]
    fn a_message_is_shown_without_the_users_of_its_urls() {
        for (message, expected) in [
            (
                "Failed to retrieve OIDC token from \"https://user:secret@host/\": refused (-1)",
                "Failed to retrieve OIDC token from \"https://****@host/\": refused (-1)",
            ),
            ("sasl_ssl://b:9093/1: ask kafka@REALM?", "sasl_ssl://b:9093/1: ask kafka@REALM?"),
            ("see http://user:secret@a:1\nand http://b", "see http://****@a:1\nand http://b"),
            ("user@host", "user@host"),
        ] {
            assert_eq!(without_users_of_urls(message), expected);
            assert_eq!(shown_log_line("OIDC", message), expected);
        }
    }

    #[test]
    fn a_logged_property_is_shown_as_in_the_configuration() {
        for (line, expected) in [
            (
                "[thrd:app]:   sasl.kerberos.kinit.cmd = kinit secret",
                "[thrd:app]:   sasl.kerberos.kinit.cmd = ****",
            ),
            ("[thrd:app]:   a.url = http://user:my secret@host", "[thrd:app]:   a.url = http://****@host"),
            ("[thrd:app]:   linger.ms = 5", "[thrd:app]:   linger.ms = 5"),
            ("[thrd:app]: Client configuration:", "[thrd:app]: Client configuration:"),
        ] {
            assert_eq!(shown_log_line("CONF", line), expected);
        }
    }
}
