//! `config`, and `[log]`: neither needs a server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::process;

const REQUIRED: &str = "postgres.url = \"postgres://router:hunter2@192.0.2.1/shop\"\nkafka.\"bootstrap.servers\" = \"192.0.2.1:9\"\n";

/// A folder with a configuration file that everybody may read, which is worth a warning, and variables.
struct Here {
    folder: tempfile::TempDir,
    variables: Vec<(&'static str, &'static str)>,
}

#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Here {
    fn with(text: &str) -> Self {
        let here = Here { folder: tempfile::tempdir().unwrap(), variables: Vec::new() };
        fs::write(here.file(), text).unwrap();
        fs::set_permissions(here.file(), PermissionsExt::from_mode(0o644)).unwrap();
        here
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("outbox-router.toml")
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-router"));
        command.args(arguments).current_dir(self.folder.path()).env_clear();
        command.envs(self.variables.iter().copied());
        let output = process::output(&mut command);
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn set(mut self, variable: &'static str, value: &'static str) -> Self {
        self.variables.push((variable, value));
        self
    }
}

#[test]
fn show_prints_what_is_in_effect_without_secrets() {
    let here = Here::with(REQUIRED).set("OUTBOX_ROUTER_POSTGRES__SLOT", "from_env");
    let shown = here.run(&["config", "show"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.out.contains("slot = \"from_env\"") && shown.out.contains("listen = \"127.0.0.1:8084\""));
    assert!(!shown.out.contains("hunter2") && !shown.err.contains("hunter2"), "{shown:?}");
    assert_eq!(here.run(&["check", "--print-config"]).out, shown.out);
}

/// An administrator who runs a command as the router's user may be in a directory of their own.
#[test]
fn a_working_directory_that_may_not_be_searched_is_named() {
    let here = Here::with(REQUIRED);
    // root may search every directory; the descriptor leads to a program that the other user could not reach by its path
    let script = "exec 3<\"$0\"; cd \"$1\" && chmod 0 . || exit 9; shift
        if [ \"$(id -u)\" != 0 ]; then exec /proc/self/fd/3 \"$@\"; fi
        exec setpriv --reuid=65534 --regid=65534 --clear-groups /proc/self/fd/3 \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_outbox-router")]).arg(here.folder.path());
    let output = process::output(command.args(["config", "validate"]));
    fs::set_permissions(here.folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("may not search the working directory for outbox-router.toml"), "{said}");
    assert!(said.contains("Name the file with -c"), "{said}");
}

#[test]
fn validate_names_the_valid_file() {
    let here = Here::with(REQUIRED);
    let ran = here.run(&["config", "validate"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "outbox-router.toml: the configuration is valid\n"));
    assert!(ran.err.contains("can be read by everybody"), "{ran:?}");
    let ran = here.run(&["config", "validate", "--json"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, &report["valid"], &report["problems"]), (Some(0), &json!(true), &json!([])));
    assert_eq!(report["file"], "outbox-router.toml");
    assert_eq!(report["warnings"].as_array().unwrap().len(), 1);
    let here = here.set("OUTBOX_ROUTER_POSTGRES__SLOT", "other");
    let said = "outbox-router.toml, overridden by OUTBOX_ROUTER_POSTGRES__SLOT: the configuration is valid\n";
    assert_eq!(here.run(&["config", "validate"]).out, said);
    let nothing = Here::with(REQUIRED);
    fs::rename(nothing.file(), nothing.folder.path().join("other.toml")).unwrap();
    let nothing = nothing
        .set("OUTBOX_ROUTER_POSTGRES__URL", "postgres://r@h/d")
        .set("OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS", "k:1");
    let ran = nothing.run(&["config", "validate"]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(0), "the configuration is valid (environment only, no file)\n")
    );
}

#[test]
fn validate_reports_every_problem_with_its_place() {
    let text = format!(
        "{REQUIRED}kafka.acks = 1\n[postgress]\nslot = \"x\"\n[topics]\npartitions = 0\n[log]\nlevel = \"${{LEVEL}}\"\n"
    );
    let here = Here::with(&text).set("OUTBOX_ROUTER_ADMIN__LISTEN", "8084");
    let ran = here.run(&["config", "validate"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    insta::assert_snapshot!(ran.err);
    let ran = here.run(&["config", "validate", "--json"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, &report["valid"]), (Some(2), &json!(false)));
    let places: Vec<Value> = report["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| {
            json!([problem["code"], problem["file"], problem["line"], problem["column"], problem["variable"]])
        })
        .collect();
    let file = "outbox-router.toml";
    assert_eq!(
        places,
        [
            json!(["OBR-2002", file, 3, 14, null]),
            json!(["OBR-2002", file, 4, 2, null]),
            json!(["OBR-2002", file, 7, 14, null]),
            json!(["OBR-2002", file, 9, 9, null]),
            json!(["OBR-2002", null, null, null, "OUTBOX_ROUTER_ADMIN__LISTEN"]),
        ]
    );
}

/// What the file refers to is a part of it: a certificate, a directory of contracts, or that it can be read at all.
#[test]
fn validate_reports_what_the_configuration_refers_to() {
    let text = format!(
        "{REQUIRED}kafka.'security.protocol' = \"ssl\"\nkafka.'ssl.ca.location' = \"/nowhere/ca.pem\"\n[contracts]\ndirectory = \"missing\"\n"
    );
    let here = Here::with(&text);
    let ran = here.run(&["config", "validate"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("ssl.ca.location failed") && ran.err.contains("missing"), "{ran:?}");
    let ran = here.run(&["config", "validate", "--json"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, report["problems"].as_array().unwrap().len()), (Some(2), 2), "{ran:?}");
    let ran = here.run(&["-c", "none.toml", "config", "validate", "--json"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, &report["file"]), (Some(2), &Value::Null));
    let problem = &report["problems"][0]["problem"];
    assert_eq!(problem, "Cannot read the configuration file none.toml: it does not exist");
}

#[test]
fn schema_needs_no_configuration() {
    let ran = Here::with("not TOML").run(&["config", "schema"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let schema: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(schema["properties"]["postgres"]["properties"]["slot"]["default"], "outbox_router");
}

fn is_json(line: &str) -> bool {
    serde_json::from_str::<Value>(line).is_ok()
}

/// The warning about the file, as JSON or text.
#[test]
fn the_form_of_the_log_follows_the_flag_then_the_environment_then_the_file() {
    let json = |here: &Here, arguments: &[&str]| {
        let ran = here.run(&[arguments, &["config", "validate"]].concat());
        assert!(ran.err.contains("can be read by everybody"), "{ran:?}");
        ran.err.lines().all(is_json)
    };
    let file = Here::with(&format!("{REQUIRED}log.format = \"json\""));
    assert!(!json(&Here::with(REQUIRED), &[]) && json(&file, &[]));
    assert!(!json(&file, &["--log-format", "text"]) && !json(&file, &["--log-format", "human"]));
    let variable = file.set("OUTBOX_ROUTER_LOG__FORMAT", "text");
    assert!(!json(&variable, &[]) && json(&variable, &["--log-format", "json"]));
}

#[test]
fn the_level_of_the_log_follows_rust_log_then_the_variable_then_the_file() {
    let warned = |here: &Here| {
        let ran = here.run(&["config", "validate"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.err.contains("can be read by everybody")
    };
    let at = |level: &str| Here::with(&format!("{REQUIRED}log.level = \"{level}\""));
    assert!(warned(&Here::with(REQUIRED)) && warned(&at("warn")) && !warned(&at("error")));
    assert!(warned(&at("error").set("OUTBOX_ROUTER_LOG__LEVEL", "warn")));
    let set = at("warn").set("OUTBOX_ROUTER_LOG__LEVEL", "error");
    assert!(!warned(&set) && warned(&set.set("RUST_LOG", "warn")));
    assert!(!warned(&at("warn").set("RUST_LOG", "error")));
}

/// Also of a file that is otherwise invalid, and with the flag or the variable of one that is no TOML.
#[test]
fn errors_are_logged_in_the_configured_form() {
    let json = |here: &Here, arguments: &[&str]| {
        let ran = here.run(&[arguments, &["run"]].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        ran.err.lines().all(is_json)
    };
    assert!(json(&Here::with("nmae = 1\nlog.format = \"json\""), &[]));
    assert!(!json(&Here::with("nmae = 1"), &[]) && !json(&Here::with("log.format = \"json\"\n="), &[]));
    assert!(json(&Here::with("="), &["--log-format", "json"]));
    assert!(json(&Here::with("nmae = 1").set("OUTBOX_ROUTER_LOG__FORMAT", "json"), &[]));
}

/// A file is read once.
#[test]
fn the_configuration_may_be_a_pipe() {
    let here = Here::with(&format!("{REQUIRED}log.level = \"error\""));
    let script = format!(
        "cat outbox-router.toml | {} -c /dev/stdin config validate",
        Path::new(env!("CARGO_BIN_EXE_outbox-router")).display()
    );
    let mut command = Command::new("sh");
    command.env_clear().args(["-c", &script]).current_dir(here.folder.path());
    let output = process::output(&mut command);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "/dev/stdin: the configuration is valid\n",
        "{output:?}"
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
