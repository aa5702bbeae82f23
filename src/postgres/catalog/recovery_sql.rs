//! Statements with which an operator finds and sends rows that the stream does not contain.
//!
//! As long as the slot has not passed a part of the log, a copy of it with another plugin returns that part in commit order,
//! whatever has happened to the publication and the rows since. An invalidated slot cannot be copied (15: "doesn't reserve
//! WAL", 18: "cannot copy invalidated replication slot"), which only leaves the table.
//!
//! The rows are stored in a table first. So the same rows are counted, shown and sent, and a statement that is typed twice does
//! nothing the second time.

use pg_logical::Lsn;
use pg_logical::quoting::{dollar_quoted, identifier, literal, with_suffix};

use super::table::{Named, Table};
use crate::config::{OutboxSource, TableName};
use crate::error::Step;
use crate::shards;

/// A column in a line of `test_decoding`: its name, its type, and its value as a literal (contrib/test_decoding in the sources
/// of Postgres).
pub const FIELD: &str = r#" ("(?:[^"]|"")*"|[^ "[]+)\[((?:[^][]|\[\])+)\]:(null|'(?:[^']|'')*'|[^ ]+)"#;

/// A policy that hides rows makes the statements fail, which would save or replace only some rows otherwise.
const ALL_ROWS: &str = "SET row_security = off";

/// As [`ALL_ROWS`], for a block of PL/pgSQL.
const ALL_ROWS_IN_BLOCK: &str = "PERFORM set_config('row_security', 'off', true)";

/// Statements for the rows that are not in Kafka.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// Stores the rows in a new table.
    pub store: String,
    /// Shows the stored rows.
    pub show: String,
    /// Inserts the stored rows into the outbox again, and drops the table, so that it can be stored anew in another case.
    pub send: String,
}

/// What a person has to know before typing [`Recovery::send`]. It continues "insert them again".
pub const REPLACED: &str = ", in place of rows that are still there: these are deleted first, with what references them ON DELETE CASCADE. If that \
     fails because the table lacks one of their columns, add it, and drop it afterwards. Their events come after newer ones of their \
     aggregates";

/// Whose rows the statements are about, for a router of one shard.
pub fn of_which_shards(source: OutboxSource<'_>) -> &'static str {
    match source.shard {
        Some(_) => "The statements are about the rows of all shards: those of other shards come twice. ",
        None => "",
    }
}

/// Up to where the statements read the log.
#[derive(Debug, Clone, Copy)]
pub enum Until<'a> {
    /// Its end. The statements return the command with which the router goes on after that.
    Now,
    /// The position of this slot, which has what is committed later.
    Slot(&'a str),
}

/// Statements for everything committed after `position`, in commit order and with rows deleted since. Those that store it belong
/// in one session, whose end drops the copy of the slot. They return the number of rows. `tables` are the outbox tables as they
/// are now.
pub fn in_commit_order(
    source: OutboxSource<'_>,
    tables: &[Option<Table>],
    position: Lsn,
    until: Until<'_>,
) -> Recovery {
    let (postgres, outbox) = (source.postgres, source.outbox);
    let slot = literal(&postgres.slot);
    // slot names are unique on the server, and another router may need a copy too: the name contains this router's slot
    let copy = literal(&with_suffix(&postgres.slot, "_rescue"));
    // The rows of a partition are shown under its own name, and those of a table that was renamed or moved to another schema
    // under either name. Only a publication that names a table keeps it when it is moved to another schema.
    let named = |table: &Table| !table.partitioned && !table.published_unnamed();
    let by_name =
        tables.len() == outbox.tables.len() && tables.iter().all(|table| table.as_ref().is_some_and(named));
    let mut wanted: Vec<String> = if by_name {
        outbox.tables.iter().map(begins_with_name).collect()
    } else {
        vec!["data LIKE 'table %: INSERT:%'".to_owned()]
    };
    let id = &outbox.columns.id;
    let mut statements: Vec<String> = outbox
        .tables
        .iter()
        .map(|table| {
            let is_of_table = if by_name { begins_with_name(table) } else { may_be_of(table) };
            format!("WHEN {is_of_table} THEN {}", insert_again(table, id))
        })
        .collect();
    if let Some(prefix) = &outbox.message_prefix {
        let beginning = literal(&format!("message: transactional: 1 prefix: {prefix},"));
        let is_message = format!("starts_with(data, {beginning})");
        let prefix = literal(prefix);
        statements.push(format!(
            "WHEN {is_message} THEN format('SELECT pg_logical_emit_message(true, %L, %L)', {prefix}, \
             substr(data, strpos(data, ' content:') + 9))"
        ));
        wanted.push(is_message);
    }
    let place = position.to_string().replace('/', "_").to_lowercase();
    let stored = &stored(&format!("{}_{place}", postgres.slot));
    let shard = shards::argument(source.shard);
    let wanted = wanted.join(" OR ");
    let statements = statements.join(" ");
    let (end, command) = match until {
        Until::Now => (
            "SELECT pg_current_wal_flush_lsn() AS upto".to_owned(),
            format!(", format('outbox-router slot advance --to %s{shard}', min(upto)) AS command"),
        ),
        Until::Slot(slot) => (
            // fails as long as the slot is not complete
            format!(
                "SELECT max(confirmed_flush_lsn) AS upto FROM pg_replication_slots WHERE slot_name = {} \
                 HAVING 1 / count(confirmed_flush_lsn) = 1",
                literal(slot)
            ),
            String::new(),
        ),
    };
    Recovery {
        store: format!(
            "SELECT pg_copy_logical_replication_slot({slot}, {copy}, true, 'test_decoding'); \
             SELECT pg_replication_slot_advance({copy}, greatest(confirmed_flush_lsn, '{position}')) FROM pg_replication_slots \
             WHERE slot_name = {copy}; \
             CREATE TABLE {stored} AS SELECT upto, n, lsn, data FROM ({end}) AS log \
             LEFT JOIN LATERAL pg_logical_slot_peek_changes({copy}, upto, NULL) WITH ORDINALITY AS change (lsn, xid, data, n) \
             ON {wanted}; \
             SELECT count(data){command} FROM {stored}"
        ),
        show: format!("SELECT lsn, data FROM {stored} WHERE data IS NOT NULL ORDER BY n"),
        send: format!(
            "DO {}",
            dollar_quoted(&format!(
                "DECLARE line record; BEGIN {ALL_ROWS_IN_BLOCK}; FOR line IN SELECT CASE {statements} END AS again FROM {stored} ORDER BY n LOOP \
                 IF line.again IS NOT NULL THEN EXECUTE line.again; END IF; END LOOP; DROP TABLE {stored}; END"
            ))
        ),
    }
}

/// Whether a line is about this table under its present name. `test_decoding` quotes names only where it must, as %I does.
fn begins_with_name(table: &TableName) -> String {
    let (schema, name) = (literal(&table.schema), literal(&table.name));
    format!("starts_with(data, format('table %I.%I: INSERT:', {schema}, {name}))")
}

/// Whether a line is about a partition of this table, or about a table of its name in any schema.
fn may_be_of(table: &TableName) -> String {
    let name = literal(&table.name);
    let shown = "substr(left(data, strpos(data, ': INSERT:') - 1), 7)";
    format!(
        "starts_with(data, 'table ') AND (right({shown}, length(quote_ident({name})) + 1) = '.' || quote_ident({name}) \
         OR {shown} IN (SELECT format('%I.%I', n.nspname, c.relname) FROM pg_partition_tree({}) AS p \
         JOIN pg_class AS c ON c.oid = p.relid JOIN pg_namespace AS n ON n.oid = c.relnamespace))",
        literal(&table.in_sql())
    )
}

/// An expression that turns the line of a row into a statement which inserts it again, instead of the row that is still there. One
/// statement, so that rows which reference it are not checked in between.
/// Numbers are quoted, because NaN and Infinity are no literals otherwise.
fn insert_again(table: &TableName, id: &str) -> String {
    format!(
        "(SELECT format('WITH gone AS (DELETE FROM %1$s WHERE %2$s = %3$s RETURNING 1) INSERT INTO %1$s (%4$s) OVERRIDING SYSTEM VALUE \
         SELECT %5$s FROM (SELECT count(*) FROM gone) AS once', \
         {}, {id}, coalesce(min(field[3]) FILTER (WHERE field[1] = {id}), 'NULL'), string_agg(field[1], ', '), \
         string_agg(regexp_replace(field[3], '^[-0-9NI].*', '''\\&'''), ', ')) FROM regexp_matches(substr(data, strpos(data, ': INSERT:') + 9), {}, 'g') AS field \
         WHERE field[1] NOT IN (SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = {}::regclass AND attgenerated <> ''))",
        literal(&table.in_sql()),
        literal(FIELD),
        literal(&table.in_sql()),
        id = format!("quote_ident({})", literal(id)),
    )
}

/// Statements for every row committed after the position of a slot that is gone, from the tables. They belong after the creation
/// of the new slot, which has what is committed later. The `catalog_xmin` of an invalidated slot survives. It is the oldest
/// transaction that was open when the slot last moved, so everything committed after its position has that transaction id or a
/// later one. `None`: without a table there is nothing to read.
pub fn from_table(source: OutboxSource<'_>, named: &[Named], catalog_xmin: Option<u32>) -> Option<Recovery> {
    let outbox = source.outbox;
    let (since, suffix) = match catalog_xmin {
        Some(xid) => (format!(" WHERE age(xmin) <= age('{xid}'::xid)"), format!("_{xid}")),
        None => (String::new(), String::new()),
    };
    let order = |number: usize| match &outbox.columns.created_at {
        Some(column) if named.get(number).is_some_and(|named| named.has_created_at) => {
            format!(" ORDER BY {}", identifier(column))
        }
        _ => String::new(),
    };
    let id = identifier(&outbox.columns.id);
    let (mut store, mut show, mut send) = (Vec::new(), Vec::new(), Vec::new());
    for (number, table) in outbox.tables.iter().enumerate() {
        let order = order(number);
        let number = if outbox.tables.len() > 1 { format!("_{}", number + 1) } else { String::new() };
        let stored = stored(&format!("{}{suffix}{number}", source.postgres.slot));
        let table = table.in_sql();
        store.push(format!("CREATE TABLE {stored} AS SELECT * FROM {table}{since}"));
        show.push(format!("SELECT * FROM {stored}{order}"));
        // generated columns take no values
        send.push(format!(
            "EXECUTE (SELECT format('WITH gone AS (DELETE FROM %1$s WHERE %5$s IN (SELECT %5$s FROM %3$s) RETURNING 1) \
             INSERT INTO %1$s (%2$s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM %3$s, (SELECT count(*) FROM gone) AS once%4$s', {}, \
             string_agg(quote_ident(attname), ', '), {}, {}, {}) FROM pg_attribute WHERE attrelid = {}::regclass AND attnum > 0 \
             AND NOT attisdropped AND attgenerated = ''); DROP TABLE {stored}",
            literal(&table),
            literal(&stored),
            literal(&order),
            literal(&id),
            literal(&table),
        ));
    }
    (!store.is_empty()).then(|| Recovery {
        store: format!("{ALL_ROWS}; {}", store.join("; ")),
        show: show.join("; "),
        send: format!(
            "DO {}",
            dollar_quoted(&format!("BEGIN {ALL_ROWS_IN_BLOCK}; {}; END", send.join("; ")))
        ),
    })
}

/// The steps that save rows of the tables and send them again. `save` is the first step without its last command, and `run` the
/// arguments with which the router is started. `None`: without a table there is nothing to send.
pub fn send_from_table(
    source: OutboxSource<'_>,
    named: &[Named],
    since: Option<u32>,
    save: Step,
    run: &str,
) -> Option<Vec<Step>> {
    let Recovery { store, show, send } = from_table(source, named, since)?;
    let space = if run.is_empty() { "" } else { " " };
    let start = match run {
        "" => "Start the router. If it stops and prints an --accept-gap command, run that",
        _ => "Start the router once with this option",
    };
    Some(vec![
        save.sql(store),
        Step::new(format!(
            "{}Look at the saved rows, and delete those that are in Kafka already from this table, not from the outbox. If CREATE TABLE failed at \
             the first attempt because the table exists, these are rows of an earlier time: finish with them, and begin again",
            of_which_shards(source)
        ))
        .sql(show),
        Step::new(format!(
            "{start}. Then insert the saved rows again, in place of those that are still there: they are deleted first, with what references them ON \
             DELETE CASCADE. Their events come after newer ones of their aggregates"
        ))
        .typing(format!("outbox-router run{space}{run}{}", shards::argument(source.shard)))
        .sql(send),
    ])
}

/// The table for rows that were not sent, in the router's schema.
fn stored(suffix: &str) -> String {
    // names have at most 63 bytes; the end is what tells two tables of one slot apart
    let suffix: String = suffix.chars().rev().take(55).collect();
    format!("outbox_router.{}", identifier(&format!("unsent_{}", suffix.chars().rev().collect::<String>())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Outbox, Postgres};
    use crate::postgres::catalog::slot::tests::config;
    use crate::shards::Shard;

    fn table(partitioned: bool) -> Option<Table> {
        Some(Table {
            oid: 1,
            partitioned,
            unlogged: false,
            membership: String::new(),
            published: true,
            row_filter: None,
            traces: Default::default(),
            partitions_watched: false,
            former_triggers: false,
            notes_readable: false,
            attachments_noted: false,
            elsewhere: None,
        })
    }

    const POSITION: Lsn = Lsn(0x0016_B374);

    #[test]
    fn the_copy_of_the_slot_is_asked_for_the_outbox_alone() {
        let outbox = Outbox {
            tables: vec![
                TableName { schema: "public".into(), name: "outbox".into() },
                TableName { schema: "it's".into(), name: "Events".into() },
            ],
            message_prefix: Some("outbox".into()),
            ..config().outbox
        };
        let two = Config { outbox, ..config() };
        let Recovery { store, show, send } =
            in_commit_order(two.source(), &[table(false), table(false)], POSITION, Until::Now);
        insta::assert_snapshot!([store, show, send].join("\n"));
    }

    #[test]
    fn the_copy_has_a_name_that_postgres_takes_and_no_other_router_uses() {
        let postgres = Postgres { slot: "s".repeat(63), ..config().postgres };
        let config = Config { postgres, ..config() };
        let sql = in_commit_order(config.source(), &[table(false)], POSITION, Until::Now).store;
        assert!(sql.contains(&format!("'{}_rescue'", "s".repeat(56))), "{sql}");
        assert!(sql.contains(&format!("outbox_router.\"unsent_{}_0_16b374\"", "s".repeat(46))), "{sql}");
    }

    #[test]
    fn a_table_whose_rows_have_other_names_is_not_asked_for_by_name() {
        for tables in [vec![table(true)], vec![None], vec![]] {
            let sql = in_commit_order(config().source(), &tables, POSITION, Until::Now);
            assert!(sql.store.contains("ON data LIKE 'table %: INSERT:%';"), "{sql:?}");
            assert!(sql.send.contains("pg_partition_tree"), "{sql:?}");
        }
    }

    #[test]
    fn a_table_that_the_publication_does_not_name_is_not_asked_for_by_name_either() {
        let unnamed = table(false).map(|table| Table { membership: "; 5/6".into(), ..table });
        let sql = in_commit_order(config().source(), &[unnamed], POSITION, Until::Now).store;
        assert!(sql.contains("ON data LIKE 'table %: INSERT:%';"), "{sql}");
    }

    #[test]
    fn the_table_is_asked_from_the_oldest_open_transaction_on() {
        let with_time = Named { has_created_at: true, ..Named::default() };
        let Recovery { store, show, send } = from_table(config().source(), &[with_time], Some(754)).unwrap();
        insta::assert_snapshot!([store, show, send].join("\n"));
        let Recovery { show, send, .. } =
            from_table(config().source(), &[Named::default()], Some(754)).unwrap();
        assert!(!show.contains("ORDER BY") && !send.contains("ORDER BY"), "{show} {send}");
        let outbox = Outbox { tables: vec![], ..config().outbox };
        let config = Config { outbox, ..config() };
        assert!(from_table(config.source(), &[], Some(754)).is_none());
    }

    #[test]
    fn statements_over_all_shards_say_so() {
        let config = Config { shard: Some(Shard { number: 1, of: 2 }), ..config() };
        assert!(of_which_shards(config.source()).contains("all shards"));
        let store = in_commit_order(config.source(), &[table(false)], POSITION, Until::Now).store;
        assert!(
            store.contains("format('outbox-router slot advance --to %s --shard 1', min(upto))"),
            "{store}"
        );
    }
}
