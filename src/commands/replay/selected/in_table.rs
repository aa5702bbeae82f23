//! Rows of the outbox table, or of the table that is its archive.

use pg_logical::session::Session;

use super::{Asked, Filter, Found, MANY, Rows, Wanted};
use crate::commands::replay::arguments::{readable, verify};
use crate::commands::replay::delivered::{delivered, horizon};
use crate::config::{Config, TableName};
use crate::error::{Error, ErrorCode};
use crate::postgres::rows::layout::TableLayout;
use crate::postgres::rows::order::{order, warn_without_index};
use crate::postgres::rows::page::{RowQuery, is_one_of};
use crate::replay::Conversion;

pub(super) async fn find(
    session: &mut Session,
    config: &Config,
    for_rows: &Config,
    wanted: &Wanted<'_>,
) -> Result<Found, Error> {
    let Wanted { outbox, since, selection, asked, .. } = wanted;
    let table = match &selection.archive {
        None => *outbox,
        Some(name) => archive(config).ok().filter(|archive| archive.in_sql() == *name).ok_or_else(|| {
            Error::refused(
                ErrorCode::ReplayImpossible,
                format!("the rows are in {name}, which is not the archive of this configuration"),
                "Continue it with the configuration with which it was begun",
            )
        })?,
    };
    let layout = TableLayout::existing(session, table).await?;
    let created_at = layout.time_column(&config.outbox).map_err(|why| {
        let remedy = "Name one, or use `outbox-router slot reset`";
        Error::refused(ErrorCode::ReplayImpossible, why, remedy)
    })?;
    let until = wanted.until(&layout, created_at);
    let columns = Conversion::columns(for_rows, &layout);
    let order = order(session, &config.outbox, config.polling.as_ref(), &layout, outbox, created_at).await;
    let mut order = order.map_err(readable)?;
    // the statements of a prune say nothing about the order of the inserts
    order.ties.by_statement &= selection.archive.is_none();
    let mut query = RowQuery::new(layout.in_from(), created_at, order.ties, columns);
    wanted.check_order(&query.order_by())?;
    for Filter { column, option, values } in wanted.filters(config)? {
        verify(session, table, &column, option, values).await?;
        query = query.only(is_one_of(&column, values));
    }
    warn_without_index(session, table, created_at).await.map_err(readable)?;
    // only delivered rows get into the archive, but polled ones may have been discarded
    let all_delivered = selection.archive.is_some() && config.polling.is_none();
    let horizon = match asked {
        _ if all_delivered => String::new(),
        Asked::Now(now) => horizon(session, config, *now).await?,
        Asked::Before(request) => request.horizon.clone(),
    };
    let delivered = if all_delivered { Vec::new() } else { delivered(session, config, &horizon).await? };
    let not_delivered = match asked {
        Asked::Now(_) if !all_delivered => {
            let sql = query.count_others(*since, until, &delivered, MANY);
            let others = session.query_one(&sql).await.map_err(readable)?;
            others.and_then(|others| others.parse().ok()).unwrap_or_default()
        }
        _ => 0,
    };
    for condition in delivered {
        query = query.only(condition);
    }
    let (place, rows, of_insert) = (table.to_string(), Rows::Table(query), order.of_insert);
    Ok(Found { layout, place, rows, horizon, not_delivered, of_insert, until })
}

pub(super) fn archive(config: &Config) -> Result<&TableName, Error> {
    config.retention.archive.as_ref().ok_or_else(|| {
        Error::usage(
            ErrorCode::CommandLine,
            "--from archive: the configuration names no archive",
            "Name the table as `[retention] archive`, or leave out --from",
        )
    })
}
