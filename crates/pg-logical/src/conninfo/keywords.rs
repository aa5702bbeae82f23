//! libpq's connection parameters: their names, their variables, and which of them are supported.
//!
//! See Postgres manual, "Parameter Key Words" and "Environment Variables" (libpq of Postgres 18).

use std::collections::BTreeMap;

use super::nearest::nearest;
use crate::environment::Environment;
use crate::error::InvalidConnInfo;

/// How a parameter is treated.
enum Support {
    /// It is used.
    Used,
    /// Only these values (in lower case) are accepted, because they describe what this crate does anyway.
    Only(&'static [&'static str]),
    /// Any value is accepted and has no effect.
    Ignored,
    /// No value is accepted, because none can be honoured.
    Refused,
}

struct Keyword {
    name: &'static str,
    variable: Option<&'static str>,
    support: Support,
}

const fn keyword(name: &'static str, variable: &'static str, support: Support) -> Keyword {
    Keyword { name, variable: Some(variable), support }
}

const fn without_variable(name: &'static str, support: Support) -> Keyword {
    Keyword { name, variable: None, support }
}

const KEYWORDS: &[Keyword] = &[
    keyword("host", "PGHOST", Support::Used),
    keyword("hostaddr", "PGHOSTADDR", Support::Used),
    keyword("port", "PGPORT", Support::Used),
    keyword("dbname", "PGDATABASE", Support::Used),
    keyword("user", "PGUSER", Support::Used),
    keyword("password", "PGPASSWORD", Support::Used),
    keyword("passfile", "PGPASSFILE", Support::Used),
    // not in libpq
    without_variable("password_file", Support::Used),
    keyword("sslmode", "PGSSLMODE", Support::Used),
    keyword("sslrootcert", "PGSSLROOTCERT", Support::Used),
    keyword("sslcert", "PGSSLCERT", Support::Used),
    keyword("sslkey", "PGSSLKEY", Support::Used),
    keyword("sslcertmode", "PGSSLCERTMODE", Support::Used),
    keyword("channel_binding", "PGCHANNELBINDING", Support::Used),
    keyword("target_session_attrs", "PGTARGETSESSIONATTRS", Support::Used),
    keyword("connect_timeout", "PGCONNECT_TIMEOUT", Support::Used),
    keyword("application_name", "PGAPPNAME", Support::Used),
    keyword("options", "PGOPTIONS", Support::Used),
    without_variable("keepalives", Support::Used),
    without_variable("keepalives_idle", Support::Used),
    without_variable("keepalives_interval", Support::Used),
    without_variable("keepalives_count", Support::Used),
    without_variable("tcp_user_timeout", Support::Used),
    // the program's own name takes precedence
    without_variable("fallback_application_name", Support::Ignored),
    // libpq has ignored it since Postgres 14
    keyword("sslcompression", "PGSSLCOMPRESSION", Support::Ignored),
    keyword("client_encoding", "PGCLIENTENCODING", Support::Only(&["utf8", "utf-8", "unicode", "auto"])),
    keyword("gssencmode", "PGGSSENCMODE", Support::Only(&["disable", "prefer"])),
    keyword("gssdelegation", "PGGSSDELEGATION", Support::Only(&["0"])),
    keyword("load_balance_hosts", "PGLOADBALANCEHOSTS", Support::Only(&["disable"])),
    keyword("sslnegotiation", "PGSSLNEGOTIATION", Support::Only(&["postgres"])),
    keyword("sslsni", "PGSSLSNI", Support::Only(&["1"])),
    keyword(
        "ssl_min_protocol_version",
        "PGSSLMINPROTOCOLVERSION",
        Support::Only(&["tlsv1", "tlsv1.1", "tlsv1.2"]),
    ),
    keyword("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Support::Only(&["tlsv1.3"])),
    keyword("min_protocol_version", "PGMINPROTOCOLVERSION", Support::Only(&["3.0"])),
    keyword("max_protocol_version", "PGMAXPROTOCOLVERSION", Support::Only(&["3.0", "latest"])),
    keyword("service", "PGSERVICE", Support::Refused),
    without_variable("servicefile", Support::Refused),
    keyword("krbsrvname", "PGKRBSRVNAME", Support::Refused),
    keyword("gsslib", "PGGSSLIB", Support::Refused),
    keyword("require_auth", "PGREQUIREAUTH", Support::Refused),
    keyword("requirepeer", "PGREQUIREPEER", Support::Refused),
    keyword("sslcrl", "PGSSLCRL", Support::Refused),
    keyword("sslcrldir", "PGSSLCRLDIR", Support::Refused),
    without_variable("sslkeylogfile", Support::Refused),
    without_variable("sslpassword", Support::Refused),
    without_variable("scram_client_key", Support::Refused),
    without_variable("scram_server_key", Support::Refused),
    without_variable("oauth_issuer", Support::Refused),
    without_variable("oauth_client_id", Support::Refused),
    without_variable("oauth_client_secret", Support::Refused),
    without_variable("oauth_scope", Support::Refused),
    without_variable("replication", Support::Refused),
];

/// The given parameters, by libpq's names.
#[derive(Default)]
pub(super) struct Parameters(BTreeMap<&'static str, Given>);

struct Given {
    value: String,
    /// The environment variable that it came from; `None`: the connection string.
    variable: Option<&'static str>,
}

impl Parameters {
    /// Sets a parameter of the connection string; `character` is its place there, counted from 1. A later one replaces an
    /// earlier one, as in libpq.
    ///
    /// The error quotes an unknown name only if it resembles a known one, because it may be part of an unquoted password.
    pub(super) fn set(&mut self, name: &str, value: String, character: usize) -> Result<(), InvalidConnInfo> {
        match KEYWORDS.iter().find(|keyword| keyword.name == name) {
            Some(keyword) => {
                self.0.insert(keyword.name, Given { value, variable: None });
                Ok(())
            }
            None => Err(match nearest(name, KEYWORDS.iter().map(|keyword| keyword.name)) {
                Some(known) => InvalidConnInfo::new(
                    format!("unknown connection parameter `{name}`"),
                    format!("Did you mean `{known}`?"),
                ),
                None => InvalidConnInfo::new(
                    format!("unknown connection parameter at character {character}"),
                    "Use libpq's parameters, and percent-encode or quote special characters in a password",
                ),
            }),
        }
    }

    /// Adds parameters from the environment, then refuses unsupported ones.
    pub(super) fn complete(&mut self, env: &Environment) -> Result<(), InvalidConnInfo> {
        for keyword in KEYWORDS {
            let Some(variable) = keyword.variable else { continue };
            let Some(value) = env.variable(variable).filter(|value| !value.is_empty()) else { continue };
            if self.get(keyword.name).is_none() {
                let given = Given { value: value.to_owned(), variable: Some(variable) };
                self.0.insert(keyword.name, given);
            }
        }
        for keyword in KEYWORDS {
            let Some(value) = self.get(keyword.name) else { continue };
            let named = self.display_name(keyword.name);
            // a password is not shown, and may contain anything
            if keyword.name != "password" && contains_parameter(value) {
                return Err(InvalidConnInfo::new(
                    format!("{named} seems to contain another parameter"),
                    "Separate parameters with spaces, as in host=db user=me; in a URI write ? before the first of them and & before \
                     each other",
                ));
            }
            let remove = if self.in_string(keyword.name) { "Remove it" } else { "Unset it" };
            match keyword.support {
                Support::Used | Support::Ignored => {}
                Support::Only(values) if values.contains(&value.to_ascii_lowercase().as_str()) => {}
                Support::Only(values) => {
                    return Err(InvalidConnInfo::new(
                        format!("{named} has a value that is not supported"),
                        format!("{remove}, or set it to {}", values.join(" or ")),
                    ));
                }
                Support::Refused => {
                    let remedy = remedy_for_unsupported(keyword.name).replacen("Remove it", remove, 1);
                    let refused = InvalidConnInfo::new(format!("{named} is not supported"), remedy);
                    return Err(InvalidConnInfo { unsupported: Some(keyword.name), ..refused });
                }
            }
        }
        Ok(())
    }

    /// The value of a parameter; an empty value counts as not given.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|given| given.value.as_str()).filter(|value| !value.is_empty())
    }

    /// Whether the parameter is from the connection string rather than a variable.
    pub(super) fn in_string(&self, name: &str) -> bool {
        self.get(name).is_some() && self.0.get(name).is_some_and(|given| given.variable.is_none())
    }

    /// The parameter's name for errors, or that of the variable that it came from.
    pub(super) fn display_name(&self, name: &str) -> String {
        match self.0.get(name).and_then(|given| given.variable) {
            Some(variable) => format!("the variable {variable}"),
            None => format!("`{name}`"),
        }
    }
}

/// Whether a parameter is in the value, written as JDBC and others write it: `me;password=x`. It would be shown with the value.
pub(super) fn contains_parameter(value: &str) -> bool {
    let mut after = value.split([';', '&', '?', ',']).skip(1);
    after.any(|part| {
        let name = part.split_once('=').map(|(name, _)| name.trim());
        // shorter names are unlikely
        name.is_some_and(|name| {
            name.len() > 2 && name.chars().all(|c| c.is_ascii_alphabetic() || "_ ".contains(c))
        })
    })
}

fn remedy_for_unsupported(name: &str) -> &'static str {
    match name {
        "service" | "servicefile" => "Write the service's parameters into the connection string",
        "replication" => "Remove it: a replication connection is opened where one is needed",
        "sslpassword" => "Use a client key without a passphrase, readable by this user alone",
        "sslcrl" | "sslcrldir" => "Remove it: revocation lists are not checked",
        "krbsrvname" | "gsslib" => "Remove it: Kerberos is not supported for Postgres",
        "requirepeer" => "Remove it; over a network sslmode=verify-full proves who the server is",
        "require_auth" => "Remove it; channel_binding=require allows only SCRAM over TLS",
        _ => "Remove it",
    }
}
