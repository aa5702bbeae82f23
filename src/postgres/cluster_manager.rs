//! A cluster manager that drops slots.
//!
//! Patroni drops each slot that is not its own, not named in its configuration, and not read at the time (Patroni manual, "Dynamic
//! Configuration Settings", `slots` and `ignore_slots`): bookmarks, and the slot of a router that is stopped. An entry of
//! `ignore_slots` without a name matches every slot of the database and plugin that it names.

use pg_logical::QueryError;
use pg_logical::session::Session;

/// What it drops, and the entry that prevents it, if Patroni is connected to the server.
pub async fn that_drops_slots(session: &mut Session) -> Result<Option<(String, String)>, QueryError> {
    // every role sees the application_name of others
    let sql = "SELECT pg_catalog.current_database() WHERE EXISTS (SELECT FROM pg_catalog.pg_stat_activity a \
               WHERE a.application_name LIKE 'Patroni%')";
    let Some(database) = session.query_one(sql).await? else { return Ok(None) };
    let what = "Patroni manages the server, and drops slots that its configuration does not name while nobody reads them: bookmarks, \
                and the slot of a router that is stopped";
    let remedy = format!(
        "Unless it is there already, add an entry to `ignore_slots`, with patronictl edit-config: \
         {{database: '{}', plugin: pgoutput, type: logical}}",
        database.replace('\'', "''")
    );
    Ok(Some((what.to_owned(), remedy)))
}
