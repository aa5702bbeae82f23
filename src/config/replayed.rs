//! The configuration with which rows of the table are sent again: without what only the log knows.

use super::route::{Action, NamedTemplate, Route};
use super::template::Template;
use super::{Config, DeliveryMode};

/// A value of the log that records cannot do without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeedsLog(pub &'static str);

impl Config {
    /// This configuration for rows of the table, and the names of the headers and members that are left out. With `topic`, all go there.
    ///
    /// # Errors
    /// A topic, a partition or a condition is made of a value that only the log has.
    pub fn for_rows(&self, topic: Option<&str>) -> Result<(Config, Vec<String>), NeedsLog> {
        let mut config = self.clone();
        // a producer with transactions would fence the router's
        config.delivery.mode = DeliveryMode::AtLeastOnce;
        let route = &mut config.route;
        if let Some(template) = topic.and_then(|topic| Template::parse(topic).ok()) {
            route.topic = template;
            for rule in &mut route.rules {
                if let Action::Route { topic, .. } = &mut rule.action {
                    *topic = None;
                }
            }
        }
        let left_out = without_log(route)?;
        Ok((config, left_out))
    }
}

fn without_log(route: &mut Route) -> Result<Vec<String>, NeedsLog> {
    let mut left_out = Vec::new();
    let mut strip = |templates: &mut Vec<NamedTemplate>| {
        left_out.extend(templates.extract_if(.., |named| named.value.needs_log()).map(|named| named.name));
    };
    strip(&mut route.headers);
    strip(&mut route.envelope);
    strip(&mut route.cloudevents.extensions);
    for rule in &mut route.rules {
        if let Action::Route { headers, .. } = &mut rule.action {
            strip(headers);
        }
    }
    let conditions = route.rules.iter().flat_map(|rule| &rule.conditions);
    if conditions.into_iter().any(|condition| condition.name.of_log().is_some()) {
        return Err(NeedsLog("match"));
    }
    let events = &route.cloudevents;
    let optional = [&events.datacontenttype, &events.dataschema].into_iter().flatten();
    if [&events.source, &events.event_type, &events.subject]
        .into_iter()
        .chain(optional)
        .any(Template::needs_log)
    {
        return Err(NeedsLog("cloudevents"));
    }
    let of_rules = |pick: fn(&Action) -> Option<&Template>| {
        route.rules.iter().filter_map(move |rule| pick(&rule.action))
    };
    let topics = of_rules(|action| match action {
        Action::Route { topic, .. } => topic.as_ref(),
        Action::Drop => None,
    });
    if topics.chain([&route.topic]).any(Template::needs_log) {
        return Err(NeedsLog("topic"));
    }
    let partitions = of_rules(|action| match action {
        Action::Route { partition, .. } => partition.as_ref(),
        Action::Drop => None,
    });
    if partitions.chain(&route.partition).any(Template::needs_log) {
        return Err(NeedsLog("partition"));
    }
    left_out.sort();
    left_out.dedup();
    Ok(left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::minimal_with;

    #[test]
    fn what_only_the_log_knows_is_left_out() {
        let config = minimal_with(
            "[route.headers]\nlsn = \"${source.lsn}\"\ntable = \"${source.table}\"\ntenant = \"${headers.tenant}\"\n\
             [[route.rules]]\nmatch = { event_type = \"a\" }\nheaders.xid = \"x-${source.xid}\"\ntopic = \"other\"",
        );
        let (rows, left_out) = config.for_rows(None).unwrap();
        assert_eq!(left_out, ["lsn", "xid"]);
        let names: Vec<_> = rows.route.headers.iter().map(|header| header.name.as_str()).collect();
        assert_eq!(names, ["table", "tenant"]);
        assert_eq!(rows.route.value_of_the_log(), None);
    }

    #[test]
    fn a_record_that_needs_the_log_is_refused() {
        for (text, part) in [
            ("route.topic = \"t-${source.xid}\"", "topic"),
            ("route.partition = \"${source.xid}\"", "partition"),
            ("[[route.rules]]\nmatch = { \"source.xid\" = \"1\" }\ndrop = true", "match"),
            ("[[route.rules]]\nmatch = { event_type = \"a\" }\ntopic = \"t-${source.lsn}\"", "topic"),
            ("route.cloudevents.subject = \"${source.sequence}\"", "cloudevents"),
        ] {
            assert_eq!(minimal_with(text).for_rows(None).unwrap_err(), NeedsLog(part), "{text}");
        }
    }

    #[test]
    fn another_topic_takes_the_place_of_all() {
        let config = minimal_with(
            "route.topic = \"t-${source.xid}\"\n[[route.rules]]\nmatch = { event_type = \"a\" }\ntopic = \"other\"",
        );
        let (rows, _) = config.for_rows(Some("repair")).unwrap();
        let topics: Vec<_> = rows.route.topics().iter().map(ToString::to_string).collect();
        assert_eq!(topics, ["repair"]);
    }
}
