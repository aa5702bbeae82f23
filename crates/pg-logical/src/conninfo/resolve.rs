//! Turns parameters into a [`ConnInfo`]: adds the environment and libpq's defaults, and checks every value.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::keywords::Parameters;
use super::{ChannelBinding, ConnInfo, Host, HostAddr, Password, RootCert, SslMode, TargetSessionAttrs, Tcp};
use crate::environment::Environment;
use crate::error::InvalidConnInfo;
use crate::secret::Secret;

/// The socket directory in the packages of Debian and Red Hat; libpq built from source uses `/tmp`.
const SOCKET_DIRECTORY: &str = "/var/run/postgresql";

pub(super) const SSL_MODES: [(&str, SslMode); 6] = [
    ("disable", SslMode::Disable),
    ("allow", SslMode::Allow),
    ("prefer", SslMode::Prefer),
    ("require", SslMode::Require),
    ("verify-ca", SslMode::VerifyCa),
    ("verify-full", SslMode::VerifyFull),
];

pub(super) const CHANNEL_BINDINGS: [(&str, ChannelBinding); 3] = [
    ("disable", ChannelBinding::Disable),
    ("prefer", ChannelBinding::Prefer),
    ("require", ChannelBinding::Require),
];

pub(super) const SESSION_ATTRS: [(&str, TargetSessionAttrs); 6] = [
    ("any", TargetSessionAttrs::Any),
    ("read-write", TargetSessionAttrs::ReadWrite),
    ("read-only", TargetSessionAttrs::ReadOnly),
    ("primary", TargetSessionAttrs::Primary),
    ("standby", TargetSessionAttrs::Standby),
    ("prefer-standby", TargetSessionAttrs::PreferStandby),
];

pub(super) fn resolve(
    mut given: Parameters,
    outside: Option<Password>,
    env: &Environment,
) -> Result<ConnInfo, InvalidConnInfo> {
    given.complete(env)?;
    let given = &given;

    let user = given.get("user").or(env.user()).ok_or_else(|| {
        InvalidConnInfo::new(
            "it names no user, and this process has no user name",
            "Add the user, as postgres://user@host/database",
        )
    })?;
    let hosts = hosts(given, env)?;
    let ssl_root_cert = ssl_root_cert(given, env);
    let ssl_mode = ssl_mode(given, env, ssl_root_cert.as_ref(), &hosts)?;
    let channel_binding =
        choice(given, "channel_binding", &CHANNEL_BINDINGS)?.unwrap_or(ChannelBinding::Prefer);
    if channel_binding == ChannelBinding::Require && ssl_mode == SslMode::Disable {
        return Err(InvalidConnInfo::new(
            "`channel_binding=require` needs TLS, and `sslmode=disable` forbids it",
            "Set sslmode to require or stronger, or remove channel_binding",
        ));
    }
    Ok(ConnInfo {
        user: user.to_owned(),
        dbname: given.get("dbname").unwrap_or(user).to_owned(),
        password: password(given, outside)?,
        file: None,
        passfile: given.get("passfile").map(PathBuf::from).or_else(|| Some(env.home()?.join(".pgpass"))),
        ssl_client: ssl_client(given, env)?,
        target_session_attrs: choice(given, "target_session_attrs", &SESSION_ATTRS)?
            .unwrap_or(TargetSessionAttrs::Any),
        connect_timeout: seconds(given, "connect_timeout")?,
        application_name: given.get("application_name").map(str::to_owned),
        options: given.get("options").map(str::to_owned),
        tcp: Tcp {
            keepalives: integer(given, "keepalives")?.is_none_or(|number| number != 0),
            keepalives_idle: seconds(given, "keepalives_idle")?,
            keepalives_interval: seconds(given, "keepalives_interval")?,
            keepalives_count: positive(given, "keepalives_count")?,
            tcp_user_timeout: positive(given, "tcp_user_timeout")?
                .map(|millis| Duration::from_millis(millis.into())),
        },
        hosts,
        ssl_root_cert,
        ssl_mode,
        channel_binding,
    })
}

/// The hosts with their addresses and ports: lists of equal length, or one port for all.
fn hosts(given: &Parameters, env: &Environment) -> Result<Vec<Host>, InvalidConnInfo> {
    let list = |name| given.get(name).map(|value| value.split(',').map(str::trim).collect::<Vec<_>>());
    let names = list("host");
    let addresses = list("hostaddr");
    let ports = list("port").unwrap_or_default();
    let count = addresses.as_ref().or(names.as_ref()).map_or(1, Vec::len);
    if names.as_ref().is_some_and(|names| names.len() != count) {
        return Err(InvalidConnInfo::new(
            "`host` and `hostaddr` are lists of different length",
            "Give one address for each host",
        ));
    }
    if ports.len() > 1 && ports.len() != count {
        return Err(InvalidConnInfo::new(
            format!("{} lists {} ports for {count} host(s)", given.display_name("port"), ports.len()),
            "Give one port for all hosts, or one for each",
        ));
    }
    let nth = |list: &Option<Vec<&str>>, n: usize| {
        let entry = list.as_ref().and_then(|list| list.get(n)).copied();
        entry.filter(|entry| !entry.is_empty()).map(str::to_owned)
    };
    (0..count)
        .map(|n| {
            let port = ports.get(n).or(ports.first().filter(|_| ports.len() == 1)).copied();
            let port = port.map_or(Ok(5432), |text| port_number(given, text))?;
            Ok(Host { addr: address(given, nth(&names, n), nth(&addresses, n), port, env)?, port })
        })
        .collect()
}

fn port_number(given: &Parameters, text: &str) -> Result<u16, InvalidConnInfo> {
    if text.is_empty() {
        return Ok(5432);
    }
    // the error does not quote the text, which may be part of an unencoded password in a URI
    text.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
        InvalidConnInfo::new(
            format!("{} is not a port from 1 to 65535", given.display_name("port")),
            "Correct the port, and percent-encode or quote special characters in a password",
        )
    })
}

fn address(
    given: &Parameters,
    name: Option<String>,
    hostaddr: Option<String>,
    port: u16,
    env: &Environment,
) -> Result<HostAddr, InvalidConnInfo> {
    if let Some(hostaddr) = hostaddr {
        // libpq accepts only numeric addresses, which may have a zone after %
        let number = hostaddr.split_once('%').map_or(hostaddr.as_str(), |(number, _)| number);
        if number.parse::<std::net::IpAddr>().is_err() {
            return Err(InvalidConnInfo::new(
                format!("{} is not an IP address", given.display_name("hostaddr")),
                "Write names as `host`",
            ));
        }
        return Ok(HostAddr::Tcp {
            name: name.unwrap_or_else(|| hostaddr.clone()),
            hostaddr: Some(hostaddr),
        });
    }
    Ok(match name {
        Some(name) if name.starts_with('@') => {
            return Err(InvalidConnInfo::new(
                format!("{} is an abstract unix socket, which is not supported", given.display_name("host")),
                "Use a socket in a directory, or TCP",
            ));
        }
        Some(name) if name.starts_with('/') => HostAddr::Unix(PathBuf::from(name)),
        Some(name) => HostAddr::Tcp { name, hostaddr: None },
        None if env.has_file(Path::new(SOCKET_DIRECTORY)) => HostAddr::Unix(PathBuf::from(SOCKET_DIRECTORY)),
        None if env.has_file(Path::new(&format!("/tmp/.s.PGSQL.{port}"))) => {
            HostAddr::Unix(PathBuf::from("/tmp"))
        }
        None => HostAddr::Tcp { name: "localhost".to_owned(), hostaddr: None },
    })
}

/// `outside` is configured outside of the string.
fn password(given: &Parameters, outside: Option<Password>) -> Result<Option<Password>, InvalidConnInfo> {
    let file = given.get("password_file").map(|file| Password::File(PathBuf::from(file)));
    let one = |what| Err(InvalidConnInfo::new(what, "Keep one of them"));
    match (outside, file, given.get("password")) {
        (Some(Password::File(_)), Some(_), _) => one("two password files are given"),
        (Some(_), Some(_), _) => one("a program that prints the password and a password file are given"),
        (Some(Password::Command(_)), _, _) if given.in_string("password") => {
            one("a password and a program that prints it are given")
        }
        (Some(_), ..) | (_, Some(_), _) if given.in_string("password") => {
            one("a password and a password file are given")
        }
        // like every variable, PGPASSWORD is a default, so these take precedence
        (Some(password), ..) | (None, Some(password), _) => Ok(Some(password)),
        (None, None, given) => Ok(given.map(|password| Password::Given(Secret::new(password)))),
    }
}

fn ssl_root_cert(given: &Parameters, env: &Environment) -> Option<RootCert> {
    match given.get("sslrootcert") {
        Some("system") => Some(RootCert::System),
        Some(file) => Some(RootCert::File(PathBuf::from(file))),
        None => {
            let file = env.home()?.join(".postgresql/root.crt");
            env.has_file(&file).then_some(RootCert::File(file))
        }
    }
}

fn ssl_mode(
    given: &Parameters,
    env: &Environment,
    root: Option<&RootCert>,
    hosts: &[Host],
) -> Result<SslMode, InvalidConnInfo> {
    let system = root == Some(&RootCert::System);
    let mode = match choice(given, "sslmode", &SSL_MODES)? {
        Some(mode) => mode,
        // libpq still supports this variable of Postgres 7
        None if env.variable("PGREQUIRESSL").is_some_and(|value| value.starts_with('1')) && !system => {
            SslMode::Require
        }
        None if system => SslMode::VerifyFull,
        None => SslMode::Prefer,
    };
    if system && mode != SslMode::VerifyFull {
        return Err(InvalidConnInfo::new(
            format!(
                "`sslrootcert=system` with {} weaker than verify-full would trust anybody's certificate",
                given.display_name("sslmode")
            ),
            "Set sslmode=verify-full",
        ));
    }
    let tcp = hosts.iter().any(|host| matches!(host.addr, HostAddr::Tcp { .. }));
    if mode >= SslMode::VerifyCa && root.is_none() && tcp {
        return Err(InvalidConnInfo::new(
            format!(
                "{} requires verifying the server, and there is no root certificate",
                given.display_name("sslmode")
            ),
            "Add sslrootcert=FILE, or sslrootcert=system for a public authority",
        ));
    }
    Ok(mode)
}

fn ssl_client(given: &Parameters, env: &Environment) -> Result<Option<(PathBuf, PathBuf)>, InvalidConnInfo> {
    match given.get("sslcertmode").map(str::to_ascii_lowercase).as_deref() {
        None | Some("allow") => {}
        Some("disable") => return Ok(None),
        Some(_) => {
            return Err(InvalidConnInfo::new(
                format!("{} has a value that is not supported", given.display_name("sslcertmode")),
                "Remove it, or set it to allow or disable",
            ));
        }
    }
    let default = |name: &str| env.home().map(|home| home.join(name)).filter(|file| env.has_file(file));
    let cert = given.get("sslcert").map(PathBuf::from);
    let key = given.get("sslkey").map(PathBuf::from);
    match (
        cert.or_else(|| default(".postgresql/postgresql.crt")),
        key.or_else(|| default(".postgresql/postgresql.key")),
    ) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (Some(_), None) => Err(InvalidConnInfo::new(
            "there is a client certificate without its private key",
            "Add sslkey=FILE, or sslcertmode=disable to send no certificate",
        )),
        (None, Some(_)) if given.in_string("sslkey") => Err(InvalidConnInfo::new(
            "`sslkey` is given without a certificate",
            "Add sslcert=FILE, or remove sslkey",
        )),
        (None, _) => Ok(None),
    }
}

fn choice<T: Copy>(
    given: &Parameters,
    name: &str,
    choices: &[(&str, T)],
) -> Result<Option<T>, InvalidConnInfo> {
    let Some(value) = given.get(name) else { return Ok(None) };
    let chosen = choices.iter().find(|(choice, _)| *choice == value);
    chosen.map(|(_, chosen)| Some(*chosen)).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
        InvalidConnInfo::new(
            format!("{} has an unknown value", given.display_name(name)),
            format!("Set it to one of {}", names.join(", ")),
        )
    })
}

fn integer(given: &Parameters, name: &str) -> Result<Option<i32>, InvalidConnInfo> {
    let Some(value) = given.get(name) else { return Ok(None) };
    value.trim().parse().map(Some).map_err(|_| {
        InvalidConnInfo::new(
            format!("{} is not a whole number", given.display_name(name)),
            "Write it in digits, without a unit",
        )
    })
}

/// A number above 0. As in libpq, other numbers mean the system's default.
fn positive(given: &Parameters, name: &str) -> Result<Option<u32>, InvalidConnInfo> {
    Ok(integer(given, name)?.and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0))
}

fn seconds(given: &Parameters, name: &str) -> Result<Option<Duration>, InvalidConnInfo> {
    Ok(positive(given, name)?.map(|seconds| Duration::from_secs(seconds.into())))
}
