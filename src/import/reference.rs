//! References to values stored elsewhere: `${file:/run/secrets.properties:password}` for Connect's config providers,
//! `${DB_PASSWORD}` for Debezium Server.

/// Where a value is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reference {
    /// A file that contains only this value (`DirectoryConfigProvider`).
    WholeFile(String),
    /// An entry of a properties file (`FileConfigProvider`).
    Property {
        /// The file.
        path: String,
        /// The entry's name.
        key: String,
    },
    /// An environment variable (`EnvVarConfigProvider`, or an expression of Debezium Server).
    Variable(String),
    /// The reference of some other provider, as it was written.
    Other(String),
}

/// The reference in a setting of a connector, if there is one: `${provider:path:key}` or `${provider:key}`
/// (`ConfigTransformer`). The worker defines the providers' names; these are the usual ones.
pub(super) fn in_connect(value: &str) -> Option<Reference> {
    let (start, _) = value.match_indices("${").find(|(at, _)| {
        let inside = value.get(at + 2..).unwrap_or_default();
        inside.split_once('}').is_some_and(|(inside, _)| inside.contains(':'))
    })?;
    let (inside, after) = value.get(start + 2..)?.split_once('}')?;
    let (provider, rest) = inside.split_once(':')?;
    // with text around it, the setting is more than the stored value
    let alone = start == 0 && after.is_empty();
    Some(match (provider, rest.rsplit_once(':')) {
        ("file", Some((path, key))) if alone => {
            Reference::Property { path: path.to_owned(), key: key.to_owned() }
        }
        ("dir" | "directory", Some((path, key))) if alone => {
            Reference::WholeFile(format!("{}/{key}", path.trim_end_matches('/')))
        }
        ("env", None) if alone => Reference::Variable(rest.to_owned()),
        _ => Reference::Other(value.to_owned()),
    })
}

/// The same for Debezium Server: `${NAME}` or `${NAME:default}` (MicroProfile Config); `$$` stands for `$`.
pub(super) fn in_server(value: &str) -> Option<Reference> {
    let without_doubles = value.replace("$$", "\0");
    let start = without_doubles.find("${")?;
    let (inside, after) = without_doubles.get(start + 2..)?.split_once('}')?;
    if start > 0 || !after.is_empty() {
        return Some(Reference::Other(value.to_owned()));
    }
    Some(Reference::Variable(inside.split_once(':').map_or(inside, |(name, _)| name).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_of_connect() {
        let property = Reference::Property { path: "/run/db.properties".into(), key: "password".into() };
        assert_eq!(in_connect("${file:/run/db.properties:password}"), Some(property));
        assert_eq!(
            in_connect("${directory:/run/db/:password}"),
            Some(Reference::WholeFile("/run/db/password".into()))
        );
        assert_eq!(in_connect("${env:DB}"), Some(Reference::Variable("DB".into())));
        for other in ["${secrets:ns/name:key}", "x${env:DB}", "${env:A}${env:B}", "a ${b} ${vault:c}"] {
            assert_eq!(in_connect(other), Some(Reference::Other(other.into())), "{other}");
        }
        for none in ["outbox.event.${routedByValue}", "${", "$1", "", "${x}:"] {
            assert_eq!(in_connect(none), None, "{none}");
        }
    }

    #[test]
    fn expressions_of_debezium_server() {
        assert_eq!(in_server("${DB_PASSWORD}"), Some(Reference::Variable("DB_PASSWORD".into())));
        assert_eq!(in_server("${DB_HOST:localhost}"), Some(Reference::Variable("DB_HOST".into())));
        assert_eq!(in_server("db.${ZONE}"), Some(Reference::Other("db.${ZONE}".into())));
        for none in ["outbox.$${routedByValue}", "$1", "a"] {
            assert_eq!(in_server(none), None, "{none}");
        }
    }
}
