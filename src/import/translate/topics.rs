//! `topic.creation.*` (`TopicCreationConfig` of Connect).

use super::Translation;
use crate::import::findings::Level;
use crate::import::settings::Setting;
use crate::import::write::{Section, key, quoted};

pub(super) fn translate(translation: &mut Translation) {
    let groups = translation.take_any("topic.creation.groups");
    let default = translation.settings.take_prefix("topic.creation.default.");
    for (name, setting) in default.into_rest() {
        match name.as_str() {
            "partitions" => number(translation, "partitions", setting),
            "replication.factor" => number(translation, "replication_factor", setting),
            // the defaults apply to all topics that no group matches
            "include" | "exclude" => {
                translation.find(Level::Ignored, &setting, "Connect does not use it in the default group")
            }
            property => {
                let property = format!("config.{}", key(property));
                if let Some(setting) = translation.for_key(setting, Section::Topics, &property) {
                    translation.text(Section::Topics, &property, &setting);
                }
            }
        }
    }
    if let Some(groups) = &groups {
        let meaning = "The router creates all topics alike, as [topics] says: create those of the groups yourself, before their first record";
        translation.find(Level::NoEquivalent, groups, meaning);
    }
    let (level, meaning) = match groups {
        Some(_) => {
            (Level::NoEquivalent, "It belongs to a group of topics; the router creates all topics alike")
        }
        None => (Level::Ignored, "Its group is not named in `topic.creation.groups`"),
    };
    let of_groups = translation.settings.take_prefix("topic.creation.");
    translation.find_all(level, of_groups, meaning);
}

/// -1 means the broker's default, as does no setting.
fn number(translation: &mut Translation, key: &str, setting: Setting) {
    let Some(setting) = translation.for_key(setting, Section::Topics, key) else { return };
    match setting.value.parse::<i32>() {
        Ok(-1) => {}
        Ok(number) if number > 0 => translation.set(Section::Topics, key, number.to_string(), &setting),
        _ => {
            let meaning = format!("Connect takes a number from 1, or -1; {} is left out", quoted(key));
            translation.find(Level::Differs, &setting, meaning);
        }
    }
}
