//! The physical slots in `synchronized_standby_slots`: Postgres sends a change of a failover slot only after the standbys
//! that read these have confirmed it (Postgres manual, "Replication", the parameter of that name; from 17 on).

use std::fmt;
use std::time::Duration;

use pg_logical::Lsn;
use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::Session;

/// A healthy standby is often behind for a moment.
pub const STANDBY_GRACE: Duration = Duration::from_secs(3);

/// The names in a value of `synchronized_standby_slots`.
pub fn names(setting: &str) -> Vec<String> {
    let names = setting.split(',').map(|name| name.trim().trim_matches('"'));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// A slot that has not confirmed the requested position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unconfirmed {
    name: String,
    why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Missing,
    NotPhysical,
    Invalidated,
    Inactive,
    Behind,
}

/// The slots among `names` that have not confirmed the log up to `flushed`. Postgres sends nothing beyond what they have
/// confirmed.
pub async fn unconfirmed(
    session: &mut Session,
    names: &[String],
    flushed: Lsn,
) -> Result<Vec<Unconfirmed>, QueryError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let list: Vec<String> = names.iter().map(|name| literal(name)).collect();
    let sql = format!(
        "SELECT s.slot_name, CASE WHEN s.slot_type <> 'physical' THEN 'other' WHEN s.wal_status = 'lost' THEN 'lost' \
         WHEN s.restart_lsn >= '{flushed}' THEN 'confirmed' WHEN s.active THEN 'behind' ELSE 'inactive' END \
         FROM pg_catalog.pg_replication_slots s WHERE s.slot_name IN ({})",
        list.join(", ")
    );
    let rows = session.query(&sql).await?;
    let state = |name: &str| rows.iter().find(|row| row.get(0) == Some(name)).and_then(|row| row.get(1));
    let judged = names.iter().filter_map(|name| {
        let why = match state(name) {
            Some("confirmed") => return None,
            Some("other") => Why::NotPhysical,
            Some("lost") => Why::Invalidated,
            Some("inactive") => Why::Inactive,
            Some(_) => Why::Behind,
            None => Why::Missing,
        };
        Some(Unconfirmed { name: name.clone(), why })
    });
    Ok(judged.collect())
}

impl fmt::Display for Unconfirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.why {
            Why::Missing => write!(f, "the slot {name} does not exist"),
            Why::NotPhysical => write!(f, "the slot {name} is not a physical one"),
            Why::Invalidated => write!(f, "the slot {name} was invalidated"),
            Why::Inactive => write!(f, "no standby reads the slot {name}"),
            Why::Behind => write!(f, "the standby that reads the slot {name} is behind"),
        }
    }
}

/// Why nothing arrives while `slots` have not confirmed.
pub fn reason(slots: &[Unconfirmed]) -> String {
    let slots: Vec<String> = slots.iter().map(Unconfirmed::to_string).collect();
    format!(
        "Postgres withholds changes until the standbys of synchronized_standby_slots have confirmed them: {}",
        slots.join("; ")
    )
}

/// What to do about it.
pub const REMEDY: &str = "Bring the standby back whose primary_slot_name is that slot, or take the slot out of \
                          synchronized_standby_slots and SELECT pg_reload_conf()";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_is_a_list_of_names() {
        assert_eq!(names(""), Vec::<String>::new());
        assert_eq!(names("a, \"b\" ,c_1"), ["a", "b", "c_1"]);
    }
}
