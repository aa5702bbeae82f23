//! `postgres://user:password@host1:port1,host2:port2/dbname?parameter=value`
//!
//! See Postgres manual, "Connection URIs". Errors never quote the string: after an unencoded special character in the
//! password, the rest of it is parsed as host or port.

use super::keywords::Parameters;
use crate::error::InvalidConnInfo;

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// Whether the text is meant as a URI.
pub(super) fn is_uri(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| text.starts_with(scheme))
}

/// Reads a URI into parameters.
pub(super) fn parse(text: &str) -> Result<Parameters, InvalidConnInfo> {
    let mut parameters = Parameters::default();
    let scheme = SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme));
    let rest =
        scheme.ok_or_else(|| InvalidConnInfo::new("not a postgres:// URI", "Begin it with postgres://"))?;

    // as in libpq, the user part ends at the first @ before any slash, so a password may contain ? and #
    let authority_length = rest.find('/').unwrap_or(rest.len());
    let (authority, _) = rest.split_at_checked(authority_length).unwrap_or((rest, ""));
    let rest = match authority.split_once('@') {
        Some((user_part, _)) => {
            let (user, password) = user_part.split_once(':').map_or((user_part, None), |(u, p)| (u, Some(p)));
            parameters.set("user", decode(user)?, 0)?;
            if let Some(password) = password {
                parameters.set("password", decode(password)?, 0)?;
            }
            rest.get(user_part.len() + 1..).unwrap_or_default()
        }
        None => rest,
    };

    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (hosts, dbname) = rest.split_once('/').map_or((rest, None), |(hosts, dbname)| (hosts, Some(dbname)));
    if hosts.contains('@') || dbname.is_some_and(|dbname| dbname.contains('@')) {
        return Err(InvalidConnInfo::new("there is an `@` after the end of the user part", ENCODE));
    }
    set_hosts(&mut parameters, hosts)?;
    if let Some(dbname) = dbname.filter(|dbname| !dbname.is_empty()) {
        parameters.set("dbname", decode(dbname)?, 0)?;
    }
    if let Some(query) = query {
        let start = text.len() - query.len();
        set_query(&mut parameters, query, text.get(..start).map_or(0, |before| before.chars().count()))?;
    }
    Ok(parameters)
}

const ENCODE: &str = "If the user name or password has special characters, percent-encode them: \
    `@` is %40, `:` is %3A, `/` is %2F, `?` is %3F, `#` is %23, `%` is %25";

fn set_hosts(parameters: &mut Parameters, text: &str) -> Result<(), InvalidConnInfo> {
    let mut hosts = Vec::new();
    let mut ports = Vec::new();
    for part in text.split(',') {
        let (host, port) = match part.strip_prefix('[') {
            Some(rest) => {
                let (address, after) = rest.split_once(']').ok_or_else(|| {
                    InvalidConnInfo::new(
                        "an IPv6 address has no closing bracket",
                        "Write it as [2001:db8::1]",
                    )
                })?;
                if address.is_empty() {
                    return Err(InvalidConnInfo::new(
                        "an IPv6 address is empty",
                        "Write it as [2001:db8::1]",
                    ));
                }
                match after.strip_prefix(':') {
                    Some(port) => (address, port),
                    None if after.is_empty() => (address, ""),
                    None => {
                        return Err(InvalidConnInfo::new(
                            "something other than a port follows the bracket of an IPv6 address",
                            "Write it as [2001:db8::1]:5432",
                        ));
                    }
                }
            }
            None => part.split_once(':').unwrap_or((part, "")),
        };
        hosts.push(decode(host)?);
        ports.push(decode(port)?);
    }
    // a single empty part means no host; among several, an empty one means the default
    let several = hosts.len() > 1;
    if several || hosts.iter().any(|host| !host.is_empty()) {
        parameters.set("host", hosts.join(","), 0)?;
    }
    if several || ports.iter().any(|port| !port.is_empty()) {
        parameters.set("port", ports.join(","), 0)?;
    }
    Ok(())
}

fn set_query(parameters: &mut Parameters, query: &str, before: usize) -> Result<(), InvalidConnInfo> {
    let mut character = before + 1;
    for pair in query.split('&') {
        let length = pair.chars().count() + 1;
        if !pair.is_empty() {
            let Some((name, value)) = pair.split_once('=').filter(|(_, value)| !value.contains('=')) else {
                return Err(InvalidConnInfo::new(
                    format!("the parameter at character {character} is not of the form name=value"),
                    ENCODE,
                ));
            };
            let (name, value) = (decode(name)?, decode(value)?);
            // JDBC's spelling, which libpq accepts too
            let (name, value) = match (name.as_str(), value.as_str()) {
                ("ssl", "true") => ("sslmode", "require".to_owned()),
                _ => (name.as_str(), value),
            };
            parameters.set(name, value, character)?;
        }
        character += length;
    }
    Ok(())
}

/// Percent-decodes. Incomplete sequences, `%00` and results that are not UTF-8 are refused.
fn decode(text: &str) -> Result<String, InvalidConnInfo> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    let hex =
        |byte: Option<u8>| byte.and_then(|b| char::from(b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        match (hex(rest.next()), hex(rest.next())) {
            (Some(0), Some(0)) => return Err(InvalidConnInfo::new("it contains %00", "Remove it")),
            (Some(high), Some(low)) => bytes.push(high << 4 | low),
            _ => return Err(InvalidConnInfo::new("a `%` is not followed by two hexadecimal digits", ENCODE)),
        }
    }
    String::from_utf8(bytes).map_err(|_| {
        InvalidConnInfo::new("a percent-encoded part is not UTF-8", "Encode the UTF-8 bytes of the text")
    })
}

/// Percent-encodes everything except RFC 3986's unreserved characters.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encoding_and_decoding_returns_the_same_text(text in "[^\\x00]*") {
            prop_assert_eq!(decode(&encode(&text)).unwrap(), text);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC*") {
            let _ = parse(&format!("postgres://{text}"));
        }

        #[test]
        fn texts_of_special_characters_are_parsed_or_refused(text in "[a1:/@?&=%,\\[\\]]*") {
            let _ = parse(&format!("postgresql://{text}"));
        }
    }
}
