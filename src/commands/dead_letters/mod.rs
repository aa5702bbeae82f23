//! `dead-letters`: shows parked events, and marks their rows for retry or discard. The running router acts on the marks.

mod decide;
mod list;
mod polled;
mod show;

use pg_logical::connect::Startup;
use pg_logical::quoting::literal;
use pg_logical::session::Session;

use crate::advice::OrRemedy;
use crate::cli::dead_letters::{ChooseArgs, DeadLettersArgs, DeadLettersCommand, DecideArgs};
use crate::commands::{chosen_shards, connect, heading};
use crate::config::Config;
use crate::dead_letters::Decision;
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::outbox::printable;
use crate::postgres::catalog::slots_of_other_shards;
use crate::postgres::dead_letters::sql::{self, Waiting, table_remedy};
use crate::terminal;

/// Runs the subcommand.
///
/// # Errors
/// Postgres refuses or cannot be reached, or the arguments select nothing.
pub async fn dead_letters(config: &Config, args: &DeadLettersArgs) -> Result<(), Error> {
    if let Some(polling) = &config.polling {
        return polled::run(config, polling, &args.command).await;
    }
    let shards = chosen_shards(config, &args.shards)?;
    if let DeadLettersCommand::List { json, .. } = args.command
        && !config.dead_letters.park()
        && never_parked(config).await?
    {
        return list::nothing(json);
    }
    if let Some(choose) = args.command.names_event() {
        refuse_unknown(&shards, choose).await?;
    }
    for shard in &shards {
        if !args.command.json() {
            heading(shard)?;
        }
        of_one(shard, args).await?;
    }
    if let (DeadLettersCommand::List { choose, json: false, .. }, [first, ..]) = (&args.command, &*shards) {
        if shards.len() > 1 {
            list::sum(&shards, choose).await?;
        }
        if first.shard.is_some() {
            mention_other_shards(first).await?;
        }
    }
    Ok(())
}

/// Refuses an id or an aggregate of which no shard has a parked event: it is a mistyped one, or the event was sent meanwhile.
async fn refuse_unknown(shards: &[Config], choose: &ChooseArgs) -> Result<(), Error> {
    let Some(first) = shards.first() else { return Ok(()) };
    let mut session = connect(first, "dead-letters", Startup::default()).await?;
    for shard in shards {
        let found = session.query_one(&sql::count(&shard.name, &condition(choose))).await;
        let found = found.map_err(|error| error.or_remedy(table_remedy(&first.postgres.conninfo)))?;
        if found.as_deref() != Some("0") {
            session.close().await;
            return Ok(());
        }
    }
    session.close().await;
    let of = |what: &str, value: &Option<String>| {
        value.as_ref().map(|value| format!(" {what} {}", printable(value.as_bytes())))
    };
    let chosen = [
        of("with the id", &choose.id),
        of("of the aggregate", &choose.aggregate),
        choose.reason.map(|reason| format!(" for the reason {}", reason.name())),
    ];
    Err(Error::refused(
        ErrorCode::DeadLetterUnknown,
        format!("no event{} is parked", chosen.into_iter().flatten().collect::<String>()),
        Remedy::steps([Step::new(
            "Compare with the events that are parked; one that was sent or discarded is no longer among them",
        )
        .typing("outbox-router dead-letters list")]),
    ))
}

/// Mentions slots that are left of another number of shards, whose parked events have the same router names.
async fn mention_other_shards(config: &Config) -> Result<(), Error> {
    let mut session = connect(config, "dead-letters", Startup::default()).await?;
    let others =
        slots_of_other_shards(&mut session, config.base_slot(), &config.slots_of_all_shards()).await?;
    session.close().await;
    if others.is_empty() {
        return Ok(());
    }
    terminal::print(&format!(
        "Slots for another number of shards exist: {}. Their shards have the same names, and the parked events belong to them until \
         `outbox-router shards change` has completed: retry or discard with the old `[shards] count`.\n",
        others.join(", ")
    ))
}

async fn of_one(config: &Config, args: &DeadLettersArgs) -> Result<(), Error> {
    let mut session = connect(config, "dead-letters", Startup::default()).await?;
    let code = match &args.command {
        DeadLettersCommand::List { choose, limit, json } => {
            list::list(config, &mut session, choose, *limit, *json).await
        }
        DeadLettersCommand::Show { choose, json } => show::show(config, &mut session, choose, *json).await,
        DeadLettersCommand::Retry(args) => {
            decide::decide(config, &mut session, Decision::Retry, args, false).await
        }
        DeadLettersCommand::Discard { decide, yes } => {
            decide::decide(config, &mut session, Decision::Discard, decide, !yes).await
        }
    };
    session.close().await;
    code
}

/// Whether nothing was ever parked: there is no table, or it is empty and this role may not read it. `init` grants that only with
/// `policy = "park"`.
async fn never_parked(config: &Config) -> Result<bool, Error> {
    let mut session = connect(config, "dead-letters", Startup::default()).await?;
    let never = "SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               WHERE n.nspname = 'outbox_router' AND c.relname = 'dead_letters' \
               AND (pg_catalog.pg_relation_size(c.oid) > 0 OR pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
               AND pg_catalog.has_table_privilege(c.oid, 'SELECT')))";
    let answer = session.query_one(never).await;
    session.close().await;
    Ok(answer?.as_deref() == Some("t"))
}

/// The selected rows.
async fn rows(
    config: &Config,
    session: &mut Session,
    condition: &str,
    limit: Option<u32>,
) -> Result<Vec<Waiting>, Error> {
    let rows = session.query(&sql::select(&config.name, condition, limit)).await;
    let rows = rows.map_err(|error| error.or_remedy(table_remedy(&config.postgres.conninfo)))?;
    rows.iter().map(|row| sql::waiting(&config.name, row)).collect()
}

/// Refuses to decide about all events unless that is asked for.
fn verify_choice(args: &DecideArgs) -> Result<(), Error> {
    if args.all || !args.choose.chooses_all() {
        return Ok(());
    }
    Err(Error::usage(
        ErrorCode::CommandLine,
        "No events are selected",
        "Select events with --id, --aggregate or --reason, or all with --all",
    ))
}

/// The arguments as an SQL condition on `d`.
fn condition(choose: &ChooseArgs) -> String {
    let equals = |column: &str, value: &Option<String>| {
        value.as_ref().map(|value| format!("d.{column} = {}", literal(value)))
    };
    let reason = choose.reason.map(|reason| format!("d.reason = {}", literal(reason.name())));
    let parts: Vec<String> =
        [equals("event_id", &choose.id), equals("aggregate_id", &choose.aggregate), reason]
            .into_iter()
            .flatten()
            .collect();
    if parts.is_empty() { "true".to_owned() } else { parts.join(" AND ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unsendable::Reason;

    #[test]
    fn what_is_typed_is_quoted() {
        let choose = ChooseArgs {
            id: Some("o'clock".into()),
            aggregate: Some("; DROP TABLE outbox".into()),
            reason: Some(Reason::TooLarge),
        };
        assert_eq!(
            condition(&choose),
            "d.event_id = 'o''clock' AND d.aggregate_id = '; DROP TABLE outbox' AND d.reason = 'too-large'"
        );
        assert_eq!(condition(&ChooseArgs { id: None, aggregate: None, reason: None }), "true");
    }
}
