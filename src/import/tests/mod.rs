//! From complete files to complete configurations and findings.

mod loads;

use super::*;

const TUTORIAL: &str = include_str!("tutorial.json");
const EQUIVALENT: &str = include_str!("equivalent.json");
const WITHOUT: &str = include_str!("without.json");
const STANDALONE: &str = include_str!("standalone.properties");
const WORKER: &str = include_str!("worker.properties");
const SERVER: &str = include_str!("server.properties");

fn imported(text: &str) -> Import {
    let import = import(text, &Surroundings::default()).unwrap();
    for Finding { meaning, .. } in &import.findings {
        let words = meaning.split_whitespace().count();
        assert!(words <= 60, "{words} words: {meaning}");
    }
    import
}

fn with(bootstrap_servers: Option<&str>, worker: Option<&str>) -> Surroundings {
    Surroundings {
        bootstrap_servers: bootstrap_servers.map(str::to_owned),
        worker: worker.map(str::to_owned),
    }
}

/// Configuration and findings as one text for a snapshot.
fn shown(import: &Import) -> String {
    let mut text = import.configuration.clone() + "\n";
    for Finding { level, setting, value, meaning } in &import.findings {
        let value = value.as_ref().map_or("(not set)".to_owned(), |value| format!("= {value}"));
        text += &format!("{}: {setting} {value}\n    {meaning}\n", level.label());
    }
    text
}

#[test]
fn the_connector_of_the_tutorial() {
    insta::assert_snapshot!(shown(&imported(TUTORIAL)));
}

#[test]
fn a_connector_whose_every_setting_has_an_equivalent() {
    let import = import(EQUIVALENT, &with(Some("kafka:9093"), None)).unwrap();
    insta::assert_snapshot!(shown(&import));
    assert!(import.is_complete());
}

#[test]
fn what_has_no_equivalent_is_named() {
    let import = imported(WITHOUT);
    insta::assert_snapshot!(shown(&import));
    assert!(!import.is_complete());
}

#[test]
fn a_standalone_connector_with_values_kept_elsewhere() {
    insta::assert_snapshot!(shown(&imported(STANDALONE)));
}

#[test]
fn an_update_that_debezium_skips_does_not_stop_the_router() {
    let stops = |import: &Import| import.configuration.contains("on_update");
    assert!(stops(&imported(EQUIVALENT)));
    let skipping = EQUIVALENT.replacen('{', "{ \"skipped.operations\": \"U,d\",", 1);
    let import = imported(&skipping);
    assert!(!stops(&import));
    let named = import.findings.iter().any(|finding| finding.setting.ends_with("table.op.invalid.behavior"));
    assert!(named);
}

#[test]
fn a_worker_file_without_brokers_is_refused() {
    for text in ["offset.flush.interval.ms=1000", "{ \"bootstrap.servers\": \"kafka:9092\" }"] {
        let error = import(TUTORIAL, &with(None, Some(text))).unwrap_err();
        assert!(error.to_string().contains("--worker-config: there are no bootstrap.servers"), "{error}");
    }
}

#[test]
fn debezium_server() {
    insta::assert_snapshot!(shown(&imported(SERVER)));
}

#[test]
fn a_worker_tells_brokers_and_converters() {
    let import = import(TUTORIAL, &with(None, Some(WORKER))).unwrap();
    insta::assert_snapshot!(shown(&import));
}

#[test]
fn a_known_worker_leaves_nothing_to_guess() {
    let connector = "transforms=o\ntransforms.o.type=io.debezium.transforms.outbox.EventRouter\n\
                     exactly.once.support=requested\n";
    let worker = "bootstrap.servers=kafka:9092\n";
    let guesses = |worker: Option<&str>| {
        let import = import(connector, &with(None, worker)).unwrap();
        let guesses =
            ["worker could", "this file does not show", "It depends on the workers", "import again"];
        let guessed = |finding: &&Finding| guesses.iter().any(|guess| finding.meaning.contains(guess));
        import.findings.iter().filter(guessed).map(|finding| finding.setting.clone()).collect::<Vec<_>>()
    };
    let all =
        ["key.converter", "value.converter", "bootstrap.servers", "exactly.once.support", "header.converter"];
    assert_eq!(guesses(None), all);
    assert_eq!(guesses(Some(worker)), Vec::<String>::new());
}

#[test]
fn no_secret_is_printed() {
    for text in [TUTORIAL, EQUIVALENT, WITHOUT, STANDALONE, SERVER] {
        let import = imported(text);
        let all = shown(&import) + &serde_json::to_string(&import).unwrap();
        for secret in ["hunter2", "postgrespw", "CzQMA0cB5K"] {
            assert!(!all.contains(secret), "{secret}: {all}");
        }
    }
}

#[test]
fn no_secret_is_printed_that_stands_in_a_value_or_a_default() {
    let connect = "database.initial.statements=SET x.key TO 'hunter2'\nfrobnicate=tOken hunter2\n\
                   signal.kafka.x=https://hunter2@broker\nerrors.log.x=${env:A}hunter2 secret\n\
                   message.prefix.include.list=${file:/run/secrets/a:token}\n";
    let server = "quarkus.datasource.password=${DB_PASSWORD:hunter2}\nquarkus.oidc.secret=${SECRET}\n";
    let prefix = |under: &str| {
        format!(
            "{under}transforms=o\n{under}transforms.o.type={}\n",
            "io.debezium.transforms.outbox.EventRouter"
        )
    };
    for text in [prefix("") + connect, prefix("debezium.") + server] {
        let import = imported(&text);
        let all = shown(&import) + &serde_json::to_string(&import).unwrap();
        assert!(!all.contains("hunter2"), "{all}");
        // a reference to a secret is not secret
        assert!(all.contains("= ${file:/run/secrets/a:token}\n") || all.contains("= ${SECRET}\n"), "{all}");
    }
}

#[test]
fn every_setting_is_in_the_configuration_or_among_the_findings() {
    // settings that the preset and the defaults cover without a key
    let as_by_default = [
        "database.hostname",
        "header.converter",
        "key.converter",
        "plugin.name",
        "route.topic.regex",
        "slot.drop.on.stop",
        "topic.prefix",
    ];
    for text in [TUTORIAL, WITHOUT] {
        let all = shown(&imported(text));
        let root: serde_json::Value = serde_json::from_str(text).unwrap();
        for name in root["config"].as_object().unwrap().keys() {
            let belongs =
                ["transforms.", "predicates", "value.converter.", "key.converter.", "column.mask.hash"];
            let known =
                as_by_default.contains(&name.as_str()) || belongs.iter().any(|part| name.starts_with(part));
            let itself = ["connector.class", "transforms", "producer.override.ssl.key.password"];
            assert!(known || itself.contains(&name.as_str()) || all.contains(name.as_str()), "{name}");
        }
    }
}

#[test]
fn options_of_a_converter_that_is_not_named_are_findings() {
    let router = "transforms=o\ntransforms.o.type=io.debezium.transforms.outbox.EventRouter\n";
    let options = "value.converter.schema.registry.url=http://registry:8081\n\
                   key.converter.basic.auth.user.info=user:hunter2\nvalue.converter.schemas.enable=false\n\
                   header.converter.x=1\n";
    let of_converters = |import: &Import| {
        let options = import.findings.iter().filter(|finding| finding.setting.contains(".converter"));
        let options = options
            .map(|finding| format!("{}: {} = {:?}", finding.level.label(), finding.setting, finding.value));
        options.collect::<Vec<_>>().join("\n")
    };
    let alone = imported(&format!("{router}{options}"));
    // the worker's converter uses the worker's options
    let worker = "value.converter=org.apache.kafka.connect.json.JsonConverter\nkey.converter.a=b\n\
                  bootstrap.servers=kafka:9092\n";
    let under = import(&format!("{router}{options}"), &with(None, Some(worker))).unwrap();
    let elsewhere = imported(&format!("{router}value.converter=${{env:CONVERTER}}\nvalue.converter.y=2\n"));
    insta::assert_snapshot!([alone, under, elsewhere].map(|import| of_converters(&import)).join("\n\n"));
}

#[test]
fn a_file_without_the_event_router_is_refused() {
    let refused = |text: &str| import(text, &Surroundings::default()).unwrap_err().to_string();
    insta::assert_snapshot!(
        [
            "{}",
            "tasks.max=1",
            "transforms=a\ntransforms.a.type=org.apache.kafka.connect.transforms.RegexRouter",
            "transforms.a.type=io.debezium.transforms.outbox.EventRouter",
            "connector.class=io.debezium.connector.mysql.MySqlConnector\ntransforms=a",
            "",
        ]
        .map(refused)
        .join("\n")
    );
}

/// `table` and the findings about tables, for a connector with these settings besides a minimum.
fn tables_of(settings: &str) -> String {
    let text = format!(
        "plugin.name=pgoutput\ntopic.prefix=shop\ntransforms=o\n\
         transforms.o.type=io.debezium.transforms.outbox.EventRouter\n{settings}"
    );
    let import = imported(&text);
    let line = import.configuration.lines().filter(|line| line.starts_with("table = "));
    let about_tables =
        |finding: &&Finding| ["list", "predicate"].iter().any(|word| finding.setting.contains(word));
    let findings = import.findings.iter().filter(about_tables);
    let findings = findings
        .map(|finding| format!("{}: {}: {}", finding.level.label(), finding.setting, finding.meaning));
    line.map(str::to_owned).chain(findings).collect::<Vec<_>>().join("\n")
}

const TOPICS: &str = "transforms.o.predicate=p\n\
                      predicates.p.type=org.apache.kafka.connect.transforms.predicates.TopicNameMatches\n";

#[test]
fn a_pattern_of_tables_stays_in_the_configuration_until_it_is_replaced() {
    let by_predicate = |pattern: &str| format!("{TOPICS}predicates.p.pattern={pattern}\n");
    let literal = by_predicate(r"shop\\.public\\.outbox");
    let cases = [
        r"table.include.list=public.outbox,audit\\..*,g".to_owned(),
        r"table.include.list=.*\\.outbox".to_owned(),
        String::new(),
        "table.include.list=${env:TABLES}".to_owned(),
        "schema.include.list=orders,billing".to_owned(),
        r"table.exclude.list=public\\.customers".to_owned(),
        "table.include.list=a.outbox,b.outbox\nschema.exclude.list=b".to_owned(),
        literal.clone(),
        format!("{literal}table.include.list=.*\\\\.outbox"),
        by_predicate(r"shop\\.(a\\.outbox|b\\..*)"),
        by_predicate("other[.]a[.]outbox"),
        format!("{}transforms.o.negate=true\n", by_predicate(r"shop\\.public\\.customers")),
        "transforms.o.predicate=p\ntable.include.list=public.outbox,c\\\\d".to_owned(),
    ];
    let told =
        cases.map(|settings| format!("{settings}\n    {}\n", tables_of(&settings).replace('\n', "\n    ")));
    insta::assert_snapshot!(told.join("\n"));
}

/// The translation of a placement in a minimal connector.
fn placed(placement: &str, more: &str) -> String {
    let text = format!(
        "plugin.name=pgoutput\ntable.include.list=public.outbox\ntransforms=o\n\
         transforms.o.type=io.debezium.transforms.outbox.EventRouter\n\
         transforms.o.table.fields.additional.placement={placement}\n{more}"
    );
    let import = imported(&text);
    let lines = import.configuration.lines().filter(|line| line.contains("placement"));
    let lines = lines.map(|line| line.split("  #").next().unwrap_or_default().to_owned());
    let findings = import.findings.iter().filter(|finding| finding.setting.ends_with("placement"));
    let findings = findings.map(|finding| format!("{}: {}", finding.level.label(), finding.meaning));
    lines.chain(findings).collect::<Vec<_>>().join("\n")
}

#[test]
fn columns_that_are_called_like_keys() {
    let timestamp = "transforms.o.table.field.event.timestamp=at";
    insta::assert_snapshot!(
        [
            ("type:header", ""),
            ("event_type:header:type,tenant:header", ""),
            ("event_type:header:eventType", ""),
            ("event_type:envelope:type,kind:header:type", ""),
            ("created_at:header", ""),
            ("created_at:header", timestamp),
            ("at:header", timestamp),
            ("aggregate_id:header,headers:header,a|b:header", ""),
            ("aggregateid:header:key,payload:header:body", ""),
            (" a : header : x , b:ENVELOPE,c:partition,d:partition", ""),
            ("type:header:", ""),
            ("type:header:x:,b:partition::,", ""),
            (",type:header,b::header,c:header::x,d,", ""),
            ("type:header: ,b:header,:header,c:body", ""),
        ]
        .map(|(placement, more)| format!("{placement} {more}\n{}\n", placed(placement, more)))
        .join("\n")
    );
}

/// The keys of columns in the configuration, and the findings about the lists of columns.
fn columns_of(settings: &str) -> String {
    let import = imported(&format!(
        "plugin.name=pgoutput\ntransforms=o\ntransforms.o.type=io.debezium.transforms.outbox.EventRouter\n{settings}"
    ));
    let keys = ["columns", "partition", "headers.", "envelope.", "value", "missing_columns"];
    let lines = import.configuration.lines().filter(|line| keys.iter().any(|key| line.starts_with(key)));
    let lines = lines.map(|line| line.split("  #").next().unwrap_or_default().to_owned());
    let about = import.findings.iter().filter(|finding| finding.setting.starts_with("column."));
    let about =
        about.map(|finding| format!("{}: {}: {}", finding.level.label(), finding.setting, finding.meaning));
    lines.chain(about).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_column_that_debezium_does_not_read_is_not_sent() {
    const ONE: &str = "table.include.list=public.outbox\n";
    const TWO: &str = "table.include.list=a.outbox,b.outbox\n";
    const IGNORE: &str = "transforms.o.table.fields.additional.error.on.missing=false\n";
    let place = |placement: &str| format!("transforms.o.table.fields.additional.placement={placement}\n");
    let cases = [
        format!(
            "{ONE}{IGNORE}{}column.exclude.list=public.outbox.tenant",
            place("tenant:header,type:header")
        ),
        format!("{ONE}{}column.exclude.list=public.outbox.tenant", place("tenant:header:x")),
        format!("{ONE}{IGNORE}{}column.exclude.list=.*\\\\.Tenant", place("tenant:partition,type:header")),
        format!("{ONE}{IGNORE}{}column.exclude.list=public.outbox.tenant", place("tenant:envelope")),
        format!("{TWO}{IGNORE}{}column.exclude.list=b.outbox.tenant", place("tenant:header")),
        format!("{ONE}{IGNORE}{}column.exclude.list=outbox.tenant,public.outbox.ten", place("tenant:header")),
        format!(
            "{ONE}{IGNORE}{}column.include.list=public.outbox.(id|aggregatetype|aggregateid|payload)",
            place("tenant:header")
        ),
        format!("{ONE}column.include.list=public.outbox.(id|aggregate.*)"),
        format!(
            "{ONE}column.exclude.list=public.outbox.(at|trace)\ntransforms.o.table.field.event.timestamp=at\n\
                 transforms.o.tracing.span.context.field=trace"
        ),
        format!("{ONE}column.exclude.list=public.outbox.key\ntransforms.o.table.field.event.key=key"),
        format!("{}column.exclude.list=public.outbox.tenant", place("tenant:header")),
        format!("{ONE}{}column.exclude.list=", place("tenant:header")),
    ];
    let told =
        cases.map(|settings| format!("{settings}\n    {}\n", columns_of(&settings).replace('\n', "\n    ")));
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn a_slot_that_the_connector_still_needs_is_not_taken_over() {
    const SLOT: &str = "topic.prefix=shop\ntransforms=o,p\ntransforms.o.type=io.debezium.transforms.outbox.EventRouter\n\
                        slot.name=shop_outbox\npublication.name=shop\nslot.drop.on.stop=true\nlsn.flush.mode=manual\n";
    let literal = format!("{TOPICS}predicates.p.pattern=shop\\\\.public\\\\.outbox\n");
    let by_variable = "plugin.name=pgoutput\nslot.name=${env:SLOT}\npublication.name=${env:PUBLICATION}\n";
    let of_slot = |settings: String| {
        let import = imported(&format!("{SLOT}{settings}"));
        let lines = import
            .configuration
            .lines()
            .filter(|line| line.starts_with("slot") || line.starts_with("publication"));
        let names = ["slot.", "publication.name", "lsn.", "plugin.name", "list", "p.type"];
        let about =
            import.findings.iter().filter(|finding| names.iter().any(|name| finding.setting.contains(name)));
        let about = about
            .map(|finding| format!("{}: {}: {}", finding.level.label(), finding.setting, finding.meaning));
        let told = lines.map(str::to_owned).chain(about).collect::<Vec<_>>().join("\n");
        format!("{settings}\n    {}\n", told.replace('\n', "\n    "))
    };
    let cases = [
        "plugin.name=pgoutput\ntable.include.list=public.outbox".to_owned(),
        "plugin.name=decoderbufs\ntable.include.list=public.outbox".to_owned(),
        format!("plugin.name=pgoutput\n{literal}table.include.list=public.outbox,public.customer"),
        format!("plugin.name=pgoutput\n{literal}table.include.list=public.*"),
        format!("plugin.name=pgoutput\n{literal}"),
        format!("{by_variable}{literal}table.include.list=public.outbox,public.customer"),
        "plugin.name=pgoutput\ntable.include.list=public.outbox\nmessage.prefix.include.list=audit"
            .to_owned(),
        "plugin.name=pgoutput\ntable.include.list=public.outbox\n\
         transforms.p.type=io.debezium.transforms.outbox.EventRouter"
            .to_owned(),
    ];
    insta::assert_snapshot!(cases.map(of_slot).join("\n"));
}

#[test]
fn wrong_values_and_names_of_earlier_versions_are_named() {
    const BASE: &str = "plugin.name=pgoutput\nextended.headers.enabled=false\nkey.converter=StringConverter\n\
                        value.converter=org.apache.kafka.connect.json.JsonConverter\nheader.converter=SimpleHeaderConverter\n\
                        transforms=o\ntransforms.o.type=io.debezium.transforms.outbox.EventRouter\n";
    let findings = |settings: &str| imported(&format!("{BASE}{settings}")).findings;
    let usual = findings("");
    let cases = [
        "transforms.o.table.expand.json.payload=yes",
        "transforms.o.table.expand.json.payload=True",
        "transforms.o.table.op.invalid.behavior=stop",
        "transforms.o.table.json.payload.null.behavior=keep",
        "transforms.o.route.tombstone.on.empty.payload=",
        "transforms.o.negate=1",
        "value.converter.schemas.enable=no",
        "publication.autocreate.mode=filterd",
        "publication.autocreate.mode=FILTERED",
        "skipped.operations=u,x",
        "skipped.operations=u,d",
        "decimal.handling.mode=strings",
        "errors.tolerance=some",
        "exactly.once.support=yes",
        "producer.override.compression.type=lzo",
        "slot.drop.on.stop=${env:DROP}",
        "slot.drop_on_stop=true",
        "slot.drop_on_stop=true\nslot.drop.on.stop=false",
        "table.whitelist=public.outbox",
        "table.blacklist=public.other",
        "database.server.name=shop",
        "transforms.o.table.field.payload.id=key",
        "frobnicate=1",
    ];
    let told = cases.map(|case| {
        let found = findings(case);
        let more = found.iter().filter(|finding| !usual.contains(finding));
        let more = more.map(|finding| {
            format!("    {}: {}: {}\n", finding.level.label(), finding.setting, finding.meaning)
        });
        format!("{case}\n{}", more.collect::<String>())
    });
    insta::assert_snapshot!(told.join("\n"));
}
