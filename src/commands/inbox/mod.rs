//! `inbox`: shows the events of a consumer's inbox, and decides about them. It needs no configuration.

mod decide;
mod list;
mod show;
mod status;

use pg_logical::connect::Startup;
use pg_logical::session::Session;
use pg_logical::{Environment, Secret};

use crate::advice;
use crate::cli::inbox::{ConfirmArgs, InboxArgs, InboxCommand};
use crate::commands::connect_to;
use crate::error::{Error, ErrorCode};
use crate::postgres::inbox as tables;

/// Runs the subcommand.
///
/// # Errors
/// Postgres refuses or cannot be reached, there is no inbox or no such event, or a worker has it.
pub async fn inbox(args: &InboxArgs, env: &Environment) -> Result<(), Error> {
    run(args, env).await.map_err(Error::without_router)
}

async fn run(args: &InboxArgs, env: &Environment) -> Result<(), Error> {
    let Some(url) = &args.url else {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "inbox needs --url",
            "Give the database of the consumer, as its administrator",
        ));
    };
    let mut session = connect(url, env, "outbox-router inbox").await?;
    let done = perform(&args.command, &mut session).await;
    session.close().await;
    done
}

async fn perform(command: &InboxCommand, session: &mut Session) -> Result<(), Error> {
    match command {
        InboxCommand::List { consumer, state, limit, json } => {
            list::list(session, consumer.as_deref(), state.as_deref(), *limit, *json).await
        }
        InboxCommand::Show { event, json } => show::show(session, event, *json).await,
        InboxCommand::Status { json } => status::status(session, *json).await,
        InboxCommand::Retry { choose, reason, how } => {
            decide::chosen(session, decide::Action::Retry, choose, reason.as_deref(), *how, false).await
        }
        InboxCommand::Discard { choose, confirm: ConfirmArgs { reason, yes, how } } => {
            decide::chosen(session, decide::Action::Discard, choose, Some(reason), *how, !yes).await
        }
        InboxCommand::Clear { event, confirm: ConfirmArgs { reason, yes, how } } => {
            decide::clear(session, event, reason, *how, !yes).await
        }
    }
}

/// A session in a database that has an inbox.
pub(super) async fn connect(url: &Secret, env: &Environment, name: &str) -> Result<Session, Error> {
    let conninfo = advice::connection_string(url.reveal(), env)?.prefer_primary();
    let startup = Startup { application_name: name, ..Startup::default() };
    let mut session = connect_to(conninfo.clone(), startup).await?;
    match tables::check(&mut session, &conninfo).await {
        Ok(()) => Ok(session),
        Err(error) => {
            session.close().await;
            Err(error)
        }
    }
}
