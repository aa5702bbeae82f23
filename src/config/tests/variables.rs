//! `${NAME}` in the strings of the file.

use super::*;
use crate::config::schema::keys::KEYS;

fn variables(variables: &[(&str, &str)]) -> Environment {
    variables.iter().fold(env(), |env, (name, value)| env.with_variable(name, value))
}

#[test]
fn variables_are_inserted_into_strings_of_every_kind() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("password"), "from a file").unwrap();
    let env = variables(&[
        ("PASSWORD", "p%40ss"),
        ("HOST", "db"),
        ("BROKERS", "a:1,b:2"),
        ("SECRETS", directory.path().to_str().unwrap()),
        ("COUNT", "6"),
        ("SIZE", "2"),
        ("OFF", "false"),
        ("TABLES", "a.b, c.d"),
        ("EMPTY", ""),
    ]);
    let config = good(
        r#"
        name = "shop${EMPTY}"
        postgres.url = "postgres://router:${PASSWORD}@${HOST}/shop"
        kafka."bootstrap.servers" = "${BROKERS}"
        kafka.sasl.password = { file = "${SECRETS}/password" }
        kafka.client.rack = "$${HOST} $HOST"
        outbox.table = "${TABLES}"
        topics.partitions = "${COUNT}"
        topics.create = "${OFF}"
        topics.allow = ["${HOST}.*", "x"]
        admin.listen = "${OFF}"
        delivery.window.bytes = "${SIZE}MiB"
        [[route.rules]]
        match = { a = ["${HOST}"] }
        topic = "${HOST}.${a}"
        "#,
        &env,
    );
    let password = Password::Given(Secret::new("p@ss"));
    assert_eq!((config.name.as_str(), config.postgres.conninfo.password), ("shop", Some(password)));
    assert_eq!(property_of(&config.kafka, "bootstrap.servers"), "a:1,b:2");
    assert_eq!(property_of(&config.kafka, "sasl.password"), "from a file");
    assert_eq!(property_of(&config.kafka, "client.rack"), "${HOST} $HOST");
    assert_eq!(config.outbox.table_names(), "a.b, c.d");
    assert_eq!((config.topics.create, config.topics.partitions), (false, Some(6)));
    assert_eq!(config.topics.allow[0].to_string(), "db.*");
    assert_eq!((config.admin.listen, config.delivery.window_bytes), (None, 2 << 20));
    assert_eq!(config.route.topics()[1].to_string(), "db.${a}");
}

/// An item of an array is one text, whatever the values of its variables are.
#[test]
fn items_of_an_array_are_not_split_at_what_variables_have_in_them() {
    let env = variables(&[("V", "x  y, z"), ("EMPTY", ""), ("COMMAND", "p a")]);
    let command = |text: &str| {
        let config = good(&minimal(&format!("postgres.password_command = {text}")), &env);
        match config.postgres.conninfo.password {
            Some(Password::Command(words)) => words,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(command(r#"["p", "a ${V}", "${EMPTY}"]"#), ["p", "a x  y, z", ""]);
    assert_eq!(command(r#""${COMMAND}""#), ["p", "a"]);
    let refused = message(&minimal("postgres.password_command = \"p ${V}\""), &env);
    assert!(refused.contains("no shell splits this text into words"), "{refused}");
}

#[test]
fn the_path_of_a_file_is_no_template() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("a$b");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("h"), "x").unwrap();
    let env = variables(&[("DIR", folder.to_str().unwrap())]);
    let text = "route.headers.h = { file = \"${DIR}/h\" }\nroute.headers.d = \"${DIR}\"";
    let config = good(&minimal(text), &env);
    let values: Vec<_> = config.route.headers.iter().map(|header| header.value.fixed()).collect();
    assert!(values.contains(&Some("x")) && values.contains(&folder.to_str()), "{values:?}");
}

fn property_of<'a>(kafka: &'a Kafka, name: &str) -> &'a str {
    kafka.properties[name].reveal()
}

/// A value is inserted after the file was parsed, and before its templates are.
#[test]
fn a_variable_adds_no_keys_and_no_values_of_events() {
    let env = variables(&[("V", "x\"\n[admin]\nlisten = \"0.0.0.0:1\""), ("T", "$${payload} ${a")]);
    let config = good(
        &minimal(
            "kafka.client.rack = \"${V}\"\nroute.headers.h = \"${T}${b}\"\nroute.envelope.'${T}' = \"1\"\nroute.value = \"envelope\"",
        ),
        &env,
    );
    assert_eq!(config.admin, Admin::default());
    assert_eq!(property_of(&config.kafka, "client.rack"), env.variable("V").unwrap());
    let values: Vec<_> = config.route.headers[0].value.values().map(|value| value.name.to_string()).collect();
    assert_eq!(values, ["b"]);
    assert_eq!(config.route.headers[0].value.prefix(), "$${payload} ${a");
    assert_eq!(config.route.envelope[0].name, "${T}", "keys have no variables");
}

#[test]
fn in_a_template_columns_in_capitals_need_their_prefix() {
    let text = minimal("route.topic = \"$${REGION}\"");
    let refused = message(&text, &env());
    assert!(refused.contains("'{' is not allowed in a topic name") || refused.contains("'$'"), "{refused}");
    let config = good(
        &minimal("route.topic = \"t.${column.REGION}.${Region}.${REGION}\""),
        &variables(&[("REGION", "eu")]),
    );
    assert_eq!(config.route.topic.to_string(), "t.${column.REGION}.${Region}.eu");
}

#[test]
fn what_looks_like_a_variable_is_printed_so_that_it_is_none() {
    let text = r#"
        name = "$${A} $A {A}"
        kafka.client.rack = "$$$${A}"
        topics.config."${A}" = "$${A}"
        outbox.columns.payload = "$${A}"
        route.topic = "t.${ REGION }"
        route.headers."${A}" = "$$${ A }$${A}${a | default('${A}')}"
        [[route.rules]]
        match = { "${A}" = "x$${A}" }
        drop = true
    "#;
    let config = good(text, &with(&[("POSTGRES__URL", URL), ("KAFKA__BOOTSTRAP_SERVERS", "k:1")]));
    assert_eq!((config.name.as_str(), property_of(&config.kafka, "client.rack")), ("${A} $A {A}", "$${A}"));
    assert_eq!(config.route.topic.to_string(), "t.${ REGION }");
    assert_eq!(good(&config.to_redacted_toml(), &env()), config);
}

#[test]
fn messages_for_variables_that_are_not_set() {
    let all = [
        "kafka.sasl.password = \"${KAFKA_PASSWORD}\"",
        "\nadmin.listen = \"${A}:${B}\"\n\ntopics.allow = [\"a b\",\n \"${C}\"]",
        "[[route.rules]]\nmatch = { a = \"${D}\" }\ntopic = \"t\"",
        "name = { file = \"${E}/name\" }",
    ];
    insta::assert_snapshot!(messages(&all));
}

#[test]
fn a_variable_that_overrides_the_key_makes_its_text_irrelevant() {
    let config = good(&minimal("name = \"${UNSET}\""), &with(&[("NAME", "n")]));
    assert_eq!(config.name, "n");
}

/// Whatever is wrong with a value, and wherever it is.
#[test]
fn no_message_shows_the_value_of_a_variable() {
    let mut refused = 0;
    for value in ["hunter2 \u{7}/{}", "hunter2://u@h:port/d?x=y", "/hunter2(/", "hunter2=x y", "hunter2"] {
        let env = variables(&[("V", value)]);
        let with_value = |key: &str| {
            [
                format!("{key} = \"${{V}}\""),
                format!("{key} = [\"${{V}}\"]"),
                format!("{key} = {{ file = \"${{V}}\" }}"),
            ]
        };
        let mut names: Vec<&str> =
            KEYS.iter().map(|key| key.name).filter(|name| !name.starts_with("route.rules")).collect();
        names.extend([
            "kafka.linger.ms",
            "kafka.sasl.password",
            "kafka.debug",
            "topics.config.a",
            "route.headers.a",
        ]);
        for text in names.into_iter().flat_map(with_value) {
            let required = [("postgres.url", URL), ("kafka.\"bootstrap.servers\"", "k:1")];
            let required = required.iter().filter(|(key, _)| !text.starts_with(key));
            let rest: String = required.map(|(key, value)| format!("{key} = \"{value}\"\n")).collect();
            if text.starts_with("kafka = ") {
                continue;
            }
            if let Err(error) = parse_file(&format!("{text}\n{rest}"), &env) {
                refused += 1;
                assert!(!error.contains("hunter2"), "{text}: {error}");
            }
        }
        for key in ["topic", "partition", "value", "drop", "headers.a", "match.b"] {
            let rule = format!("[[route.rules]]\nmatch.a = \"x\"\n{key} = \"${{V}}\"");
            if let Err(error) = parse_file(&minimal(&rule), &env) {
                assert!(!error.contains("hunter2"), "{rule}: {error}");
            }
        }
    }
    assert!(refused > 200, "{refused}");
}

#[test]
fn a_password_in_a_variable_is_a_secret() {
    let env = variables(&[("PW", "hunter2")]);
    let text = "postgres.url = \"postgres://u:${PW}@h/d\"\n[kafka]\nbootstrap.servers = \"k:1\"\nsasl.password = \"${PW}\"";
    let config = good(text, &env);
    assert_eq!(property_of(&config.kafka, "sasl.password"), "hunter2");
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(!config.to_redacted_toml().contains("hunter2"));
}

/// Only a secret that is in the file itself.
#[test]
#[cfg(unix)]
fn a_world_readable_file_is_warned_about_unless_the_secret_is_a_variable() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outbox-router.toml");
    let env = variables(&[("PW", "p"), ("HOST", "h"), ("URL", "postgres://u:p@h/d")]);
    let with_url = |url: &str| format!("postgres.url = \"{url}\"\nkafka.bootstrap.servers = \"k:1\"");
    for (text, expected) in [
        (minimal("kafka.sasl.password = \"${PW}\""), 0),
        (minimal("kafka.sasl.password = \"p${PW}\""), 1),
        (with_url("postgres://u:${PW}@${HOST}/d"), 0),
        (with_url("postgres://u:p@${HOST}/d"), 1),
        (with_url("host=${HOST} user=u dbname=d password=p"), 1),
        (with_url("host=h user=u dbname=d password=${PW}"), 0),
        (with_url("${URL}"), 0),
        (with_url("${URL}?connect_timeout=5"), 0),
    ] {
        std::fs::write(&path, &text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let warnings = load(Some(&path), &env).unwrap().warnings;
        assert_eq!(warnings.len(), expected, "{text}: {warnings:?}");
    }
}
