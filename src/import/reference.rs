//! Values that stand elsewhere: `${file:/run/secrets.properties:password}` for Connect's config providers,
//! `${DB_PASSWORD}` for Debezium Server.

/// Where a value is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reference {
    /// A file that holds this value and nothing else (`DirectoryConfigProvider`).
    WholeFile(String),
    /// A member of a properties file (`FileConfigProvider`).
    Property {
        /// The file.
        path: String,
        /// The member's name.
        key: String,
    },
    /// A variable of the environment (`EnvVarConfigProvider`, or an expression of Debezium Server).
    Variable(String),
    /// Some other provider, in its own words.
    Other(String),
}

/// The reference in a setting of a connector, if there is one: `${provider:path:key}` or `${provider:key}`
/// (`ConfigTransformer`). How a provider is called is set in the worker; these are the usual names.
pub(super) fn in_connect(value: &str) -> Option<Reference> {
    let (start, _) = value.match_indices("${").find(|(at, _)| {
        let inside = value.get(at + 2..).unwrap_or_default();
        inside.split_once('}').is_some_and(|(inside, _)| inside.contains(':'))
    })?;
    let (inside, after) = value.get(start + 2..)?.split_once('}')?;
    let (provider, rest) = inside.split_once(':')?;
    // what stands around it makes it something else than the kept value
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
