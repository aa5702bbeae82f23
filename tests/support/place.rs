//! A separate database, slot and topics for a test of the router's commands, on the shared servers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use super::{process, shared};

/// Deletes its database, slots and roles on drop.
pub(crate) struct Place {
    /// The unique name of database, slot, publication and role.
    pub(crate) name: String,
    /// The superuser's URL without a database.
    server: String,
    /// The working directory of the commands.
    folder: TempDir,
    variables: BTreeMap<String, String>,
}

/// The exit code and output of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Place {
    /// On the shared servers.
    pub(crate) fn new() -> Self {
        Self::on(shared::postgres())
    }

    /// On the server at `postgres://user@host:port`.
    pub(crate) fn on(server: &str) -> Self {
        let mut place = Place {
            server: server.to_owned(),
            folder: tempfile::tempdir().unwrap(),
            variables: BTreeMap::new(),
            name: shared::unique(),
        };
        place.psql_in("postgres", &shared::create_database(&place.name));
        place.set("POSTGRES__URL", &place.url("postgres"));
        place.set("POSTGRES__SLOT", &place.name.clone());
        place.set("POSTGRES__PUBLICATION", &place.name.clone());
        place.set("ROUTE__TOPIC", &format!("{}.${{aggregate_type}}", place.name));
        // `check` reports whether this topic exists, so no other test may create it
        place.set("DELIVERY__POSITIONS_TOPIC", &format!("positions_{}", place.name));
        place.set("KAFKA__BOOTSTRAP_SERVERS", &shared::variable("TEST_KAFKA"));
        // at the default address another router of this machine may answer
        place.set("ADMIN__LISTEN", "127.0.0.1:0");
        place
    }

    /// Sets `OUTBOX_ROUTER_<key>` for the commands.
    pub(crate) fn set(&mut self, key: &str, value: &str) {
        self.variables.insert(format!("OUTBOX_ROUTER_{key}"), value.to_owned());
    }

    /// Unsets a variable.
    pub(crate) fn unset(&mut self, key: &str) {
        self.variables.remove(&format!("OUTBOX_ROUTER_{key}"));
    }

    /// [`Place::set`] as a builder.
    pub(crate) fn with(mut self, key: &str, value: &str) -> Self {
        self.set(key, value);
        self
    }

    /// The URL of the test's database for `user`, who needs no password.
    pub(crate) fn url(&self, user: &str) -> String {
        let (_, host) = self.server.rsplit_once('@').unwrap();
        format!("postgres://{user}@{host}/{}", self.name)
    }

    /// The directory that the commands run in.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A command of the router. Its environment has only the variables that the test sets.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-router"));
        command.args(arguments).current_dir(self.folder.path()).env_clear().envs(&self.variables);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command of the router until it exits.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(process::output(&mut self.command(arguments)))
    }

    /// Runs SQL as the superuser in the test's database. Returns rows as text, with `|` between columns.
    pub(crate) fn psql(&self, sql: &str) -> String {
        self.psql_in(&self.name, sql)
    }

    /// The same in another database.
    pub(crate) fn psql_in(&self, database: &str, sql: &str) -> String {
        let ran = psql(&format!("{}/{database}", self.server), &["-c", sql]);
        assert_eq!(ran.code, 0, "{sql}: {}", ran.err);
        ran.out
    }

    /// `server_version_num`
    pub(crate) fn server_version(&self) -> u32 {
        self.psql("SHOW server_version_num").trim().parse().unwrap()
    }

    /// Masks everything that differs from run to run, for a snapshot.
    pub(crate) fn masked(&self, text: &str) -> String {
        let (_, host) = self.server.rsplit_once('@').unwrap();
        let broker = shared::variable("TEST_KAFKA");
        let text = text.replace(&self.name, "NAME").replace(host, "HOST").replace(&*broker, "BROKER");
        // the name of a table for rows that were not sent ends in a position
        let mut parts = text.split("unsent_NAME_");
        let first = parts.next().unwrap_or_default().to_owned();
        let position = |c: char| c.is_ascii_hexdigit() || c == '_';
        let text =
            parts.fold(first, |text, part| text + "unsent_NAME_LSN" + part.trim_start_matches(position));
        let words = text.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || c == '/'));
        words
            .map(|word| {
                let bare = word.trim_end_matches(|c: char| !(c.is_ascii_alphanumeric() || c == '/'));
                let position = bare.split_once('/').is_some_and(|(high, low)| {
                    let hex = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
                    hex(high) && hex(low)
                });
                if position { word.replace(bare, "LSN") } else { word.to_owned() }
            })
            .collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let name = &self.name;
        // t1_12 does not belong to t1_1
        let own = format!("^{name}($|[^0-9])");
        let slots = format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ '{own}'"
        );
        let database = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        let roles = format!(
            "DO $$ DECLARE r record; BEGIN FOR r IN SELECT rolname FROM pg_roles WHERE rolname ~ '{own}' LOOP \
             EXECUTE format('DROP ROLE %I', r.rolname); END LOOP; END $$"
        );
        // a private server may be gone already
        psql(&format!("{}/postgres", self.server), &["-c", &slots, "-c", &database, "-c", &roles]);
    }
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Asserts that a command has succeeded and has printed all these parts.
pub(crate) fn succeeded(ran: Ran, parts: &[&str]) -> Ran {
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    for part in parts {
        assert!(ran.out.contains(part), "no {part:?} in {}", ran.out);
    }
    ran
}

/// Asserts the exit code of a command, and that its error message contains all these parts.
pub(crate) fn refused(ran: &Ran, code: i32, parts: &[&str]) {
    assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
    for part in parts {
        assert!(ran.err.contains(part), "no {part:?} in {}", ran.err);
    }
}

/// Runs psql without its startup files. It stops at the first error.
pub(crate) fn psql(url: &str, arguments: &[&str]) -> Ran {
    let mut psql = Command::new("psql");
    psql.args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-d", url]).args(arguments);
    Ran::of(process::output(&mut psql))
}
