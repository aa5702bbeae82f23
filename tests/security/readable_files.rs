//! `run` warns of secrets in files that everybody on the machine can read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::place::Ran;
use crate::support::process;

/// Addresses where nothing answers, and a property that ends `run` before it connects.
const CONFIGURATION: &str = "postgres.url = \"postgres://router@127.0.0.1:1/shop\"\nkafka.'bootstrap.servers' = \"127.0.0.1:1\"\n\
     kafka.'security.protocol' = \"ssl\"\nkafka.'ssl.ca.location' = \"/nowhere/ca.pem\"\n";

fn write(folder: &Path, name: &str, text: &str, mode: u32) {
    fs::write(folder.join(name), text).unwrap();
    fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
}

fn run(folder: &Path, variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-router"));
    command.args(["-c", "router.toml", "run"]).current_dir(folder).env_clear();
    Ran::of(process::output(command.envs(variables.iter().copied())))
}

#[test]
fn readable_files_with_secrets_cause_a_warning_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let inline = format!("{CONFIGURATION}kafka.'sasl.password' = \"sesame\"\n");
    let by_file = format!("{CONFIGURATION}kafka.'sasl.password' = {{ file = \"secret\" }}\n");
    let variables = [("OUTBOX_ROUTER_KAFKA__SASL_PASSWORD", "sesame"), ("PGPASSWORD", "sesame")];
    write(folder, "secret", "sesame\n", 0o644);
    for (text, mode, variables, named) in [
        (inline.as_str(), 0o644, &[][..], Some("chmod 600 router.toml")),
        (&inline, 0o600, &[], None),
        (&inline, 0o640, &[], None),
        (&by_file, 0o644, &[], Some("chmod 600 secret")),
        (CONFIGURATION, 0o644, &variables, None),
    ] {
        write(folder, "router.toml", text, mode);
        let ran = run(folder, variables);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert_eq!(
            ran.err.matches("can be read by everybody").count(),
            usize::from(named.is_some()),
            "{ran:?}"
        );
        assert!(ran.err.contains(named.unwrap_or_default()), "{named:?}: {ran:?}");
        assert!(!ran.err.contains("sesame"), "{ran:?}");
    }
}
