//! Any bytes are a pgoutput message or an error. A decoded message can be iterated to its end, and is neither truncated nor
//! followed by other bytes.

use pg_logical::pgoutput::{Message, OldRow, Tuple};

pub fn run(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else { return };
    match message {
        Message::Relation(relation) => relation.columns().for_each(drop),
        Message::Insert(insert) => walk(insert.new),
        Message::Update(update) => {
            if let Some(OldRow::Key(old) | OldRow::Full(old)) = update.old {
                walk(old);
            }
            walk(update.new);
        }
        Message::Delete(delete) => {
            let (OldRow::Key(old) | OldRow::Full(old)) = delete.old;
            walk(old);
        }
        Message::Truncate(truncate) => truncate.relations().for_each(drop),
        Message::Begin(_)
        | Message::Commit(_)
        | Message::Origin(_)
        | Message::Type(_)
        | Message::Logical(_) => {}
    }
    // values are not part of the Debug output
    assert!(format!("{message:?}").len() < 1_000 + bytes.len() * 4);
    let longer = [bytes, &[0]].concat();
    let shorter = bytes.split_last().map_or(bytes, |(_, shorter)| shorter);
    assert!(Message::decode(&longer).is_err() && Message::decode(shorter).is_err());
}

fn walk(tuple: Tuple<'_>) {
    assert_eq!(tuple.values().count(), tuple.len());
}
