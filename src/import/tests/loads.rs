//! The router's own loader accepts what is printed.

use std::fs;
use std::path::PathBuf;

use pg_logical::Environment;
use pg_logical::conninfo::{Host, HostAddr, Password, RootCert};
use rdkafka::ClientConfig;
use rdkafka::producer::BaseProducer;

use super::{EQUIVALENT, SERVER, STANDALONE, TUTORIAL, WITHOUT, WORKER, imported, with};
use crate::config::kafka_properties::is_built_with;
use crate::config::load::load;
use crate::config::{Config, PayloadJson, TextForm, ValueForm};
use crate::import::{Import, Level, import};

/// Loads it like a user who has put the secrets where the findings say, and has replaced patterns with the name of a table.
fn loaded(import: &Import, variables: &[(&str, &str)]) -> Config {
    let of_pattern = |line: &&str| line.starts_with("table = ") && line.contains('/');
    let configuration = match import.configuration.lines().find(of_pattern) {
        Some(line) => import.configuration.replace(line, "table = \"public.outbox\""),
        None => import.configuration.clone(),
    };
    loaded_as_it_is(&configuration, variables).unwrap_or_else(|error| panic!("{error}\n{configuration}"))
}

fn loaded_as_it_is(configuration: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outbox-router.toml");
    fs::create_dir(directory.path().join("secrets")).unwrap();
    for (_, rest) in configuration.lines().filter_map(|line| line.split_once("file = \"secrets/")) {
        let name = rest.split('"').next().unwrap();
        fs::write(directory.path().join("secrets").join(name), "hunter2").unwrap();
    }
    fs::write(&path, configuration).unwrap();
    let environment =
        variables.iter().fold(Environment::empty().with_user("me"), |environment, (name, value)| {
            environment.with_variable(name, value)
        });
    let loaded = load(Some(&path), &environment).map_err(|error| error.to_string())?;
    Ok(loaded.config)
}

#[test]
fn a_pattern_of_tables_is_refused_with_its_line() {
    for list in [r"public.outbox,audit\\..*", "shop", ".*", r"/a\\.b/?", r"(a|b)\\.c{1,2}", "a.b.c", ""] {
        let import = with_option(&format!("table.include.list={list}\n"));
        let line = import.configuration.lines().position(|line| line.starts_with("table = ")).unwrap() + 1;
        let error = loaded_as_it_is(&import.configuration, &[]).unwrap_err();
        assert!(
            error.contains(&format!("outbox-router.toml:{line}:"))
                && error.contains("`outbox.table`: this is a pattern, and the router takes names"),
            "{list}: {error}"
        );
        assert!(
            import.findings.iter().any(|finding| finding.meaning.contains("every command refuses")),
            "{list}"
        );
    }
}

#[test]
fn what_is_printed_loads() {
    for text in [TUTORIAL, EQUIVALENT, WITHOUT, SERVER] {
        loaded(&imported(text), &[]);
        loaded(&import(text, &with(Some("kafka:9092"), Some(WORKER))).unwrap(), &[]);
    }
}

#[test]
fn cases_of_the_comparison_with_debezium_load() {
    let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/parity/cases");
    for case in fs::read_dir(cases).unwrap() {
        let text = fs::read_to_string(case.unwrap().path().join("connector.json")).unwrap();
        let place = [
            ("@HOST@", "db"),
            ("@PORT@", "5432"),
            ("@USER@", "debezium"),
            ("@DATABASE@", "shop"),
            ("@SLOT@", "shop"),
        ];
        let text =
            place.into_iter().fold(text, |text, (placeholder, value)| text.replace(placeholder, value));
        loaded(&imported(&text), &[]);
    }
}

const PASSWORD: &str = "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username=\"a\" password=\"hunter2\";";
const OAUTH: &str = "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \
                     clientId=\"a\" clientSecret=\"hunter2\" scope=\"b\" extension_c=\"d\";";
const OAUTH_ELSEWHERE: &str = "sasl.jaas.config=${file:/run/secrets/kafka.properties:jaas}";
const TOKENS: &str = "sasl.oauthbearer.token.endpoint.url=https://id.invalid/token";
const HANDLER: &str = "sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler";

/// The translation of a connector with these settings of its producer.
fn with_producer(settings: &[&str]) -> Import {
    let settings = settings.iter().map(|setting| format!("producer.override.{setting}\n"));
    with_option(&settings.collect::<String>())
}

#[test]
fn a_client_can_be_created_with_every_login() {
    let variables = [
        ("OUTBOX_ROUTER_KAFKA__SASL_OAUTHBEARER_CLIENT_ID", "a"),
        ("OUTBOX_ROUTER_KAFKA__SASL_OAUTHBEARER_CLIENT_SECRET", "hunter2"),
    ];
    let logins: [&[&str]; 18] = [
        &[],
        &[PASSWORD],
        &["sasl.mechanism=PLAIN", PASSWORD],
        &["sasl.mechanism=SCRAM-SHA-512", PASSWORD],
        &["sasl.mechanism=GSSAPI", "sasl.kerberos.service.name=kafka"],
        &["sasl.mechanism=AWS_MSK_IAM"],
        &["sasl.mechanism=com.example.OWN", PASSWORD],
        &["sasl.mechanism=OAUTHBEARER"],
        &["sasl.mechanism=OAUTHBEARER", TOKENS],
        &["sasl.mechanism=OAUTHBEARER", OAUTH],
        &["sasl.mechanism=OAUTHBEARER", PASSWORD, TOKENS],
        &["sasl.mechanism=OAUTHBEARER", OAUTH, TOKENS],
        &["sasl.mechanism=OAUTHBEARER", OAUTH, TOKENS, HANDLER, "sasl.login.retry.backoff.ms=100"],
        &["sasl.mechanism=OAUTHBEARER", OAUTH_ELSEWHERE, TOKENS, HANDLER],
        &["sasl.mechanism=OAUTHBEARER", OAUTH, "sasl.oauthbearer.token.endpoint.url=file:///run/token"],
        &[
            "sasl.mechanism=OAUTHBEARER",
            OAUTH,
            "sasl.oauthbearer.token.endpoint.url=https://a:b@id.invalid/token",
        ],
        &[
            "sasl.mechanism=OAUTHBEARER",
            OAUTH,
            TOKENS,
            "sasl.login.callback.handler.class=com.example.Handler",
        ],
        &[
            "sasl.mechanism=OAUTHBEARER",
            "sasl.oauthbearer.client.credentials.client.id=a",
            "sasl.oauthbearer.client.credentials.client.secret=hunter2",
            TOKENS,
        ],
    ];
    for protocol in [None, Some("PLAINTEXT"), Some("SSL"), Some("SASL_PLAINTEXT"), Some("SASL_SSL")] {
        let setting = protocol.map(|protocol| format!("security.protocol={protocol}"));
        for login in logins {
            let settings: Vec<&str> = setting.as_deref().into_iter().chain(login.iter().copied()).collect();
            let elsewhere = login.contains(&OAUTH_ELSEWHERE);
            let import = with_producer(&settings);
            assert!(!import.configuration.contains("hunter2"), "{}", import.configuration);
            let config = loaded(&import, if elsewhere { &variables } else { &[] });
            let mut client = ClientConfig::new();
            for (name, value) in &config.kafka.properties {
                client.set(name, value.reveal());
            }
            let named = config.kafka.properties.get("security.protocol").map(|value| value.reveal());
            assert!(protocol != Some("SSL") || named == protocol, "{}", import.configuration);
            if let Err(error) = client.create::<BaseProducer>() {
                panic!("{settings:?}: {error}\n{}", import.configuration);
            }
        }
    }
}

#[test]
fn an_oauth_client_is_translated() {
    if !is_built_with("oidc") {
        return;
    }
    let import =
        with_producer(&["security.protocol=SASL_SSL", "sasl.mechanism=OAUTHBEARER", OAUTH, TOKENS, HANDLER]);
    let config = loaded(&import, &[]);
    for (property, value) in [
        ("security.protocol", "SASL_SSL"),
        ("sasl.mechanism", "OAUTHBEARER"),
        ("sasl.oauthbearer.method", "oidc"),
        ("sasl.oauthbearer.token.endpoint.url", "https://id.invalid/token"),
        ("sasl.oauthbearer.client.id", "a"),
        ("sasl.oauthbearer.client.secret", "hunter2"),
        ("sasl.oauthbearer.scope", "b"),
        ("sasl.oauthbearer.extensions", "c=d"),
    ] {
        assert_eq!(
            config.kafka.properties.get(property).map(|value| value.reveal()),
            Some(value),
            "{property}"
        );
    }
    assert!(!import.configuration.contains("ca."), "{}", import.configuration);
    let login = |level: Level| {
        import.findings.iter().any(|finding| finding.level == level && finding.setting.contains("sasl."))
    };
    assert!(!login(Level::NoEquivalent) && !login(Level::Differs), "{:?}", import.findings);
}

/// Java reads the authority of the token server's certificate from the login, that of the brokers' from the producer.
#[test]
fn each_server_keeps_its_own_authority() {
    if !is_built_with("oidc") {
        return;
    }
    let brokers = "ssl.truststore.location=/etc/kafka/brokers.jks";
    for (of_login, property, value, to_do) in [
        (
            "ssl.truststore.type=\"PEM\" ssl.truststore.location=\"/etc/ca/id\"",
            "https.ca.location",
            "/etc/ca/id",
            false,
        ),
        ("ssl.truststore.location=\"/etc/ca/id.pem\"", "https.ca.location", "/etc/ca/id.pem", false),
        (
            "ssl.truststore.location=\"/etc/ca/id.p12\" ssl.truststore.password=\"hunter2\"",
            "https.ca.location",
            "token_server_ca.pem",
            true,
        ),
        (
            "ssl.truststore.certificates=\"-----BEGIN CERTIFICATE-----\"",
            "https.ca.pem",
            "-----BEGIN CERTIFICATE-----",
            false,
        ),
    ] {
        let login = OAUTH.replace(';', &format!(" {of_login};"));
        let import = with_producer(&[
            "security.protocol=SASL_SSL",
            "sasl.mechanism=OAUTHBEARER",
            brokers,
            &login,
            TOKENS,
        ]);
        let config = loaded(&import, &[]);
        let shown = |name: &str| config.kafka.properties.get(name).map(|value| value.reveal());
        assert_eq!(shown(property), Some(value), "{of_login}");
        assert_eq!(shown("ssl.ca.location"), Some("kafka_ca.pem"));
        let asked = import.findings.iter().any(|finding| finding.meaning.contains("token_server_ca.pem"));
        assert_eq!(asked, to_do, "{of_login}");
        assert!(!import.configuration.contains("hunter2"), "{}", import.configuration);
    }
}

#[test]
fn what_is_kept_elsewhere_comes_from_the_variables_that_are_named() {
    let variables = [
        ("PGHOST", "db"),
        ("PGUSER", "debezium"),
        ("OUTBOX_ROUTER_POSTGRES__SLOT", "shop"),
        ("OUTBOX_ROUTER_KAFKA__SASL_USERNAME", "shop"),
        ("OUTBOX_ROUTER_KAFKA__SASL_PASSWORD", "hunter2"),
    ];
    let import = imported(STANDALONE);
    for (variable, _) in variables {
        assert!(import.findings.iter().any(|finding| finding.meaning.contains(variable)), "{variable}");
    }
    let config = loaded(&import, &variables);
    assert_eq!(config.postgres.slot, "shop");
    assert_eq!(config.postgres.conninfo.user, "debezium");
}

#[test]
fn it_means_what_the_connector_meant() {
    let config = loaded(&imported(EQUIVALENT), &[]);
    let tables: Vec<String> = config.outbox.tables.iter().map(ToString::to_string).collect();
    assert_eq!(tables, ["orders.outbox", "billing.outbox"]);
    assert_eq!(config.route.text, TextForm::Connect);
    assert_eq!(config.route.value, ValueForm::Envelope);
    let expand = PayloadJson::Expand { keep_nulls: true, keep_empty_arrays: false };
    assert_eq!(config.route.payload_json, expand);
    let headers: Vec<&str> = config.route.headers.iter().map(|header| header.name.as_str()).collect();
    assert_eq!(headers, ["eventType", "tenant", "source.system"], "in the connector's order");
    let members: Vec<&str> = config.route.envelope.iter().map(|member| member.name.as_str()).collect();
    assert_eq!(members, ["aggregateId", "occurredAt"]);
    assert_eq!(config.topics.partitions, Some(12));
}

fn with_option(option: &str) -> Import {
    imported(&format!(
        "plugin.name=pgoutput\ndatabase.hostname=db\ndatabase.user=debezium\ntable.include.list=public.outbox\ntransforms=o\n\
         transforms.o.type=io.debezium.transforms.outbox.EventRouter\n{option}"
    ))
}

#[test]
fn placements_load() {
    for placement in [
        "type:header",
        "event_type:header:type,tenant:header",
        "event_type:header:eventType",
        "event_type:envelope:type,kind:header:type",
        "created_at:header",
        "headers:header,a|b:header,id:header,id:header:eventId",
        "aggregateid:header:key,payload:header:body",
        "type:header:id,type:envelope:payload,type:envelope:kind",
        " a : header : x.y , b:ENVELOPE,c:partition,d:partition",
        "type:header:,b:envelope:,c:header: ,:header,",
    ] {
        loaded(&with_option(&format!("transforms.o.table.fields.additional.placement={placement}")), &[]);
    }
}

#[test]
fn expressions_of_topics_load() {
    for (regex, replacement) in [
        ("(?<routedByValue>.*)", "x.${routedByValue}"),
        ("(a)(b)?", "x.$1$2"),
        ("(?i)(order)s?", "$0.\\\\$1"),
        ("(?i)(order)s?", "$0.$1"),
        (r"([a-z]+?)_\\d+", "events.$1"),
        (r"\\p{Alpha}+", "all"),
        (r"\\Qa.b\\E/(.*)", "$1"),
        (r#"it's \\("(.*)"\\)"#, "$1"),
        ("(", "x"),
        ("(a)", "$2"),
    ] {
        let option = format!(
            "transforms.o.route.topic.regex={regex}\ntransforms.o.route.topic.replacement={replacement}"
        );
        loaded(&with_option(&option), &[]);
    }
}

#[test]
fn every_value_is_read_back_as_it_was() {
    let mut odd: Vec<String> = r#"/@:?#%[] &=+'"\$,;|{}~ü"#.chars().map(String::from).collect();
    odd.extend(["${A}", "$${A}", "${a}", "%20", "\u{1f980}"].map(str::to_owned));
    for odd in odd {
        for host in ["db", "::1", "fe80::1%eth0"] {
            let value = format!("a{odd}b");
            let path = format!("/etc/{value}");
            let mut connector = serde_json::json!({
                "plugin.name": "pgoutput", "table.include.list": "public.outbox", "database.hostname": host,
                "database.user": value, "database.dbname": value, "database.sslrootcert": path,
                "database.password": format!("${{directory:/run/{value}:password}}"), "publication.name": value,
                "producer.override.client.id": value, "topic.creation.default.cleanup.policy": value,
                "producer.override.sasl.kerberos.service.name": value,
                "transforms": "o,h", "transforms.o.type": "io.debezium.transforms.outbox.EventRouter",
                "transforms.o.table.field.event.id": value,
                "transforms.h.type": "org.apache.kafka.connect.transforms.InsertHeader",
                "transforms.h.header": value, "transforms.h.value.literal": value,
            });
            let in_path = !odd.contains([':', '}']);
            if !in_path {
                connector.as_object_mut().unwrap().remove("database.password");
            }
            let config = loaded(&imported(&connector.to_string()), &[]);
            let conninfo = &config.postgres.conninfo;
            let expected = Host { addr: HostAddr::Tcp { name: host.to_owned(), hostaddr: None }, port: 5432 };
            assert_eq!(conninfo.hosts, [expected]);
            assert_eq!((&conninfo.user, &conninfo.dbname), (&value, &value));
            assert_eq!(conninfo.ssl_root_cert, Some(RootCert::File(path.into())));
            match &conninfo.password {
                Some(Password::File(file)) => {
                    assert_eq!(*file, PathBuf::from(format!("/run/{value}/password")))
                }
                other => assert!(!in_path && other.is_none(), "{other:?}"),
            }
            assert_eq!(config.postgres.publication, value);
            for property in ["client.id", "sasl.kerberos.service.name"] {
                assert_eq!(
                    config.kafka.properties.get(property).map(|value| value.reveal()),
                    Some(value.as_str())
                );
            }
            assert_eq!(config.topics.config.get("cleanup.policy"), Some(&value));
            assert_eq!(config.outbox.columns.id, value);
            assert_eq!(config.route.headers[0].name, value);
            assert_eq!(config.route.headers[0].value.to_string(), value.replace('$', "$$"));
        }
    }
}

#[test]
fn a_column_in_capitals_is_not_a_variable() {
    let import = with_option("transforms.o.table.fields.additional.placement=TENANT:header,A_1:partition\n");
    let config = loaded(&import, &[]);
    assert_eq!(config.route.headers[0].value.to_string(), "${column.TENANT}");
}

#[test]
fn a_configuration_loads_or_a_finding_says_why_not() {
    let settings = [
        "database.hostname",
        "database.port",
        "database.user",
        "database.dbname",
        "database.sslmode",
        "database.sslrootcert",
        "slot.name",
        "publication.name",
        "table.include.list",
        "topic.creation.default.partitions",
        "topic.creation.default.replication.factor",
        "topic.creation.default.cleanup.policy",
        "topic.creation.default.",
        "producer.override.bootstrap.servers",
        "producer.override.linger.ms",
        "producer.override.security.protocol",
        "producer.override.ssl.endpoint.identification.algorithm",
        "transforms.o.table.field.event.id",
        "transforms.o.table.field.event.key",
        "transforms.o.table.field.event.payload",
        "transforms.o.table.field.event.timestamp",
        "transforms.o.route.by.field",
        "transforms.o.tracing.span.context.field",
        "transforms.o.table.fields.additional.placement",
        "transforms.o.route.topic.regex",
        "transforms.o.route.topic.replacement",
        "exactly.once.support",
    ];
    let long = "x".repeat(300);
    let values = [
        "",
        "x",
        "X.y",
        "-1",
        "0",
        "70000",
        "a b",
        "ü:header",
        "${A}",
        "a\tb",
        "a\u{7f}",
        "\"",
        "$",
        "a,,b",
        &long,
    ];
    let mut refused = Vec::new();
    for setting in settings {
        for value in values {
            let mut connector = serde_json::json!({
                "plugin.name": "pgoutput", "table.include.list": "public.outbox", "database.hostname": "db",
                "transforms": "o", "transforms.o.type": "io.debezium.transforms.outbox.EventRouter",
            });
            connector.as_object_mut().unwrap().insert(setting.to_owned(), value.into());
            let import = imported(&connector.to_string());
            let said = import.findings.iter().any(|finding| {
                finding.meaning.starts_with("Every command refuses it")
                    || finding.meaning.contains("which every command refuses")
            });
            let loads = loaded_as_it_is(&import.configuration, &[]);
            assert_eq!(
                loads.is_err(),
                said,
                "{setting}={value}: {:?}\n{}",
                loads.err(),
                import.configuration
            );
            if said && value.len() < 10 {
                refused.push(format!("{setting}={value}"));
            }
        }
    }
    for case in ["transforms.o.table.field.event.key=", "database.port=x", "database.sslmode=x"] {
        assert!(refused.iter().any(|refused| refused == case), "{case} of {refused:?}");
    }
}

#[test]
fn what_the_router_refuses_is_told_with_its_setting() {
    let told = |settings: &str| {
        let import = with_option(settings);
        let refused = import.findings.iter().filter(|finding| finding.meaning.contains("refuses it"));
        let refused =
            refused.map(|finding| format!("{} = {:?}: {}", finding.setting, finding.value, finding.meaning));
        refused.collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(
        [
            "transforms.o.table.field.event.key=",
            "database.port=x",
            "database.sslmode=requir\nslot.name=Outbox",
            "transforms.o.route.topic.replacement=a$$b",
            "producer.override.security.protocol=SASL_TLS",
            "database.user=${file:/a:b}\nproducer.override.ssl.keystore.key=hunter2",
        ]
        .map(|settings| format!("{settings}\n{}", told(settings)))
        .join("\n\n")
    );
}
