use proptest::prelude::*;

use super::wire::{Owned, Wire};
use super::*;

fn row() -> impl Strategy<Value = Vec<Owned>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let value = prop_oneof![
        Just(Owned::Null),
        Just(Owned::Toast),
        bytes().prop_map(Owned::Text),
        bytes().prop_map(Owned::Binary)
    ];
    prop::collection::vec(value, 0..12)
}

fn values<'a>(tuple: &Tuple<'a>) -> Vec<Value<'a>> {
    tuple.values().collect()
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Message::decode(&bytes);
    }

    #[test]
    fn any_body_after_a_known_type_decodes_or_fails(
        tag in prop::sample::select(b"BCORYIUDTM".to_vec()),
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = vec![tag];
        bytes.extend(body);
        let _ = Message::decode(&bytes);
    }

    #[test]
    fn insert_returns_every_value(relation: u32, row in row()) {
        let wire = Wire::of(b'I').u32(relation).u8(b'N').tuple(&row);
        let Ok(Message::Insert(insert)) = Message::decode(&wire.0) else { panic!("not an insert") };
        prop_assert_eq!(insert.relation, Oid(relation));
        prop_assert_eq!(insert.new.len(), row.len());
        prop_assert_eq!(values(&insert.new), row.iter().map(Owned::borrowed).collect::<Vec<_>>());
    }

    #[test]
    fn a_message_cut_short_or_too_long_is_an_error(row in row(), extra in 1usize..5) {
        let wire = Wire::of(b'U').u32(1).u8(b'O').tuple(&row).u8(b'N').tuple(&row).0;
        prop_assert!(Message::decode(&wire).is_ok());
        for end in 0..wire.len() {
            prop_assert!(Message::decode(&wire[..end]).is_err(), "cut at {}", end);
        }
        let mut longer = wire;
        longer.extend(vec![0; extra]);
        prop_assert_eq!(Message::decode(&longer), Err(DecodeError::TrailingBytes(extra)));
    }

    #[test]
    fn relation_returns_every_column(columns in prop::collection::vec(("[a-zé_ ]{1,20}", any::<u32>(), any::<bool>()), 0..20)) {
        let head = Wire::of(b'R').u32(9).string("public").string("outbox").u8(b'd').i16(columns.len() as i16);
        let wire = columns.iter().fold(head, |wire, (name, oid, key)| {
            wire.u8(u8::from(*key)).string(name).u32(*oid).u32(u32::MAX)
        });
        let Ok(Message::Relation(relation)) = Message::decode(&wire.0) else { panic!("not a relation") };
        prop_assert_eq!((relation.id, relation.namespace, relation.name), (Oid(9), "public", "outbox"));
        let seen: Vec<_> = relation.columns().map(|c| (c.name.to_owned(), c.type_id.0, c.key)).collect();
        prop_assert_eq!(seen, columns);
    }
}

#[test]
fn begin_and_commit() {
    let wire = Wire::of(b'B').u64(0x10).u64(5).u32(7);
    let begin = Begin { final_lsn: Lsn(0x10), commit_time: PgTimestamp(5), xid: 7 };
    assert_eq!(Message::decode(&wire.0), Ok(Message::Begin(begin)));

    let wire = Wire::of(b'C').u8(0).u64(0x10).u64(0x20).u64(5);
    let commit = Commit { commit_lsn: Lsn(0x10), end_lsn: Lsn(0x20), commit_time: PgTimestamp(5) };
    assert_eq!(Message::decode(&wire.0), Ok(Message::Commit(commit)));
}

#[test]
fn origin_and_type() {
    let wire = Wire::of(b'O').u64(3).string("upstream");
    assert_eq!(
        Message::decode(&wire.0),
        Ok(Message::Origin(Origin { commit_lsn: Lsn(3), name: "upstream" }))
    );
    let wire = Wire::of(b'Y').u32(70_000).string("public").string("mood");
    assert_eq!(
        Message::decode(&wire.0),
        Ok(Message::Type(TypeName { id: Oid(70_000), namespace: "public", name: "mood" }))
    );
}

#[test]
fn update_may_have_an_old_row() {
    let row = [Owned::Text(b"1".to_vec()), Owned::Toast];
    for (kind, wire) in [
        (None, Wire::of(b'U').u32(1).u8(b'N').tuple(&row)),
        (Some(b'K'), Wire::of(b'U').u32(1).u8(b'K').tuple(&row).u8(b'N').tuple(&row)),
        (Some(b'O'), Wire::of(b'U').u32(1).u8(b'O').tuple(&row).u8(b'N').tuple(&row)),
    ] {
        let Ok(Message::Update(update)) = Message::decode(&wire.0) else { panic!("not an update") };
        let seen = update.old.map(|old| match old {
            OldRow::Key(_) => b'K',
            OldRow::Full(_) => b'O',
        });
        assert_eq!(seen, kind);
        assert_eq!(values(&update.new), [Value::Text(b"1"), Value::UnchangedToast]);
    }
}

#[test]
fn delete_needs_an_old_row() {
    let row = [Owned::Text(b"1".to_vec())];
    let wire = Wire::of(b'D').u32(1).u8(b'K').tuple(&row);
    assert!(matches!(Message::decode(&wire.0), Ok(Message::Delete(Delete { relation: Oid(1), .. }))));
    let wire = Wire::of(b'D').u32(1).u8(b'N').tuple(&row);
    assert_eq!(Message::decode(&wire.0), Err(DecodeError::Invalid("kind of row")));
}

#[test]
fn truncate_names_its_relations() {
    let wire = Wire::of(b'T').u32(2).u8(3).u32(11).u32(12);
    let Ok(Message::Truncate(truncate)) = Message::decode(&wire.0) else { panic!("not a truncate") };
    assert!(truncate.cascade && truncate.restart_identity);
    assert_eq!(truncate.relations().collect::<Vec<_>>(), [Oid(11), Oid(12)]);
}

#[test]
fn logical_message_inside_and_outside_a_transaction() {
    for (flags, transactional) in [(0, false), (1, true)] {
        let mut wire = Wire::of(b'M').u8(flags).u64(9).string("outbox").u32(2);
        wire.0.extend(b"{}");
        let expected = LogicalMessage { transactional, lsn: Lsn(9), prefix: "outbox", content: b"{}" };
        assert_eq!(Message::decode(&wire.0), Ok(Message::Logical(expected)));
    }
}

#[test]
fn unknown_messages_and_negative_counts_are_errors() {
    assert_eq!(Message::decode(b"S1234"), Err(DecodeError::UnknownMessage(b'S')));
    assert_eq!(Message::decode(b""), Err(DecodeError::Truncated("message type")));
    let wire = Wire::of(b'I').u32(1).u8(b'N').i16(-1);
    assert_eq!(Message::decode(&wire.0), Err(DecodeError::Invalid("number of values")));
    let wire = Wire::of(b'I').u32(1).u8(b'N').i16(1).u8(b't').u32(u32::MAX);
    assert_eq!(Message::decode(&wire.0), Err(DecodeError::Invalid("length of value")));
    let wire = Wire::of(b'I').u32(1).u8(b'N').i16(1).u8(b'x');
    assert_eq!(Message::decode(&wire.0), Err(DecodeError::Invalid("kind of value")));
}
