//! The configuration file, and the files that it refers to.

use super::*;

#[test]
fn any_text_may_be_in_a_separate_file_beside_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("url", &format!("{URL}\n"));
    write("password", "p w\r\n");
    write("window", "2MiB\n");
    write(
        "outbox-router.toml",
        r#"
        [postgres]
        url = { file = "url" }
        password_file = "password"
        [kafka]
        bootstrap.servers = "kafka:9092"
        sasl.password = { file = "password" }
        [delivery]
        window.bytes = { file = "window" }
        "#,
    );
    let env = env().with_variable(
        "OUTBOX_ROUTER_KAFKA__SSL_KEY_PASSWORD__FILE",
        directory.path().join("password").to_str().unwrap(),
    );
    let path = directory.path().join("outbox-router.toml");
    let Loaded { config, file, variables, warnings } = load(Some(&path), &env).unwrap();
    assert_eq!(config.postgres.conninfo.dbname, "shop");
    assert_eq!(config.postgres.conninfo.password, Some(Password::File(directory.path().join("password"))));
    assert_eq!(property(&config, "sasl.password").unwrap(), "p w");
    assert_eq!(property(&config, "ssl.key.password").unwrap(), "p w");
    assert_eq!(config.delivery.window_bytes, 2 << 20);
    assert_eq!(file, Some(path));
    assert_eq!(variables, ["OUTBOX_ROUTER_KAFKA__SSL_KEY_PASSWORD__FILE"]);
    // that everybody may read them, each once
    assert!(warnings.len() <= 2, "{warnings:?}");
}

#[test]
fn a_property_whose_name_ends_in_file_is_not_a_reference_to_a_file() {
    let text = minimal("kafka.sasl.oauthbearer.assertion.file = \"/nowhere\"\n");
    match parse_file(&text, &env()) {
        Ok(config) => assert_eq!(property(&config, "sasl.oauthbearer.assertion.file").unwrap(), "/nowhere"),
        // librdkafka was built without OIDC
        Err(error) => assert!(error.contains("\"sasl.oauthbearer.assertion.file\" not supported"), "{error}"),
    }
}

#[test]
fn messages_for_files_that_cannot_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none.toml");
    let binary = directory.path().join("binary.toml");
    std::fs::write(&binary, [0xff, 0xfe]).unwrap();
    let error = |path: &Path| load(Some(path), &env()).map(|_| ()).unwrap_err().to_string();
    for (path, what, remedy) in [
        (missing.as_path(), "it does not exist", "Name an existing file with -c"),
        (binary.as_path(), "it is not UTF-8 text", "Save it as UTF-8"),
        (directory.path(), "it is a directory", "Name the file in it with -c"),
        (Path::new("/dev/zero"), "it is larger than 10 MiB", "Name the configuration file with -c"),
    ] {
        let expected = format!(
            "OBR-2002: Cannot read the configuration file {}: {what}. Events: delayed, not lost: they wait in the log until the router \
             runs. {remedy}",
            path.display()
        );
        assert_eq!(error(path), expected);
    }
}

#[test]
#[cfg(unix)]
fn a_world_readable_configuration_with_a_password_is_warned_about() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outbox-router.toml");
    let warnings = |text: &str, mode: u32| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        load(Some(&path), &env()).unwrap().warnings.len()
    };
    let with_password = "postgres.url = \"postgres://u:p@h/d\"\nkafka.bootstrap.servers = \"k:1\"";
    assert_eq!(warnings(with_password, 0o644), 1);
    assert_eq!(warnings(with_password, 0o604), 1);
    assert_eq!(warnings(with_password, 0o640), 0);
    assert_eq!(warnings(&minimal(""), 0o644), 0);
    assert_eq!(warnings(&minimal("kafka.sasl.password = \"p\""), 0o644), 1);
    let by_variable =
        env().with_variable("PGPASSWORD", "p").with_variable("OUTBOX_ROUTER_KAFKA__SASL_PASSWORD", "p");
    std::fs::write(&path, minimal("")).unwrap();
    assert_eq!(load(Some(&path), &by_variable).unwrap().warnings, [""; 0]);
}

/// The configuration can be read by everybody, and refers to the secrets.
#[test]
#[cfg(unix)]
fn world_readable_files_with_secrets_are_warned_about() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let (path, secret) = (directory.path().join("outbox-router.toml"), directory.path().join("secret"));
    let url = "postgres.url = { file = \"secret\" }\nkafka.bootstrap.servers = \"k:1\"";
    for (text, content, expected) in [
        (minimal("kafka.sasl.password = { file = \"secret\" }"), "p", 1),
        (minimal("kafka.sasl.username = { file = \"secret\" }"), "u", 0),
        (minimal("postgres.password_file = \"secret\""), "p", 1),
        (minimal(&format!("kafka.ssl.key.location = \"{}\"", secret.display())), "p", 1),
        (minimal(&format!("kafka.ssl.ca.location = \"{}\"", secret.display())), "p", 0),
        (url.to_owned(), "postgres://u:p@h/d", 1),
        (url.to_owned(), "postgres://u@h/d", 0),
    ] {
        std::fs::write(&path, &text).unwrap();
        std::fs::write(&secret, content).unwrap();
        for (mode, expected) in [(0o644, expected), (0o640, 0), (0o600, 0)] {
            std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(mode)).unwrap();
            let warnings = load(Some(&path), &env()).unwrap().warnings;
            assert_eq!(warnings.len(), expected, "{text} {mode:o}: {warnings:?}");
            let named = format!("`chmod 600 {}`", secret.display());
            assert!(warnings.iter().all(|warning| warning.contains(&named)), "{warnings:?}");
        }
    }
}
