//! Files that are cut off, altered, or merged.

use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;

use super::contents::Contents;
use super::rows::{FileRows, Merge};
use super::writer::Writer;
use crate::outbox::Cursor;
use crate::postgres::prunes::{DeletedRows, Store};

const COLUMNS: &str = r#"[{"name": "id", "type": "bigint", "json": false}, {"name": "kind", "type": "text", "json": false},
    {"name": "payload", "type": "jsonb", "json": true}, {"name": "created_at", "type": "timestamptz", "json": false}]"#;

/// A second of the first minute of 1970, and a number.
type Row = (u32, u32);

fn lines(rows: &[Row]) -> String {
    let line = |(second, id): &Row| {
        let kind = if id.is_multiple_of(2) { ",\"kind\":\"even\"" } else { "" };
        format!(
            "{{\"id\":\"{id}\"{kind},\"payload\":{{\"n\": {id}}},\"created_at\":\"1970-01-01 00:00:{second:02}+00\"}}\n"
        )
    };
    rows.iter().map(line).collect()
}

fn add(writer: &mut Writer, rows: &[Row]) {
    let time = |row: Option<&Row>| row.map(|(second, _)| i64::from(*second) * 1_000_000);
    let deleted = DeletedRows {
        columns: COLUMNS,
        count: rows.len() as u64,
        times: (time(rows.first()), time(rows.last())),
        lines: &lines(rows),
    };
    writer.add(deleted).unwrap();
}

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join("rows.jsonl.zst")
}

/// Writes one prune for each list of batches.
fn written(prunes: &[&[&[Row]]]) -> (TempDir, Contents) {
    let folder = tempfile::tempdir().unwrap();
    for batches in prunes {
        let mut writer = Writer::open(&path(&folder), "public.outbox").unwrap();
        batches.iter().for_each(|rows| add(&mut writer, rows));
        writer.finish().unwrap();
    }
    let contents = Contents::read(&path(&folder)).unwrap();
    (folder, contents)
}

fn all(contents: &Contents) -> FileRows {
    FileRows {
        contents: Arc::new(contents.clone()),
        created_at: "created_at".to_owned(),
        tie: None,
        columns: vec!["id".to_owned(), "kind".to_owned(), "payload".to_owned()],
        filters: Vec::new(),
        since: None,
        until: i64::MAX,
        discarded: None,
    }
}

/// The numbers of the rows, and their cursors.
fn read(rows: &FileRows, after: Option<&Cursor>) -> Vec<(u32, Cursor)> {
    let mut merge = Merge::new(rows.clone(), after).unwrap();
    let mut found = Vec::new();
    while let Some(page) = merge.next_page().unwrap() {
        assert!(!page.is_empty());
        for (row, cursor) in page {
            let id: u32 = row.values[0].as_ref().unwrap().parse().unwrap();
            assert_eq!(row.values[1].as_deref(), (id.is_multiple_of(2)).then_some("even"));
            assert_eq!(row.values[2], Some(format!("{{\"n\": {id}}}")));
            assert_eq!(row.inserted.unix_micros(), cursor.micros);
            found.push((id, cursor));
        }
    }
    found
}

fn ids(rows: &FileRows) -> Vec<u32> {
    read(rows, None).into_iter().map(|(id, _)| id).collect()
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused_and_goes_on_from_its_last_complete_batch() {
    let (folder, contents) = written(&[&[&[(1, 1), (2, 2)], &[(3, 3)]], &[&[(4, 4)]]]);
    assert_eq!(contents.clone().complete().unwrap().rows, 4);
    let bytes = std::fs::read(path(&folder)).unwrap();
    let mut rows_before = 0;
    for length in 0..bytes.len() {
        std::fs::write(path(&folder), &bytes[..length]).unwrap();
        if (1..24).contains(&length) {
            // so few bytes could be those of any file
            assert!(Writer::open(&path(&folder), "public.outbox").is_err(), "{length}");
            continue;
        }
        let cut = Contents::read(&path(&folder)).unwrap();
        let ended = cut.rows == 3 && cut.incomplete == 0 && cut.clone().complete().is_ok();
        // the end of the first prune is an end
        assert!(cut.clone().complete().is_err() || ended, "{length}");
        assert!(cut.rows >= rows_before, "{length}");
        rows_before = cut.rows;
        let mut writer = Writer::open(&path(&folder), "public.outbox").unwrap();
        add(&mut writer, &[(5, 5)]);
        writer.finish().unwrap();
        let continued = Contents::read(&path(&folder)).unwrap().complete().unwrap();
        assert_eq!(continued.rows, cut.rows + 1, "{length}");
        assert_eq!(ids(&all(&continued)).last(), Some(&5), "{length}");
    }
    assert_eq!(rows_before, 4);
}

#[test]
fn a_file_of_which_any_byte_is_altered_is_refused() {
    let (folder, _) = written(&[&[&[(1, 1), (2, 2)], &[(3, 3)]]]);
    let bytes = std::fs::read(path(&folder)).unwrap();
    for at in 0..bytes.len() {
        let mut altered = bytes.clone();
        altered[at] ^= 0x10;
        std::fs::write(path(&folder), altered).unwrap();
        assert!(Contents::read(&path(&folder)).and_then(Contents::complete).is_err(), "{at}");
        // nothing but the end is cut off
        if let Ok(contents) = Contents::read(&path(&folder)) {
            assert_eq!(contents.rows, 3, "{at}");
        }
    }
}

/// Its checksums would be right on their own.
#[test]
fn a_batch_that_is_missing_or_moved_is_noticed() {
    let (folder, contents) = written(&[&[&[(1, 1)], &[(2, 2)], &[(3, 3)]]]);
    let bytes = std::fs::read(path(&folder)).unwrap();
    let ends: Vec<usize> =
        std::iter::once(0).chain(contents.places.iter().map(|place| place.end() as usize)).collect();
    let part = |number: usize| &bytes[ends[number]..ends[number + 1]];
    let end = &bytes[ends[3]..];
    for parts in [
        [part(0), part(2), end].concat(),
        [part(1), part(0), part(2), end].concat(),
        [part(0), part(1), part(1), part(2), end].concat(),
    ] {
        std::fs::write(path(&folder), parts).unwrap();
        assert!(Contents::read(&path(&folder)).is_err());
    }
}

#[test]
fn something_else_is_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    for other in [
        &b"{}\n"[..],
        b"PK\x03\x04",
        &[0; 100],
        &zstd::bulk::compress(b"{}\n", 3).unwrap(),
        b"\x50\x2A\x4D\x18\x05\0\0\0other",
    ] {
        std::fs::write(path(&folder), other).unwrap();
        assert!(Writer::open(&path(&folder), "public.outbox").is_err());
        assert_eq!(std::fs::read(path(&folder)).unwrap(), other);
    }
    let mut writer = Writer::open(&folder.path().join("new.jsonl.zst"), "public.outbox").unwrap();
    add(&mut writer, &[(1, 1)]);
    writer.finish().unwrap();
    assert!(Writer::open(&folder.path().join("new.jsonl.zst"), "public.orders").is_err());
}

/// More batches overlap than are kept in memory.
#[test]
fn rows_are_in_the_order_of_their_times_whichever_batch_they_are_in() {
    let batch = |first: u32| (0..5).map(|n| (first + n * 8, first + n * 8)).collect::<Vec<_>>();
    let batches: Vec<Vec<Row>> = (0..8).rev().map(batch).collect();
    let batches: Vec<&[Row]> = batches.iter().map(Vec::as_slice).collect();
    let (_folder, contents) = written(&[&batches]);
    let rows = all(&contents);
    assert_eq!(ids(&rows), (0..40).collect::<Vec<_>>());
    // from every row on
    let found = read(&rows, None);
    for (number, (_, cursor)) in found.iter().enumerate() {
        let rest: Vec<u32> = read(&rows, Some(cursor)).into_iter().map(|(id, _)| id).collect();
        assert_eq!(rest, (number as u32 + 1..40).collect::<Vec<_>>());
    }
    let part = FileRows { since: Some(7_000_000), until: 21_000_000, ..rows.clone() };
    assert_eq!(ids(&part), (7..21).collect::<Vec<_>>());
    let filters = vec![("kind".to_owned(), vec!["even".to_owned(), "odd".to_owned()])];
    assert_eq!(ids(&FileRows { filters, ..part.clone() }), [8, 10, 12, 14, 16, 18, 20]);
    let discarded = Some(("kind".to_owned(), "id".to_owned()));
    assert_eq!(ids(&FileRows { discarded, ..part }), [8, 10, 12, 14, 16, 18, 20]);
}

#[test]
fn rows_of_one_time_are_in_the_order_of_their_numbers_or_of_the_file() {
    let (_folder, contents) = written(&[&[&[(1, 9), (1, 3)], &[(1, 70), (2, 1)]], &[&[(1, 2)]]]);
    let rows = all(&contents);
    assert_eq!(ids(&rows), [9, 3, 70, 2, 1]);
    let by_id = FileRows { tie: Some("id".to_owned()), ..rows };
    let found = read(&by_id, None);
    assert_eq!(found.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 3, 9, 70, 1]);
    let rest = read(&by_id, Some(&found[1].1));
    assert_eq!(rest.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [9, 70, 1]);
    // a cursor of a table
    let other = Cursor { micros: 0, created_at: String::new(), ties: vec!["7".to_owned()] };
    assert!(Merge::new(by_id, Some(&other)).is_err());
}

/// Each would have to be read again for every row, if only few were kept.
#[test]
fn many_batches_that_overlap_are_read_once() {
    let batch = |first: u32| (0..50).map(|n| (n % 60, n * 20 + first)).collect::<Vec<_>>();
    let batches: Vec<Vec<Row>> = (0..20).map(batch).collect();
    let batches: Vec<&[Row]> = batches.iter().map(Vec::as_slice).collect();
    let (folder, contents) = written(&[&batches]);
    let rows = FileRows { tie: Some("id".to_owned()), ..all(&contents) };
    let mut merge = Merge::new(rows, None).unwrap();
    // a page is longer than all rows, so an entry that is read again would be missed
    let page = merge.next_page().unwrap().unwrap();
    assert_eq!(page.len(), 1_000);
    std::fs::write(path(&folder), "").unwrap();
    assert!(merge.next_page().unwrap().is_none());
}

#[test]
fn the_last_batch_is_taken_back_if_its_rows_are_not_deleted() {
    let (folder, contents) = written(&[&[&[(1, 1)]]]);
    let mut writer = Writer::open(&path(&folder), "public.outbox").unwrap();
    add(&mut writer, &[(2, 2)]);
    add(&mut writer, &[(3, 3)]);
    writer.undo();
    add(&mut writer, &[(4, 4)]);
    writer.undo();
    writer.finish().unwrap();
    let after = Contents::read(&path(&folder)).unwrap().complete().unwrap();
    assert_eq!(ids(&all(&after)), [1, 2]);
    assert!(after.up_to(contents.checksum()).is_some());
}

#[test]
fn rows_are_not_written_to_a_file_that_somebody_has_removed_or_changed() {
    let changes: [fn(&std::path::Path); 4] = [
        |path| std::fs::remove_file(path).unwrap(),
        |path| std::fs::rename(path, path.with_extension("old")).unwrap(),
        |path| std::fs::write(path, "").unwrap(),
        |path| {
            let bytes = std::fs::read(path).unwrap();
            std::fs::remove_file(path).unwrap();
            std::fs::write(path, bytes).unwrap();
        },
    ];
    for change in changes {
        let (folder, _) = written(&[&[&[(1, 1)]]]);
        let mut writer = Writer::open(&path(&folder), "public.outbox").unwrap();
        change(&path(&folder));
        let rows =
            DeletedRows { columns: COLUMNS, count: 1, times: (Some(0), Some(0)), lines: &lines(&[(2, 2)]) };
        assert!(writer.add(rows).is_err());
    }
}

#[test]
fn rows_that_are_not_what_was_announced_are_not_written() {
    let (folder, contents) = written(&[&[&[(1, 1)]]]);
    let mut writer = Writer::open(&path(&folder), "public.outbox").unwrap();
    let two = lines(&[(2, 2), (3, 3)]);
    for (columns, count, lines) in [
        (COLUMNS, 3, two.as_str()),
        (COLUMNS, u64::MAX, ""),
        ("", 2, &two),
        (COLUMNS, 1, "{\"a\": \n"),
        (COLUMNS, 1, "{\"a\": b}\n"),
    ] {
        assert!(writer.add(DeletedRows { columns, count, times: (None, None), lines }).is_err(), "{lines}");
    }
    writer.finish().unwrap();
    assert_eq!(Contents::read(&path(&folder)).unwrap(), contents);
}

proptest::proptest! {
    #[test]
    fn files_with_any_bytes_are_read_without_a_panic(
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300), at in 0_usize..2_000, kept in 0_usize..2_000
    ) {
        let (folder, _) = written(&[&[&[(1, 1), (2, 2)], &[(3, 3)]]]);
        let mut file = std::fs::read(path(&folder)).unwrap();
        file.truncate(kept);
        let at = at.min(file.len());
        file.splice(at..at, bytes);
        std::fs::write(path(&folder), file).unwrap();
        let _ = Contents::read(&path(&folder)).and_then(Contents::complete);
    }
}

#[test]
fn the_rows_up_to_an_earlier_end_are_the_same_after_the_file_has_grown() {
    let (folder, first) = written(&[&[&[(1, 1), (5, 5)]]]);
    let mut writer = Writer::open(&path(&folder), "public.outbox").unwrap();
    add(&mut writer, &[(2, 2)]);
    writer.finish().unwrap();
    let grown = Contents::read(&path(&folder)).unwrap();
    assert_eq!(ids(&all(&grown)), [1, 2, 5]);
    assert_eq!(ids(&all(&grown.clone().up_to(first.checksum()).unwrap())), [1, 5]);
    assert!(grown.up_to("").is_none());
    // nothing more is written behind an end
    let length = std::fs::metadata(path(&folder)).unwrap().len();
    Writer::open(&path(&folder), "public.outbox").unwrap().finish().unwrap();
    assert_eq!(std::fs::metadata(path(&folder)).unwrap().len(), length);
}
