//! `column.include.list` and `column.exclude.list`: which columns of the outbox Debezium does not read.

use super::Translation;
use super::table::{Outboxes, Table, as_sql, passes};
use crate::import::findings::Level;
use crate::import::settings::Setting;

/// The lists, and the tables that they are applied to.
pub(super) struct Columns<'a> {
    lists: Vec<List>,
    outboxes: &'a Outboxes,
}

struct List {
    setting: Setting,
    excludes: bool,
    /// A finding says what it leaves out.
    reported: bool,
}

/// A column that Debezium does not read.
pub(super) struct Unread {
    /// Which list leaves it out.
    list: usize,
    /// Of which outboxes.
    pub(super) tables: String,
    /// Of all outboxes.
    pub(super) everywhere: bool,
}

impl<'a> Columns<'a> {
    /// Takes both lists.
    pub(super) fn take(translation: &mut Translation, outboxes: &'a Outboxes) -> Self {
        let lists = [("column.include.list", false), ("column.exclude.list", true)];
        let lists = lists.into_iter().filter_map(|(name, excludes)| {
            let setting = translation.take_any(name).filter(|setting| !setting.value.is_empty())?;
            Some(List { setting, excludes, reported: false })
        });
        Columns { lists: lists.collect(), outboxes }
    }

    /// Whether Debezium reads the column of all outboxes that the file names.
    pub(super) fn unread(&self, column: &str) -> Option<Unread> {
        self.lists.iter().enumerate().find_map(|(list, List { setting, excludes, .. })| {
            let unread = |(schema, table): &&Table| {
                !passes(&format!("{schema}.{table}.{column}"), &setting.value, *excludes)
            };
            let tables: Vec<String> = self.outboxes.named.iter().filter(unread).map(as_sql).collect();
            let everywhere = tables.len() == self.outboxes.named.len();
            (!tables.is_empty()).then(|| Unread { list, tables: tables.join(", "), everywhere })
        })
    }

    /// Reports what becomes of a column.
    pub(super) fn find(&mut self, translation: &mut Translation, unread: &Unread, level: Level, what: &str) {
        if let Some(list) = self.lists.get_mut(unread.list) {
            list.reported = true;
            translation.find(level, &list.setting, what);
        }
    }

    /// Reports the lists that leave out no column of a named outbox.
    pub(super) fn finish(self, translation: &mut Translation) {
        for List { setting, .. } in self.lists.iter().filter(|list| !list.reported) {
            let (level, meaning) = match self.outboxes.patterns.is_empty() {
                true => (Level::Ignored, "It leaves out no column that the router reads"),
                false => (
                    Level::ToDo,
                    "Debezium does not send the columns that it leaves out; the router sends every column that [route] \
                     names: take those of your outbox tables out of [route]",
                ),
            };
            translation.find(level, setting, meaning);
        }
    }
}
