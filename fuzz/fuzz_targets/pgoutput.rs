//! Any bytes are a message of pgoutput or an error; what is decoded can be walked to its end.

#![no_main]

use libfuzzer_sys::fuzz_target;
use outbox_router::postgres::pgoutput::{Message, OldRow};

fuzz_target!(|bytes: &[u8]| {
    let Ok(message) = Message::decode(bytes) else { return };
    match message {
        Message::Relation(relation) => relation.columns().for_each(drop),
        Message::Insert(insert) => assert_eq!(insert.new.values().count(), insert.new.len()),
        Message::Update(update) => {
            if let Some(OldRow::Key(old) | OldRow::Full(old)) = update.old {
                assert_eq!(old.values().count(), old.len());
            }
            assert_eq!(update.new.values().count(), update.new.len());
        }
        Message::Delete(delete) => {
            let (OldRow::Key(old) | OldRow::Full(old)) = delete.old;
            assert_eq!(old.values().count(), old.len());
        }
        Message::Truncate(truncate) => truncate.relations().for_each(drop),
        Message::Begin(_) | Message::Commit(_) | Message::Origin(_) | Message::Type(_) | Message::Logical(_) => {}
    }
});
