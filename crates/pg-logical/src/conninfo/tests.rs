//! Connection strings, variables and defaults together, compared with libpq's behaviour.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::keywords::contains_parameter;
use super::*;

fn env() -> Environment {
    Environment::empty().with_user("me").with_home("/home/me")
}

fn parse(text: &str) -> ConnInfo {
    ConnInfo::parse(text, &env()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn tcp(name: &str, port: u16) -> Host {
    Host { addr: HostAddr::Tcp { name: name.to_owned(), hostaddr: None }, port }
}

fn unix(directory: &str, port: u16) -> Host {
    Host { addr: HostAddr::Unix(PathBuf::from(directory)), port }
}

#[test]
fn hosts_and_ports_follow_libpq() {
    for (text, hosts) in [
        ("postgres://", vec![tcp("localhost", 5432)]),
        ("postgres://h", vec![tcp("h", 5432)]),
        ("postgresql://h:5433/d", vec![tcp("h", 5433)]),
        ("postgres://:5433", vec![tcp("localhost", 5433)]),
        ("postgres://h1:1,h2:2", vec![tcp("h1", 1), tcp("h2", 2)]),
        ("postgres://h1,h2:2", vec![tcp("h1", 5432), tcp("h2", 2)]),
        ("postgres://h1,h2/?port=7", vec![tcp("h1", 7), tcp("h2", 7)]),
        ("postgres://[::1]:5433,[fe80::1%25eth0]", vec![tcp("::1", 5433), tcp("fe80::1%eth0", 5432)]),
        ("postgres://%2Frun%2Fpg/d", vec![unix("/run/pg", 5432)]),
        ("postgres:///d?host=/run/pg&port=6000", vec![unix("/run/pg", 6000)]),
        ("host=h1,/run/pg port=1", vec![tcp("h1", 1), unix("/run/pg", 1)]),
        ("host=a,,b", vec![tcp("a", 5432), tcp("localhost", 5432), tcp("b", 5432)]),
    ] {
        assert_eq!(parse(text).hosts, hosts, "{text}");
    }
}

#[test]
fn hostaddr_is_connected_to_and_host_is_verified() {
    let addr = |name: &str, hostaddr: &str| HostAddr::Tcp {
        name: name.to_owned(),
        hostaddr: Some(hostaddr.to_owned()),
    };
    assert_eq!(parse("host=db hostaddr=10.0.0.1").hosts[0].addr, addr("db", "10.0.0.1"));
    assert_eq!(parse("hostaddr=::1").hosts[0].addr, addr("::1", "::1"));
    let several = parse("host=a,b hostaddr=10.0.0.1,");
    assert_eq!(several.hosts[0].addr, addr("a", "10.0.0.1"));
    assert_eq!(several.hosts[1], tcp("b", 5432));
}

#[test]
fn user_password_and_database_are_decoded() {
    let conninfo = parse("postgres://us%65r:p%40ss%20%C3%BC?#@h/my%20shop");
    assert_eq!((conninfo.user.as_str(), conninfo.dbname.as_str()), ("user", "my shop"));
    assert_eq!(conninfo.password, Some(Password::Given(Secret::new("p@ss ü?#"))));
    assert_eq!(parse("postgres://h").user, "me", "the user of the system");
    assert_eq!(parse("postgres://h").dbname, "me", "the user's own database");
    assert_eq!(parse("postgres://u@h").dbname, "u");
}

#[test]
fn the_default_host_is_an_existing_socket_directory() {
    let host = |env: &Environment| ConnInfo::parse("user=u", env).unwrap().hosts.remove(0);
    assert_eq!(host(&env()), tcp("localhost", 5432));
    assert_eq!(host(&env().with_file("/tmp/.s.PGSQL.5432")), unix("/tmp", 5432));
    let debian = env().with_file("/var/run/postgresql").with_file("/tmp/.s.PGSQL.5432");
    assert_eq!(host(&debian), unix("/var/run/postgresql", 5432));
}

#[test]
fn the_string_overrides_variables_and_empty_values_are_ignored() {
    let variables = [
        ("PGHOST", "a,b"),
        ("PGHOSTADDR", "10.0.0.1,10.0.0.2"),
        ("PGPORT", "6000"),
        ("PGDATABASE", "d"),
        ("PGUSER", "u"),
        ("PGPASSWORD", "p"),
        ("PGPASSFILE", "/pass"),
        ("PGSSLMODE", "verify-ca"),
        ("PGSSLROOTCERT", "/root"),
        ("PGSSLCERT", "/cert"),
        ("PGSSLKEY", "/key"),
        ("PGCHANNELBINDING", "require"),
        ("PGTARGETSESSIONATTRS", "primary"),
        ("PGCONNECT_TIMEOUT", "7"),
        ("PGAPPNAME", "app"),
        ("PGOPTIONS", "-c a=b"),
        ("PGGSSENCMODE", ""),
        ("PGSERVICE", ""),
    ];
    let env = variables.iter().fold(env(), |env, (name, value)| env.with_variable(name, value));
    let conninfo = ConnInfo::parse("", &env).unwrap();
    let host = |name: &str, addr: &str| Host {
        addr: HostAddr::Tcp { name: name.to_owned(), hostaddr: Some(addr.to_owned()) },
        port: 6000,
    };
    let expected = ConnInfo {
        hosts: vec![host("a", "10.0.0.1"), host("b", "10.0.0.2")],
        user: "u".to_owned(),
        dbname: "d".to_owned(),
        password: Some(Password::Given(Secret::new("p"))),
        file: None,
        passfile: Some(PathBuf::from("/pass")),
        ssl_mode: SslMode::VerifyCa,
        ssl_root_cert: Some(RootCert::File(PathBuf::from("/root"))),
        ssl_client: Some((PathBuf::from("/cert"), PathBuf::from("/key"))),
        channel_binding: ChannelBinding::Require,
        target_session_attrs: TargetSessionAttrs::Primary,
        connect_timeout: Some(Duration::from_secs(7)),
        application_name: Some("app".to_owned()),
        options: Some("-c a=b".to_owned()),
        tcp: Tcp::default(),
    };
    assert_eq!(conninfo, expected);
    let stronger =
        ConnInfo::parse("host=h,i user=v password=q sslmode=disable channel_binding=disable", &env);
    let stronger = stronger.unwrap();
    assert_eq!((stronger.user.as_str(), stronger.dbname.as_str()), ("v", "d"));
    assert_eq!(stronger.password, Some(Password::Given(Secret::new("q"))));
    assert_eq!(stronger.ssl_mode, SslMode::Disable);
}

#[test]
fn tls_files_in_the_home_directory_are_used_if_they_exist() {
    let conninfo = parse("host=h");
    assert_eq!((conninfo.ssl_root_cert, conninfo.ssl_client), (None, None));
    assert_eq!(conninfo.passfile, Some(PathBuf::from("/home/me/.pgpass")));
    let env = ["root.crt", "postgresql.crt", "postgresql.key"]
        .iter()
        .fold(env(), |env, name| env.with_file(format!("/home/me/.postgresql/{name}")));
    let conninfo = ConnInfo::parse("host=h", &env).unwrap();
    let file = |name: &str| PathBuf::from(format!("/home/me/.postgresql/{name}"));
    assert_eq!(conninfo.ssl_root_cert, Some(RootCert::File(file("root.crt"))));
    assert_eq!(conninfo.ssl_client, Some((file("postgresql.crt"), file("postgresql.key"))));
    assert_eq!(ConnInfo::parse("host=h sslcertmode=disable", &env).unwrap().ssl_client, None);
}

#[test]
fn the_default_sslmode_follows_libpq() {
    for (text, mode) in [
        ("host=h", SslMode::Prefer),
        ("host=h sslmode=disable", SslMode::Disable),
        ("host=h sslmode=allow", SslMode::Allow),
        ("host=h sslmode=require", SslMode::Require),
        ("host=h sslmode=verify-ca sslrootcert=/r", SslMode::VerifyCa),
        ("host=h sslmode=verify-full sslrootcert=/r", SslMode::VerifyFull),
        ("host=h sslrootcert=system", SslMode::VerifyFull),
        ("postgres://h/?ssl=true", SslMode::Require),
        ("host=/run/pg sslmode=verify-full", SslMode::VerifyFull),
    ] {
        assert_eq!(parse(text).ssl_mode, mode, "{text}");
    }
    let old = env().with_variable("PGREQUIRESSL", "1");
    assert_eq!(ConnInfo::parse("host=h", &old).unwrap().ssl_mode, SslMode::Require);
}

#[test]
fn tcp_parameters_have_libpqs_units() {
    let conninfo = parse(
        "host=h keepalives_idle=30 keepalives_interval=5 keepalives_count=3 tcp_user_timeout=1500 connect_timeout=2",
    );
    assert_eq!(
        conninfo.tcp,
        Tcp {
            keepalives: true,
            keepalives_idle: Some(Duration::from_secs(30)),
            keepalives_interval: Some(Duration::from_secs(5)),
            keepalives_count: Some(3),
            tcp_user_timeout: Some(Duration::from_millis(1500)),
        }
    );
    assert_eq!(conninfo.connect_timeout, Some(Duration::from_secs(2)));
    let off = parse("host=h keepalives=0 keepalives_idle=0 connect_timeout=-1");
    assert_eq!((off.tcp.keepalives, off.tcp.keepalives_idle, off.connect_timeout), (false, None, None));
}

#[test]
fn a_password_file_overrides_only_the_variable() {
    let env = env().with_variable("PGPASSWORD", "p");
    let file = Path::new("/secret");
    let parse = |text: &str, file: Option<&Path>| {
        ConnInfo::parse_with(text, file.map(|file| Password::File(file.into())), &env).map(|c| c.password)
    };
    let from_file = Ok(Some(Password::File(file.to_owned())));
    assert_eq!(parse("host=h", Some(file)), from_file);
    assert_eq!(parse("host=h password_file=/secret", None), from_file);
    assert_eq!(parse("host=h", None), Ok(Some(Password::Given(Secret::new("p")))));
    assert!(parse("host=h password=x", Some(file)).is_err());
    assert!(parse("host=h password_file=/secret", Some(file)).is_err());
}

#[test]
fn a_program_overrides_only_the_variable() {
    let env = env().with_variable("PGPASSWORD", "p");
    let program = Password::Command(vec!["token".to_owned()]);
    let parse = |text: &str| ConnInfo::parse_with(text, Some(program.clone()), &env).map(|c| c.password);
    assert_eq!(parse("host=h"), Ok(Some(program.clone())));
    assert_eq!(parse("host=h passfile=/p"), Ok(Some(program.clone())));
    for (text, what) in [
        ("host=h password=x", "a password and a program that prints it are given"),
        ("host=h password_file=/secret", "a program that prints the password and a password file are given"),
    ] {
        assert_eq!(parse(text).unwrap_err().what, what);
    }
}

#[test]
fn unused_parameters_with_default_values_are_accepted() {
    for text in [
        "host=h gssencmode=prefer client_encoding=UTF8 fallback_application_name=x",
        "host=h gssencmode=disable sslcompression=1 sslsni=1 sslnegotiation=postgres load_balance_hosts=disable",
        "host=h ssl_min_protocol_version=TLSv1.2 ssl_max_protocol_version=TLSv1.3 max_protocol_version=latest",
    ] {
        parse(text);
    }
}

#[test]
fn a_zero_byte_is_refused() {
    for text in ["host=h dbname=d\0options", "postgres://h/d\0options"] {
        let error = ConnInfo::parse(text, &env()).unwrap_err().to_string();
        assert_eq!(error, "The connection string: it contains a zero byte. Remove it");
    }
}

#[test]
fn messages_for_bad_connection_strings() {
    let cases = [
        "shop",
        "http://h",
        "postgres://[::1/d",
        "postgres://[]/d",
        "postgres://[::1]5432/d",
        "postgres://h:port/d",
        "postgres://h:0/d",
        "postgres://h:65536/d",
        "postgres://u:p@ss@h/d",
        "postgres://u:p/ss@h/d",
        "postgres://u:100%@h/d",
        "postgres://h/d%00",
        "postgres://h/%ff",
        "postgres://h/d?sslmode",
        "postgres://h/d?a=b=c",
        "postgres://h/d?x=y&sslmod=require",
        "postgres://h/d?sslmod=require",
        "host=h hots=i",
        "host=h frobnicate=1",
        "host=h password=one two",
        "host=h password='one",
        "host=a,b port=1,2,3",
        "host=a,b hostaddr=10.0.0.1",
        "hostaddr=db",
        "host=@abstract",
        "host=h sslmode=verify_full",
        "host=h sslmode=verify-full",
        "host=h sslmode=require sslrootcert=system",
        "host=h sslcert=/c",
        "host=h sslkey=/k",
        "host=h sslcertmode=require",
        "host=h channel_binding=maybe",
        "host=h channel_binding=require sslmode=disable",
        "host=h target_session_attrs=master",
        "host=h connect_timeout=10s",
        "host=h keepalives_count=x",
        "host=h password=a password_file=b",
        "service=shop",
        "host=h replication=database",
        "host=h gssencmode=require",
        "host=h krbsrvname=postgres",
        "host=h sslcrl=/c",
        "host=h sslpassword=x",
        "host=h requirepeer=postgres",
        "host=h require_auth=scram-sha-256",
        "host=h client_encoding=latin1",
        "host=h load_balance_hosts=random",
        "host=h sslnegotiation=direct",
        "host=h ssl_min_protocol_version=TLSv1.3",
        "host=h user=me;password=hunter2",
        "host=h user='me; Password=hunter2'",
        "host=h;user=me;pwd=hunter2",
        "host=h user=me dbname=shop,password=hunter2",
        "host=h user=me&password=hunter2",
        "postgres://me;password=hunter2@h/shop",
        "postgres://me@h/shop;password=hunter2",
        "postgres://me@h/shop&user=x&password=hunter2",
        "postgres://me@h;password=hunter2/shop",
        "jdbc:postgresql://h/shop?user=me&password=hunter2",
    ];
    let all: Vec<String> = cases
        .iter()
        .map(|text| match ConnInfo::parse(text, &env()) {
            Ok(conninfo) => panic!("{text} is accepted as {conninfo:?}"),
            Err(error) => {
                assert!(!error.to_string().contains("hunter2"), "{error}");
                format!("{text}\n    {error}")
            }
        })
        .collect();
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn values_may_contain_separators() {
    for text in [
        "user=u password='a;password=b'",
        "user='a;b=c'",
        "user=u options='-c search_path=a,b -c work_mem=1MB'",
        "postgres://u:p;password=x@h/d",
    ] {
        parse(text);
    }
}

#[test]
fn messages_for_bad_variables() {
    let cases = [
        ("PGPORT", "x"),
        ("PGSSLMODE", "on"),
        ("PGSERVICE", "shop"),
        ("PGGSSENCMODE", "require"),
        ("PGCONNECT_TIMEOUT", "1s"),
        ("PGHOSTADDR", "db"),
        ("PGREQUIREPEER", "postgres"),
        ("PGHOST", "h;password=hunter2"),
    ];
    let all: Vec<String> = cases
        .iter()
        .map(|(name, value)| match ConnInfo::parse("user=u", &env().with_variable(name, value)) {
            Ok(conninfo) => panic!("{name}={value} is accepted as {conninfo:?}"),
            Err(error) => format!("{name}={value}\n    {error}"),
        })
        .collect();
    insta::assert_snapshot!(all.join("\n"));
}

/// A non-empty text without NUL.
/// Without those that are refused because they seem to contain another parameter.
fn value() -> impl Strategy<Value = String> {
    "[^\\x00]{1,12}".prop_filter("it is refused", |value| !contains_parameter(value))
}

fn host() -> impl Strategy<Value = Host> {
    let addr = prop_oneof![
        "[a-z0-9.-]{1,12}".prop_map(|name| HostAddr::Tcp { name, hostaddr: None }),
        any::<std::net::IpAddr>().prop_map(|ip| HostAddr::Tcp { name: ip.to_string(), hostaddr: None }),
        ("[a-z]{1,12}", any::<std::net::IpAddr>())
            .prop_map(|(name, ip)| HostAddr::Tcp { name, hostaddr: Some(ip.to_string()) }),
        "/[^\\x00,\\s]{0,12}".prop_map(|path| HostAddr::Unix(PathBuf::from(path))),
    ];
    (addr, 1..=u16::MAX).prop_map(|(addr, port)| Host { addr, port })
}

prop_compose! {
    fn tcp_parameters()(
        keepalives: bool,
        idle in proptest::option::of(1..i32::MAX),
        interval in proptest::option::of(1..i32::MAX),
        count in proptest::option::of(1..i32::MAX),
        user_timeout in proptest::option::of(1..i32::MAX),
    ) -> Tcp {
        let seconds = |n: i32| Duration::from_secs(n.unsigned_abs().into());
        Tcp {
            keepalives,
            keepalives_idle: idle.map(seconds),
            keepalives_interval: interval.map(seconds),
            keepalives_count: count.map(i32::unsigned_abs),
            tcp_user_timeout: user_timeout.map(|n| Duration::from_millis(n.unsigned_abs().into())),
        }
    }
}

prop_compose! {
    fn conninfo()(
        hosts in proptest::collection::vec(host(), 1..4),
        names in (value(), value()),
        passfile in proptest::option::of(value()),
        ssl_mode in proptest::sample::select(resolve::SSL_MODES.map(|(_, mode)| mode).to_vec()),
        root in value(),
        client in proptest::option::of((value(), value())),
        channel_binding in
            proptest::sample::select(vec![ChannelBinding::Disable, ChannelBinding::Prefer]),
        target_session_attrs in
            proptest::sample::select(resolve::SESSION_ATTRS.map(|(_, attrs)| attrs).to_vec()),
        connect_timeout in proptest::option::of(1..i32::MAX),
        application_name in proptest::option::of(value()),
        options in proptest::option::of(value()),
        tcp in tcp_parameters(),
    ) -> ConnInfo {
        let root = if root == "system" { "/r".to_owned() } else { root };
        ConnInfo {
            hosts,
            user: names.0,
            dbname: names.1,
            password: None,
            file: None,
            passfile: passfile.map(PathBuf::from),
            ssl_mode,
            ssl_root_cert: Some(RootCert::File(PathBuf::from(root))),
            ssl_client: client.map(|(cert, key)| (PathBuf::from(cert), PathBuf::from(key))),
            channel_binding,
            target_session_attrs,
            connect_timeout: connect_timeout.map(|n| Duration::from_secs(n.unsigned_abs().into())),
            application_name,
            options,
            tcp,
        }
    }
}

proptest! {
    #[test]
    fn a_redacted_uri_parses_to_the_same_parameters(conninfo in conninfo()) {
        let uri = conninfo.to_redacted_uri();
        let read = ConnInfo::parse(&uri, &Environment::empty()).map_err(|e| TestCaseError::fail(format!("{uri}: {e}")))?;
        prop_assert_eq!(read, conninfo, "{}", uri);
    }

    #[test]
    fn a_uri_parses_to_its_parts(user in value(), password in value(), dbname in value(), host in host()) {
        let bare = ConnInfo { hosts: vec![host], user, dbname, ..parse("host=h") };
        let encoded = uri::encode(&password);
        let uri = bare.to_redacted_uri().replacen('@', &format!(":{encoded}@"), 1);
        let read = ConnInfo::parse(&uri, &env()).map_err(|e| TestCaseError::fail(format!("{uri}: {e}")))?;
        prop_assert_eq!(read, ConnInfo { password: Some(Password::Given(Secret::new(password))), ..bare });
    }

    #[test]
    fn the_redacted_uri_and_debug_do_not_show_the_password(password in "[a-z0-9]{16}") {
        let conninfo = parse(&format!("postgres://u:{password}@h/d"));
        prop_assert!(!conninfo.to_redacted_uri().contains(&password));
        let shown = format!("{conninfo:?}");
        prop_assert!(!shown.contains(&password));
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "\\PC*") {
        let _ = ConnInfo::parse(&text, &env());
    }
}
