//! `[shards]`: several slots share one outbox, each with some of its aggregates.

use std::fmt::{self, Write};

use toml::Spanned;

use super::identifiers::{check_name, check_router_name, check_slot};
use super::raw::{Node, RawShards};
use super::read::Reader;
use super::{Config, OutboxSource, Postgres};
use crate::reserved::handover_key;
use crate::shards::Shard;

/// The maximum number of shards. Each has a slot, a walsender and a producer.
const MAX_SHARDS: u32 = 64;

/// `[shards]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shards {
    /// `count`. 1, the default, means no shards.
    pub count: u32,
    /// `only`: the shards that this process runs. Empty: all.
    pub only: Vec<u32>,
}

impl Default for Shards {
    fn default() -> Self {
        Shards { count: 1, only: Vec::new() }
    }
}

impl Config {
    /// The configuration of each shard; without shards, this one.
    pub fn every_shard(&self) -> Vec<Config> {
        match self.shard {
            Some(_) => vec![self.clone()],
            None => (0..self.shards.count).map(|number| self.for_shard(number)).collect(),
        }
    }

    /// The configuration of each shard that this process runs.
    pub fn local_shards(&self) -> Vec<Config> {
        match self.shards.only.as_slice() {
            [] => self.every_shard(),
            only => only.iter().map(|number| self.for_shard(*number)).collect(),
        }
    }

    /// This configuration with another number of shards, all of them in this process.
    pub fn with_shards(&self, count: u32) -> Config {
        Config { shards: Shards { count, only: Vec::new() }, ..self.clone() }
    }

    fn for_shard(&self, number: u32) -> Config {
        let of = self.shards.count;
        if of == 1 {
            return self.clone();
        }
        let mut config = self.clone();
        let shard = Shard { number, of };
        config.name = name_of(&self.name, shard);
        config.postgres.slot = shard_object(&self.postgres.slot, shard);
        config.postgres.publication = shard_object(&self.postgres.publication, shard);
        config.shard = Some(shard);
        config
    }

    /// The slots of all shards, even if this is the configuration of one shard.
    pub fn slots_of_all_shards(&self) -> Vec<String> {
        match self.shards.count {
            1 => vec![self.postgres.slot.clone()],
            of => (0..of).map(|number| shard_object(self.base_slot(), Shard { number, of })).collect(),
        }
    }

    /// This configuration under the name for the handover record, which no router has.
    pub fn for_handover(&self) -> Config {
        Config { name: handover_key(self.base_name()), ..self.clone() }
    }

    /// The name of the router without the number of the shard.
    pub fn base_name(&self) -> &str {
        let name = &self.name;
        let number = self.shard.map(|shard| format!("/{}", shard.number));
        number.and_then(|number| name.strip_suffix(&number)).unwrap_or(name)
    }

    /// The name of the slot without the suffix of the shard.
    pub fn base_slot(&self) -> &str {
        let slot = &self.postgres.slot;
        self.shard.and_then(|shard| slot.strip_suffix(&suffix(shard))).unwrap_or(slot)
    }
}

impl OutboxSource<'_> {
    /// The configured names of publication and slot, without the number of the shard.
    pub fn base_names(&self) -> (&str, &str) {
        let base =
            |name| self.shard.and_then(|shard| str::strip_suffix(name, &suffix(shard))).unwrap_or(name);
        (base(self.postgres.publication.as_str()), base(self.postgres.slot.as_str()))
    }

    /// The publications of all shards; without shards, the only one.
    pub fn publications(&self) -> Vec<String> {
        let (publication, _) = self.base_names();
        match self.shard {
            Some(Shard { of, .. }) => {
                (0..of).map(|number| shard_object(publication, Shard { number, of })).collect()
            }
            None => vec![publication.to_owned()],
        }
    }

    /// The name of this shard's publication or slot if `name` is configured.
    pub fn of_this_shard(&self, name: &str) -> String {
        self.shard.map_or_else(|| name.to_owned(), |shard| shard_object(name, shard))
    }
}

fn name_of(name: &str, shard: Shard) -> String {
    format!("{name}/{}", shard.number)
}

fn shard_object(name: &str, shard: Shard) -> String {
    name.to_owned() + &suffix(shard)
}

/// The suffix includes the number of shards, so that two sets of slots can coexist while that number changes.
fn suffix(Shard { number, of }: Shard) -> String {
    format!("_{number}_of_{of}")
}

pub(super) fn shards(reader: &mut Reader<'_>, raw: RawShards) -> Shards {
    let mut only = Vec::new();
    let count = match raw.count {
        None => Some(1),
        count => reader.integer("shards.count", count, 1..=MAX_SHARDS.into()),
    };
    // without a valid count, nobody can tell which numbers there are
    let Some(count) = count.and_then(|count| u32::try_from(count).ok()) else {
        return Shards { count: 1, only };
    };
    let Some(listed) = raw.only else { return Shards { count, only } };
    let span = listed.span();
    let mut problem = |what: String| {
        let last = count - 1;
        reader.problem(
            &span,
            "shards.only",
            what,
            format!(
                "Name shards by their numbers, 0 to {last}, each once; in a variable, separate them with commas"
            ),
        );
    };
    for number in numbers(listed) {
        match number {
            Some(number) if number >= count => problem(format!("there is no shard {number} of {count}")),
            Some(number) if only.contains(&number) => problem(format!("shard {number} is listed twice")),
            Some(number) => only.push(number),
            None => problem("it is not a list of whole numbers".to_owned()),
        }
    }
    Shards { count, only }
}

/// A number or an array of numbers; in a variable, a list with commas.
fn numbers(listed: Spanned<Node>) -> Vec<Option<u32>> {
    match listed.into_inner() {
        Node::Array(items) => items.into_iter().flat_map(numbers).collect(),
        Node::Integer(number) => vec![u32::try_from(number).ok()],
        Node::Text(text) if text.trim().is_empty() => Vec::new(),
        Node::Text(text) => text.split(',').map(|number| number.trim().parse().ok()).collect(),
        Node::Boolean(_) | Node::Table(_) | Node::Other(_) => vec![None],
    }
}

/// Several shards need a positions topic, because a change of their number is recorded there.
pub(super) fn check_positions(reader: &mut Reader<'_>, shards: &Shards, positions_topic: Option<&str>) {
    if shards.count > 1 && positions_topic.is_none() {
        reader.problems.push(
            super::source::Place::Nowhere,
            "`shards.count` is more than 1, and `delivery.positions_topic` is switched off: shards record their handover there",
            "Remove `positions_topic = false`",
        );
    }
}

/// Refuses names that are too long with the suffix of the last shard, which is the longest.
pub(super) fn check_names(reader: &mut Reader<'_>, shards: &Shards, name: &str, postgres: &Postgres) {
    if shards.count == 1 {
        return;
    }
    let shard = Shard { number: shards.count - 1, of: shards.count };
    let (slot, publication) =
        (shard_object(&postgres.slot, shard), shard_object(&postgres.publication, shard));
    // the value may be that of a variable, so it is not shown
    for (key, checked, added) in [
        ("postgres.slot", check_slot(&slot), suffix(shard)),
        ("postgres.publication", check_name(&publication), suffix(shard)),
        ("name", check_router_name(&name_of(name, shard)), name_of("", shard)),
    ] {
        if let Err(expected) = checked {
            let what = format!("`{key}`: shards add {added} to it: {expected}");
            reader.problems.push(super::source::Place::Nowhere, what, "Choose a shorter one");
        }
    }
}

pub(super) fn write_toml(config: &Config, out: &mut String) -> fmt::Result {
    let Shards { count, only } = &config.shards;
    writeln!(out, "\n[shards]")?;
    writeln!(out, "count = {count}")?;
    let only: Vec<String> = only.iter().map(u32::to_string).collect();
    match only.as_slice() {
        [] => Ok(()),
        only => writeln!(out, "only = [{}]", only.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::minimal_with;

    #[test]
    fn each_shard_has_its_own_names() {
        let config = minimal_with("shards.count = 12\nshards.only = [3, 11]\n");
        let here = config.local_shards();
        let names: Vec<&str> = here.iter().map(|shard| shard.name.as_str()).collect();
        assert_eq!(names, ["shop.outbox_router/3", "shop.outbox_router/11"]);
        assert_eq!(here[0].postgres.slot, "outbox_router_3_of_12");
        assert_eq!(here[0].postgres.publication, "outbox_router_3_of_12");
        assert_eq!(here[0].base_slot(), "outbox_router");
        assert_eq!(config.every_shard().len(), 12);
    }

    #[test]
    fn with_one_shard_the_names_do_not_change() {
        let config = minimal_with("shards.count = 1\n");
        assert_eq!(config.every_shard().as_slice(), std::slice::from_ref(&config));
        assert_eq!(config.base_slot(), "outbox_router");
    }
}
