//! Error messages with which routers end, for snapshots.

use std::path::Path;

use super::outbox::Outbox;
use super::router::Ended;

/// Cases with their exit codes and error messages.
#[derive(Default)]
pub(crate) struct Sentences(String);

impl Sentences {
    /// Adds the error message of a router. `known` has texts that differ from run to run and their replacements, longer texts
    /// first.
    pub(crate) fn add(&mut self, case: &str, ended: &Ended, known: &[(&str, &str)]) {
        let code = ended.status.code().map_or_else(|| "by a signal".to_owned(), |code| code.to_string());
        let message = ended.log.split_inclusive('\n').skip_while(|line| !line.starts_with("error: "));
        // at debug level, threads may log after the error; a log line begins with its time
        let message: String =
            message.take_while(|line| !line.starts_with(|c: char| c.is_ascii_digit())).collect();
        let message = message
            .strip_prefix("error: ")
            .unwrap_or_else(|| panic!("{case}: the router ended without a reason\n{}", ended.log));
        self.0.push_str(&format!("{case}\n    {code}: {}\n", masked(message.trim_end(), known)));
    }

    /// The same, with only the outbox's name and address to mask.
    pub(crate) fn of(&mut self, case: &str, outbox: &Outbox, ended: &Ended) {
        self.add(case, ended, &[(outbox.address(), "HOST"), (&outbox.name, "NAME")]);
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

/// Replaces the known texts, and everything that can be recognized by its form: files of the test, UUIDs and LSNs.
pub(crate) fn masked(text: &str, known: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (from, to) in known {
        text = text.replace(from, to);
    }
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '.' | '_');
    let mut shown = String::new();
    for part in text.split_inclusive(|c| !word(c)) {
        let bare = part.trim_end_matches(|c| !word(c)).trim_end_matches('.');
        let mask = match bare {
            _ if Path::new(bare).starts_with(std::env::temp_dir()) => {
                shown.push_str(&part.replace(bare, bare.rsplit('/').next().unwrap_or_default()));
                continue;
            }
            _ if is_uuid(bare) => "UUID",
            _ if is_lsn(bare) => "LSN",
            _ => bare,
        };
        shown.push_str(&if bare.is_empty() { part.to_owned() } else { part.replacen(bare, mask, 1) });
    }
    shown
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_uuid(word: &str) -> bool {
    let parts: Vec<_> = word.split('-').collect();
    parts.iter().all(|part| is_hex(part)) && parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
}

fn is_lsn(word: &str) -> bool {
    word.split_once('/').is_some_and(|(high, low)| is_hex(high) && is_hex(low))
}
