//! The session in which objects are created, one transaction each.

use std::time::Duration;

use pg_logical::QueryError;
use pg_logical::connect::Startup;
use pg_logical::conninfo::ConnInfo;
use pg_logical::lock_wait::{LockWait, LockWatcher};
use pg_logical::session::Session;
use serde::Serialize;
use tokio_postgres::error::SqlState;

use super::object::Object;
use crate::advice::{self, LOCK_REMEDY, OrRemedy};
use crate::commands::{CONNECT_TIMEOUT, say_wait};
use crate::error::{Error, ErrorCode, Remedy};
use crate::postgres::administrator;
use crate::postgres::functions::refused;
use crate::terminal;

/// The `application_name` of its sessions.
pub(super) const APPLICATION_NAME: &str = "outbox-router init";

/// How long Postgres may take to create something; it may have to wait for a lock.
pub(super) const MAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a statement may wait for a lock, in milliseconds: applications that write to the table queue behind it.
pub(super) const LOCK_TIMEOUT: &str = "5000";

/// The key of the advisory lock that serializes runs.
const LOCK: &str = "pg_catalog.hashtext('outbox-router init')";

/// What became of an object, for `--json`.
#[derive(Serialize)]
struct Said {
    object: String,
    result: String,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    changed: bool,
    objects: &'a [Said],
}

pub(super) struct Maker {
    pub(super) conninfo: ConnInfo,
    pub(super) session: Session,
    /// Whether anything was created.
    pub(super) changed: bool,
    /// With `--json`: what there is to say, which is printed at the end.
    said: Option<Vec<Said>>,
    /// How the router will connect; `None`: the objects are not a router's.
    pub(super) router: Option<ConnInfo>,
}

impl Maker {
    pub(super) async fn connect(
        mut conninfo: ConnInfo,
        router: Option<ConnInfo>,
        json: bool,
    ) -> Result<Self, Error> {
        conninfo.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
        let startup = Startup { application_name: APPLICATION_NAME, ..Startup::default() };
        let mut session = Session::connect(&conninfo, &startup).await?;
        session.set_answer_timeout(Some(MAKE_TIMEOUT));
        end_with_this_process(&mut session).await?;
        let mut maker = Maker { conninfo, session, changed: false, said: json.then(Vec::new), router };
        maker.report_waits_with(say_wait);
        Ok(maker)
    }

    pub(super) fn report_waits_with(&mut self, say: fn(&LockWait)) {
        let watcher = LockWatcher::new(&self.conninfo, self.session.info(), APPLICATION_NAME)
            .describing_errors_with(advice::in_words);
        self.session.set_watcher(watcher.reporting_to(say));
    }

    /// Waits for other runs. Two at once, as containers may start them, would create the same objects and fail.
    pub(super) async fn take_lock(&mut self) -> Result<(), Error> {
        let free = self.session.query_one(&format!("SELECT pg_catalog.pg_try_advisory_lock({LOCK})")).await?;
        if free.as_deref() != Some("t") {
            tracing::warn!("waiting for another outbox-router init in this database");
            self.session.set_answer_timeout(None);
            self.session.query(&format!("SELECT pg_catalog.pg_advisory_lock({LOCK})")).await?;
            self.session.set_answer_timeout(Some(MAKE_TIMEOUT));
        }
        Ok(())
    }

    /// Releases the lock explicitly, because the server notices a closed connection only a little later.
    pub(super) async fn end(mut self) {
        // fails if the session is gone or the lock was never taken
        let _ = self.session.query(&format!("SELECT pg_catalog.pg_advisory_unlock({LOCK})")).await;
        self.session.close().await;
    }

    pub(super) async fn is_there(&mut self, what: &str, question: &str) -> Result<bool, Error> {
        let answer = self.session.query_one(&format!("SELECT {question}")).await;
        Ok(answer.map_err(|error| self.cannot("look for", what, error))?.as_deref() == Some("t"))
    }

    pub(super) async fn make_all(&mut self, objects: &[Object]) -> Result<(), Error> {
        for object in objects {
            self.make(object).await?;
        }
        Ok(())
    }

    pub(super) async fn make(&mut self, object: &Object) -> Result<(), Error> {
        if self.is_there(&object.name, &object.there).await? {
            if let Some((question, otherwise)) = &object.as_wanted
                && !self.is_there(&object.name, question).await?
            {
                return self.say(&object.name, &format!("left unchanged: {otherwise}"));
            }
            return self.say(&object.name, "exists already");
        }
        if let Some((question, otherwise)) = &object.possible
            && !self.is_there(&object.name, question).await?
        {
            return self.say(&object.name, &format!("left out: {otherwise}"));
        }
        // in the same transaction as the statements
        let made =
            self.session.query(&format!("SET LOCAL lock_timeout = {LOCK_TIMEOUT}; {}", object.make)).await;
        made.map_err(|error| match &object.remedy {
            Some(remedy) => cannot("create", &object.name, error, remedy),
            None => self.cannot("create", &object.name, error),
        })?;
        self.say_change(&object.name, object.done)
    }

    pub(super) fn cannot(&self, verb: &str, what: &str, error: QueryError) -> Error {
        let remedy = general_remedy(&error, self.router.as_ref());
        cannot(verb, what, error, remedy)
    }

    pub(super) fn say(&mut self, what: &str, text: &str) -> Result<(), Error> {
        match &mut self.said {
            Some(said) => {
                said.push(Said { object: what.to_owned(), result: text.to_owned() });
                Ok(())
            }
            None => terminal::print(&format!("{what}: {text}\n")),
        }
    }

    /// With `--json`, prints what was said, and returns true.
    pub(super) fn print_report(&self) -> Result<bool, Error> {
        match &self.said {
            Some(objects) => terminal::print_json(&Report { changed: self.changed, objects }).map(|()| true),
            None => Ok(false),
        }
    }

    /// With `--json`, logs what was said. After a failure, the error is all that is printed.
    pub(super) fn log_report(&self) {
        for Said { object, result } in self.said.iter().flatten() {
            tracing::info!("{object}: {result}");
        }
    }

    pub(super) fn say_change(&mut self, what: &str, text: &str) -> Result<(), Error> {
        self.changed = true;
        self.say(what, text)
    }
}

/// Lets the server end a statement, such as the creation of a slot, when this process has ended. Not every operating system
/// supports it.
pub(super) async fn end_with_this_process(session: &mut Session) -> Result<(), Error> {
    match session.query("SET client_connection_check_interval = '1s'").await {
        Ok(_) | Err(QueryError::Server { .. }) => Ok(()),
        Err(QueryError::Connection(error)) => Err(error.into()),
    }
}

/// The server's error, preceded by what could not be done. `remedy` is used unless a lock is in the way.
pub(super) fn cannot(verb: &str, what: &str, error: QueryError, remedy: impl Into<Remedy>) -> Error {
    if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
        return Error::refused(
            ErrorCode::InitIncomplete,
            format!("cannot {verb} the {what}: {error}"),
            format!("{}, and run init again", LOCK_REMEDY),
        );
    }
    let error = match error.code().is_some_and(|code| code.code().starts_with("OBR")) {
        // a function of the router's schema says what to do
        true => refused(error),
        false => error.or_remedy(remedy),
    };
    match error {
        Error::Definite(mut definite) => {
            definite.what = format!("cannot {verb} the {what}: {}", definite.what);
            Error::Definite(definite)
        }
        transient @ Error::Transient(_) => transient,
    }
}

/// What to do about an error that `init` did not expect. `router` has the role that a router will have.
pub(super) fn general_remedy(error: &QueryError, router: Option<&ConnInfo>) -> Remedy {
    match (error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE), router) {
        (true, Some(router)) => administrator::init_remedy("Run init again", router),
        (true, None) => "Connect with --url as the owner of the database, or as a superuser".into(),
        (false, _) => "Connect as an administrator with --url, or have one run what `outbox-router init --print-sql` prints".into(),
    }
}
