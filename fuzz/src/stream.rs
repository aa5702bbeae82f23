//! Any bytes go through the frame reader; messages that can be decoded go through outbox and routing, as in the relay.

use outbox_router::config::template::Template;
use outbox_router::config::{Columns, RecordTimestamp, Route, TableName, Topics};
use outbox_router::outbox::Outbox;
use outbox_router::progress::{Change, Position, Progress};
use outbox_router::routing::{Origin, Routed, Router};
use outbox_router::topic_name;
use pg_logical::frames::FrameBuffer;
use pg_logical::pgoutput::Message;
use pg_logical::{Lsn, PgTimestamp};

pub fn run(bytes: &[u8]) {
    let columns = Columns::default();
    let text = "${aggregate_type | kebab}.${region}.${headers.tenant | default('none')}.${source.sequence}";
    let Ok(topic) = Template::parse(text) else { return };
    let route = Route { topic, timestamp: RecordTimestamp::CreatedAt, ..Route::default() };
    let mut router = Router::new(&route, &columns, &Topics::default());
    let origin = Origin { final_lsn: Lsn(1), xid: 2, commit_time: PgTimestamp(0), ordinal: 1 };
    let table = TableName { schema: "p".to_owned(), name: "o".to_owned() };
    let mut outbox = Outbox::new(vec![table], columns, router.extra_columns().to_vec(), false);
    let mut progress = Progress::new(Position::default());
    let mut frames = FrameBuffer::new(bytes.to_vec());
    while let Ok(Some(frame)) = frames.peek() {
        let length = frame.wire_len();
        match Message::decode(frame.body) {
            Ok(Message::Begin(begin)) => drop(progress.begin(begin.into())),
            Ok(Message::Commit(commit)) => drop(progress.commit(commit.end_lsn)),
            Ok(Message::Relation(relation)) => {
                drop(outbox.relation(&relation, bytes.len().is_multiple_of(2)))
            }
            Ok(Message::Insert(insert)) => {
                if let Ok(Some(event)) = outbox.event(&insert)
                    && let Ok(Routed::Record(record)) = router.route(&event, &origin)
                {
                    assert_eq!(topic_name::check(record.topic), Ok(()));
                    assert!(record.headers.len() >= 2);
                }
                if let Ok(Change::New(sequence)) = progress.change() {
                    progress.acknowledge(sequence);
                }
            }
            _ => {}
        }
        frames.consume(length);
    }
}
