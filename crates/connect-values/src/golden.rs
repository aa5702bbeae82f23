//! Reads the tables with the output of Debezium and Kafka Connect.

/// The rows of a golden file; a backslash escapes tab, line feed, carriage return and itself.
pub(crate) fn rows<const COLUMNS: usize>(file: &str) -> impl Iterator<Item = [String; COLUMNS]> + '_ {
    file.split('\n').filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
        let columns: Vec<String> = line.split('\t').map(unescape).collect();
        columns.try_into().expect("as many columns as the file has")
    })
}

fn unescape(text: &str) -> String {
    let mut characters = text.chars();
    let mut plain = String::new();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                other => other.expect("an escape's character"),
            },
            _ => character,
        });
    }
    plain
}
