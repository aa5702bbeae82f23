//! Prints the rows that are inserted into the tables of a publication: `tail postgres://user@host/database PUBLICATION`.

use pg_logical::connect::Startup;
use pg_logical::conninfo::ConnInfo;
use pg_logical::pgoutput::{Message, Value};
use pg_logical::replication::{Receiving, ReplicationMessage, ReplicationStream, StandbyStatus, StreamOf};
use pg_logical::session::Session;
use pg_logical::{Environment, Lsn};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(publication)) = (arguments.next(), arguments.next()) else {
        return Err("usage: tail CONNECTION-STRING PUBLICATION".into());
    };
    let conninfo = ConnInfo::parse(&url, &Environment::process("PG")?)?;
    let startup = Startup { replication: true, application_name: "tail", ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await?;
    // the server drops the slot when the session ends
    let slot = format!("tail_{}", session.backend_pid());
    session
        .query(&format!("CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT"))
        .await?;

    let (socket, unread, _) = session.into_parts();
    let what = StreamOf { slot: &slot, publication: &publication, start: Lsn::INVALID, messages: false };
    let mut stream = ReplicationStream::new(socket, unread).start(what).await?;
    let mut printed = Lsn::INVALID;
    loop {
        while let Some((message, length)) = stream.peek()? {
            let mut reply = false;
            match message {
                ReplicationMessage::XLogData { data, .. } => match Message::decode(data)? {
                    Message::Insert(insert) => {
                        let values: Vec<String> = insert.new.values().map(text).collect();
                        println!("table {}: {}", insert.relation.0, values.join(" | "));
                    }
                    Message::Commit(commit) => (printed, reply) = (commit.end_lsn, true),
                    _ => {}
                },
                ReplicationMessage::PrimaryKeepAlive { reply_requested, .. } => reply = reply_requested,
            }
            stream.consume(length);
            if reply {
                // the server may remove the WAL of printed transactions
                stream.queue_status(StandbyStatus { written: printed, flushed: printed }, false);
            }
        }
        stream.io(Receiving::AtOnce).await?;
    }
}

fn text(value: Value<'_>) -> String {
    match value {
        Value::Text(text) | Value::Binary(text) => String::from_utf8_lossy(text).into_owned(),
        Value::Null => "NULL".to_owned(),
        Value::UnchangedToast => "(unchanged)".to_owned(),
    }
}
