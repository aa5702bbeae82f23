//! The commands over directories of their own.

use std::fs;
use std::path::Path;

use clap::{CommandFactory, Parser};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::check::findings;
use super::*;
use crate::cli::{Cli, Command};

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, schema: &Value) -> &Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, schema.to_string()).unwrap();
        self
    }

    fn run(&self, arguments: &[&str]) -> Result<Completion, Error> {
        let arguments =
            arguments.iter().map(|argument| argument.replace('@', self.0.path().to_str().unwrap()));
        let cli = Cli::try_parse_from(["outbox-router".to_owned()].into_iter().chain(arguments)).unwrap();
        let Command::Contracts(args) = cli.command else { panic!("{:?}", cli.command) };
        let file = ConfigFile::find(cli.config.as_deref())?;
        contracts(file.as_ref(), &args, &Environment::empty())
    }

    /// What `check` finds, one finding a line.
    fn found(&self, allow_unjudged: bool) -> String {
        let former = load(&self.path("former")).unwrap();
        let found = findings(&self.path("now"), Some(&former), allow_unjudged);
        let line = |finding: &crate::commands::check::Finding| {
            let remedy = if finding.remedy.is_empty() {
                String::new()
            } else {
                format!("\n    -> {}", finding.remedy)
            };
            format!("{} {}: {}{remedy}", finding.level.label(), finding.check, finding.what)
        };
        let lines: Vec<String> = found.iter().map(line).collect();
        lines.join("\n").replace(self.0.path().to_str().unwrap(), "")
    }
}

fn failed(result: Result<Completion, Error>) -> bool {
    result.unwrap() == Completion::ProblemsFound
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/contracts")
}

#[test]
fn check_says_what_changed_for_whom() {
    let place = Place::new();
    let object = |more: Value| {
        let mut schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    for (path, schema) in [
        ("former/order/Same.json", object(json!({}))),
        ("now/order/Same.json", object(json!({}))),
        ("now/order/New.json", object(json!({"requried": ["a"]}))),
        ("former/order/Breaks.json", object(json!({"required": ["a"]}))),
        (
            "now/order/Breaks.json",
            json!({"type": "object", "properties": {"a": {"type": ["string", "null"]}}}),
        ),
        ("former/order/Odd.json", object(json!({"not": {"required": ["a"]}}))),
        ("now/order/Odd.json", object(json!({"not": {"required": ["b"]}}))),
        ("former/order/Looser.json", object(json!({"x-compatibility": "backward"}))),
        ("now/order/Looser.json", object(json!({"x-compatibility": "none", "required": ["a"]}))),
        ("former/order/Gone.json", object(json!({}))),
        ("former/order/GoneWithNotice.json", object(json!({"deprecated": true}))),
    ] {
        place.write(path, &schema);
    }
    insta::assert_snapshot!(format!("{}\n\nlet pass:\n{}", place.found(false), place.found(true)));
    assert!(failed(place.run(&["contracts", "check", "@/now", "--against", "@/former"])));
    assert!(!failed(place.run(&["contracts", "check", "@/now", "--json"])));
}

#[test]
fn check_names_every_fault_and_the_others_refuse_them() {
    let place = Place::new();
    place.write("now/order/A.json", &json!({"type": "objekt"})).write("now/Loose.json", &json!({}));
    let found = findings(&place.path("now"), None, false);
    assert_eq!(found.len(), 1, "the schema first: {found:?}");
    assert!(failed(place.run(&["contracts", "check", "@/now"])));
    for arguments in [["contracts", "docs", "@/now"], ["contracts", "asyncapi", "@/now"]] {
        let error = place.run(&arguments).unwrap_err().to_string();
        assert!(error.contains("order/A.json at /type"), "{error}");
    }
    let error =
        place.run(&["contracts", "check", "@/now", "--against", "@/nowhere"]).unwrap_err().to_string();
    assert!(error.contains("nowhere: it does not exist"), "{error}");
}

#[test]
fn the_directory_is_that_of_the_configuration_unless_named() {
    let place = Place::new();
    place.write("here/order/A.json", &json!({}));
    fs::write(place.path("router.toml"), "contracts.directory = \"here\"\n").unwrap();
    assert!(!failed(place.run(&["-c", "@/router.toml", "contracts", "check"])));
    fs::write(place.path("router.toml"), "").unwrap();
    let error = place.run(&["-c", "@/router.toml", "contracts", "check"]).unwrap_err().to_string();
    assert!(error.contains("No directory of contracts is configured"), "{error}");
}

#[test]
fn pages_are_written_kept_and_removed() {
    let place = Place::new();
    let contracts = example().display().to_string();
    let docs = |more: &[&str]| {
        failed(place.run(&[&["contracts", "docs", &contracts, "--output", "@/docs"], more].concat()))
    };
    assert!(docs(&["--check"]));
    assert!(!place.path("docs").exists(), "--check writes nothing");
    assert!(!docs(&[]) && !docs(&["--check"]));
    let page = fs::read_to_string(place.path("docs/order/OrderPlaced.md")).unwrap();
    assert!(page.contains("# OrderPlaced"), "{page}");

    fs::write(place.path("docs/order/OrderPlaced.md"), format!("{page}by hand")).unwrap();
    fs::write(place.path("docs/order/Old.md"), &page).unwrap();
    fs::write(place.path("docs/order/notes.md"), "by hand").unwrap();
    assert!(docs(&["--check"]));
    assert!(!docs(&[]));
    assert_eq!(fs::read_to_string(place.path("docs/order/OrderPlaced.md")).unwrap(), page);
    assert!(!place.path("docs/order/Old.md").exists());
    assert!(place.path("docs/order/notes.md").exists());
}

#[test]
fn the_pages_of_the_example_are_those_in_the_documentation() {
    let place = Place::new();
    let contracts = example().display().to_string();
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/events").display().to_string();
    assert!(!failed(place.run(&["contracts", "docs", &contracts, "--output", &pages, "--check"])));
}

#[test]
fn the_asyncapi_document_goes_to_a_file() {
    let place = Place::new();
    let contracts = example().display().to_string();
    let arguments = [
        "contracts",
        "asyncapi",
        &contracts,
        "--output",
        "@/a.json",
        "--title",
        "Shop",
        "--document-version",
        "3.1.4",
    ];
    assert!(!failed(place.run(&arguments)));
    let document: Value = serde_json::from_str(&fs::read_to_string(place.path("a.json")).unwrap()).unwrap();
    assert_eq!(document["info"], json!({"title": "Shop", "version": "3.1.4"}));
    assert!(document["channels"]["outbox.event.payment"].is_object());
    let error = place.run(&["contracts", "asyncapi", &contracts, "--output", "@/no/a.json"]).unwrap_err();
    assert!(error.to_string().contains("cannot be written"), "{error}");
}

#[test]
fn help_of_contracts() {
    let mut command = Cli::command().term_width(100);
    command.build();
    let contracts = command.find_subcommand_mut("contracts").unwrap();
    let mut text = String::new();
    for sub in contracts.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
        let help = sub.render_long_help();
        text += &format!("=== {} ===\n{help}\n", sub.get_name());
    }
    insta::assert_snapshot!(text);
}
