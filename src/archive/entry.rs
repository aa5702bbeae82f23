//! How an entry is written.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Batch;

/// The magic number of skippable frames.
const MAGIC: [u8; 4] = 0x184D_2A50_u32.to_le_bytes();

/// What a description begins with, which other files with skippable frames do not have.
const NAME: &str = "outbox-router 1 ";

/// How long a checksum is in hexadecimal digits.
const DIGITS: usize = 64;

/// Before the description: the magic number and the length.
pub(super) const HEAD: usize = 8;

/// How many bytes of an entry are needed to recognize it.
pub(super) const RECOGNIZED: usize = HEAD + NAME.len();

/// The greatest length of a description, in bytes.
const LONGEST: u32 = 4 << 20;

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    /// Rows follow.
    Rows(Batch),
    /// A prune has ended, and the file has so many rows.
    End(u64),
}

/// Appends a description, and returns its checksum; `before` is that of the description before it.
pub(super) fn write(out: &mut Vec<u8>, before: &str, entry: &Entry) -> String {
    let description = serde_json::to_string(entry).unwrap_or_default();
    let chain = chained(before, &description);
    let content = format!("{NAME}{chain} {description}");
    out.extend(MAGIC);
    out.extend(u32::try_from(content.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(content.as_bytes());
    chain
}

/// The length of the description behind a head. `None`: it is no head of an entry.
pub(super) fn length(head: [u8; HEAD]) -> Option<u32> {
    let [a, b, c, d, length @ ..] = head;
    let length = u32::from_le_bytes(length);
    ([a, b, c, d] == MAGIC && length <= LONGEST).then_some(length)
}

/// Whether these bytes, which nothing follows, may be the first ones of an entry, and have no other one among them.
pub(super) fn may_be_incomplete(bytes: &[u8]) -> bool {
    let name = bytes.get(HEAD..).unwrap_or_default();
    let begins_with = |bytes: &[u8], wanted: &[u8]| bytes.iter().zip(wanted).all(|(one, other)| one == other);
    let another = name.get(1..).unwrap_or_default().windows(NAME.len()).any(|part| part == NAME.as_bytes());
    begins_with(bytes, &MAGIC) && begins_with(name, NAME.as_bytes()) && !another
}

/// Reads a description, with its checksum. `None`: it was altered, or does not follow the one with the checksum `before`.
pub(super) fn read(content: &[u8], before: &str) -> Option<(String, Entry)> {
    let content = std::str::from_utf8(content).ok()?.strip_prefix(NAME)?;
    let (chain, description) = content.split_at_checked(DIGITS)?;
    let description = description.strip_prefix(' ')?;
    let entry = serde_json::from_str(description).ok()?;
    (chained(before, description) == chain).then(|| (chain.to_owned(), entry))
}

fn chained(before: &str, description: &str) -> String {
    hexadecimal(Sha256::new().chain_update(before).chain_update(description))
}

/// The digits of a checksum.
pub(super) fn hexadecimal(checksum: Sha256) -> String {
    checksum.finalize().iter().fold(String::with_capacity(DIGITS), |mut digits, byte| {
        // writing to a String cannot fail
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_read_only_as_it_was_written_and_behind_the_same_one() {
        let mut written = Vec::new();
        let first = write(&mut written, "", &Entry::End(0));
        let behind = written.len();
        let second = write(&mut written, &first, &Entry::End(7));
        assert_eq!(length(written[..HEAD].try_into().unwrap()), Some((behind - HEAD) as u32));
        assert_eq!(read(&written[HEAD..behind], ""), Some((first.clone(), Entry::End(0))));
        let content = written.split_off(behind + HEAD);
        assert_eq!(read(&content, &first), Some((second, Entry::End(7))));
        assert_eq!(read(&content, ""), None);
        for at in 0..content.len() {
            let mut altered = content.clone();
            altered[at] ^= 1;
            assert_eq!(read(&altered, &first), None, "{at}");
        }
        for (bytes, expected) in [
            (&b""[..], true),
            (b"\x50\x2A", true),
            (&written, true),
            (b"{}", false),
            (&[0; 50], false),
            (&[written.as_slice(), &written].concat(), false),
        ] {
            assert_eq!(may_be_incomplete(bytes), expected, "{bytes:?}");
        }
        assert_eq!(length(*b"\x28\xB5\x2F\xFD\0\0\0\0"), None);
        assert_eq!(length(*b"\x50\x2A\x4D\x18\xFF\xFF\xFF\xFF"), None);
    }
}
