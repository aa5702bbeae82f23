//! Any text is a template or an error. A template can be printed and read back unchanged, and `may_produce` holds for all its
//! results.

use outbox_router::config::template::{Part, Template};
use outbox_router::config::{Columns, NamedTemplate, Route, TableName, Topics};
use outbox_router::outbox::{ColumnType, Outbox};
use outbox_router::routing::{Origin, Routed, Router};
use outbox_router::topic_name;
use pg_logical::{Lsn, Oid, PgTimestamp};

use super::SEPARATOR;

pub fn run(bytes: &[u8]) {
    let Ok(texts) = std::str::from_utf8(bytes) else { return };
    let mut texts = texts.split(SEPARATOR);
    let template = match Template::parse(texts.next().unwrap_or_default()) {
        Ok(template) => template,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(Template::parse(&template.to_string()).as_ref(), Ok(&template));
    let values: Vec<&str> = texts.collect();

    let header = render(&template, false, &values);
    let topic = render(&template, true, &values);
    for result in [&header, &topic].into_iter().flatten() {
        assert!(template.may_produce(result), "{result:?} by {template}");
        assert!(template.fixed().is_none_or(|fixed| fixed == result));
    }
    match (header, topic) {
        (Some(header), Some(topic)) => assert_eq!(header, topic),
        (Some(header), None) => assert!(topic_name::check(&header).is_err(), "{header:?}"),
        (None, topic) => assert_eq!(topic, None),
    }
    // filters are idempotent
    assert_eq!(render(&twice(&template), false, &values), render(&template, false, &values), "{template}");
}

/// The same template with each filter applied twice.
fn twice(template: &Template) -> Template {
    let twice = template.parts().iter().map(|part| match part {
        Part::Text(text) => text.replace('$', "$$"),
        Part::Value(value) => {
            let mut value = value.clone();
            value.filters = value.filters.into_iter().flat_map(|filter| [filter.clone(), filter]).collect();
            format!("${{{value}}}")
        }
    });
    Template::parse(&twice.collect::<String>()).unwrap()
}

/// Renders the template, as the topic or a header, for an event with these values. A value of "\0" or a missing one is NULL.
fn render(template: &Template, as_topic: bool, values: &[&str]) -> Option<String> {
    let columns = Columns::default();
    let mut route = Route::default();
    match as_topic {
        true => route.topic = template.clone(),
        false => {
            route.topic = Template::parse("t").unwrap();
            route.headers = vec![NamedTemplate { name: "made".to_owned(), value: template.clone() }];
        }
    }
    let mut router = Router::new(&route, &columns, &Topics::default());
    let extra = router.extra_columns().to_vec();
    let fields = ["id", "aggregate_type", "aggregate_id", "event_type", "payload", "created_at"];
    let names: Vec<&str> = fields.into_iter().chain(extra.iter().map(|extra| extra.name.as_str())).collect();
    let text = ColumnType::built_in(Oid(25), -1);
    let row: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(n, name)| (*name, text, values.get(n).copied().filter(|value| *value != "\0")))
        .collect();
    let table = TableName { schema: "public".to_owned(), name: "outbox".to_owned() };
    let outbox = Outbox::new(vec![table.clone()], columns, extra.clone(), false);
    let mut memory = outbox.owned_row(&table);
    let event = outbox.read_row(&mut memory, row.iter().copied()).ok()?;
    let origin = Origin { final_lsn: Lsn(1), xid: 2, commit_time: PgTimestamp(0), ordinal: 1 };
    match router.route(&event, &origin) {
        Ok(Routed::Record(record)) if as_topic => Some(record.topic.to_owned()),
        Ok(Routed::Record(record)) => {
            let mut made = record.headers.iter().filter(|(name, _)| *name == "made");
            made.next()?.1.map(|value| String::from_utf8(value.to_vec()).unwrap())
        }
        Ok(Routed::Dropped) => panic!("there is no rule"),
        Err(unroutable) => {
            assert!(!unroutable.to_string().is_empty());
            None
        }
    }
}
