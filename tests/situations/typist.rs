//! An operator who types what a message says, in its order and to the letter, each statement twice.

use std::collections::BTreeMap;

use tokio_postgres::{Client, SimpleQueryMessage};

use crate::support::outbox::Outbox;
use crate::support::place::{refused, succeeded};
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;

/// One of the ways out that a message offers.
#[derive(Debug, Default, Clone)]
pub(crate) struct Way {
    /// What tells it from the others; empty for the first.
    pub(crate) name: String,
    steps: Vec<Step>,
}

#[derive(Debug, Default, Clone)]
struct Step {
    text: String,
    commands: Vec<String>,
}

impl Way {
    /// Whether a step says this, or has a command with it.
    pub(crate) fn has(&self, part: &str) -> bool {
        self.steps.iter().any(|step| {
            step.text.contains(part) || step.commands.iter().any(|command| command.contains(part))
        })
    }
}

/// The ways out of a message: names, steps and commands are told apart by their indentation. A single step has no number.
pub(crate) fn ways(message: &str) -> Vec<Way> {
    let indented = |line: &str| line.len() - line.trim_start().len();
    let mut ways: Vec<Way> = Vec::new();
    let mut lines = message.lines().skip(1).peekable();
    while let Some(line) = lines.next() {
        let text = line.trim_start();
        match indented(line) {
            2 if text.starts_with("Events: ") => {}
            2 if lines.peek().is_some_and(|next| indented(next) == 4) => {
                ways.push(Way { name: text.trim_end_matches(':').to_owned(), steps: Vec::new() });
            }
            2 | 4 => {
                if ways.is_empty() {
                    ways.push(Way::default());
                }
                let number = |(number, _): &(&str, &str)| number.parse::<u8>().is_ok();
                let text = text.split_once(". ").filter(number).map_or(text, |(_, text)| text).to_owned();
                ways.last_mut().unwrap().steps.push(Step { text, commands: Vec::new() });
            }
            _ => ways.last_mut().unwrap().steps.last_mut().unwrap().commands.push(text.to_owned()),
        }
    }
    ways
}

/// Types one way after the other until the router runs.
pub(crate) struct Typist<'a> {
    outbox: &'a Outbox,
    settings: Settings,
    /// The router, once a step has started it.
    router: Option<Router>,
    /// The column `command` of the last statement that returned one.
    returned: Option<String>,
    /// The codes of the refusals after the first.
    pub(crate) refusals: Vec<String>,
}

impl<'a> Typist<'a> {
    pub(crate) fn new(outbox: &'a Outbox, settings: &Settings) -> Self {
        Typist { outbox, settings: settings.clone(), router: None, returned: None, refusals: Vec::new() }
    }

    /// Types the way out with this name, and then starts the router, unless a step has done that.
    pub(crate) async fn types(&mut self, ended: &Ended, name: &str) {
        self.types_steps(ended, name).await;
        if self.router.is_none() {
            self.starts().await;
        }
    }

    /// Types the way out with this name.
    pub(crate) async fn types_steps(&mut self, ended: &Ended, name: &str) {
        let all = ways(ended.message());
        let way = all.iter().find(|way| way.name == name);
        let way = way.unwrap_or_else(|| panic!("no way out {name:?} in {}", ended.log)).clone();
        assert!((1..=3).contains(&way.steps.len()), "one to three steps: {}", ended.log);
        for step in &way.steps {
            self.types_step(step).await;
        }
    }

    /// The settings that the steps have led to.
    pub(crate) fn configured(&self) -> Settings {
        self.settings.clone()
    }

    /// The running router and the settings that the steps have led to.
    pub(crate) fn done(self) -> (Router, Settings) {
        (self.router.unwrap(), self.settings)
    }

    async fn types_step(&mut self, step: &Step) {
        self.configures(&step.text);
        if step.text.contains("Stop the router")
            && let Some(router) = self.router.take()
        {
            router.stop().await;
        }
        if step.text.contains("Run the `slot advance` command of step 1") {
            let command = self
                .returned
                .take()
                .unwrap_or_else(|| panic!("no statement has returned a command: {step:?}"));
            self.runs(&command).await;
        }
        // a session for each step
        let client = self.outbox.client().await;
        for command in &step.commands {
            match command.strip_prefix("outbox-router ") {
                Some("run") => self.starts().await,
                Some(run) if run.starts_with("run ") => {
                    self.starts_with(&run.split(' ').skip(1).collect::<Vec<_>>()).await;
                }
                Some("init") if step.text.contains("`init` ends with OBR-4002") => {
                    refused(&self.settings.run_async(&["init"]).await, 1, &["OBR-4002"]);
                }
                Some(_) => self.runs(command).await,
                None => self.types_sql(&client, command).await,
            }
        }
    }

    /// Sets what a step says: `name = "..."` and so on.
    fn configures(&mut self, text: &str) {
        let Some((_, text)) = text.split_once("n the configuration set") else { return };
        let mut values = BTreeMap::new();
        for (key, setting) in [
            ("name", "name"),
            ("publication", "postgres.publication"),
            ("slot", "postgres.slot"),
            ("policy", "dead_letters.policy"),
        ] {
            if let Some((_, value)) = text.split_once(&format!("{key} = \"")) {
                values.insert(setting, value.split('"').next().unwrap().to_owned());
            }
        }
        assert!(!values.is_empty(), "{text}");
        for (key, value) in values {
            self.settings = self.settings.clone().set(key, value);
        }
    }

    /// Runs a command of the router. `NAME` stands for the first bookmark, `ADMINISTRATOR` for the superuser.
    async fn runs(&mut self, command: &str) {
        let command = command.replace("ADMINISTRATOR", "postgres").replace('\'', "");
        let mut words: Vec<String> = command.split(' ').skip(1).map(str::to_owned).collect();
        if let Some(name) = words.iter_mut().find(|word| *word == "NAME") {
            let listed = succeeded(self.settings.run_async(&["slot", "list", "--json"]).await, &[]);
            let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
            *name = listed["bookmarks"][0]["name"].as_str().unwrap().to_owned();
        }
        if words.starts_with(&["slot".to_owned()])
            && !words.iter().any(|word| word == "--dry-run" || word == "list")
        {
            words.push("--yes".to_owned());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        succeeded(self.settings.run_async(&words).await, &[]);
        if words.first() == Some(&"init") {
            succeeded(self.settings.run_async(&words).await, &[]);
        }
    }

    /// Types statements twice: the second time they may be refused, and must change nothing.
    async fn types_sql(&mut self, client: &Client, sql: &str) {
        let rows = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let returned = rows.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.try_get("command").ok().flatten(),
            _ => None,
        });
        if let Some(command) = returned.last() {
            self.returned = Some(command.to_owned());
        }
        let _ = client.simple_query(sql).await;
        // it may have failed within a transaction
        client.batch_execute("ROLLBACK").await.unwrap();
    }

    async fn starts(&mut self) {
        self.starts_with(&[]).await;
    }

    /// Starts the router, unless it runs. If it stops, types the command with --accept-gap that it prints, as the steps say.
    async fn starts_with(&mut self, arguments: &[&str]) {
        if self.router.is_some() {
            return;
        }
        let mut router = Router::with_arguments(&self.settings, arguments);
        if router.is_ready_or_ended().await {
            self.router = Some(router);
            return;
        }
        let ended = router.exits(3).await;
        self.refusals.push(ended.code().to_owned());
        let mut router =
            Router::with_arguments(&self.settings, &["--accept-gap", ended.accept_gap_position()]);
        router.ready().await;
        self.router = Some(router);
    }
}
