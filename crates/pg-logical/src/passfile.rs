//! The password file, `~/.pgpass` (Postgres manual, "The Password File").

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::conninfo::{Host, HostAddr};
use crate::secret::Secret;

/// Socket directories that Postgres and its packages use. In a password file, the host `localhost` stands for them; in libpq,
/// only for the directory that it was built with.
const DEFAULT_SOCKET_DIRECTORIES: [&str; 3] = ["/tmp", "/var/run/postgresql", "/run/postgresql"];

/// The result of a look-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// The password of the first line that matches.
    Found(Secret),
    /// No line matches.
    NotFound,
    /// The file does not exist.
    NoFile,
    /// The file is ignored, for this reason; libpq warns and continues.
    Ignored(String),
}

/// Looks up the password of `user` on `dbname` at `host` in the file at `path`.
pub fn look_up(path: &Path, host: &Host, dbname: &str, user: &str) -> Lookup {
    let text = match read(path) {
        Ok(Contents::Text(text)) => text,
        Ok(Contents::Ignored(why)) => return Lookup::Ignored(why),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Lookup::NoFile,
        Err(error) => return Lookup::Ignored(format!("cannot read {}: {error}", path.display())),
    };
    match password(&text, &host_field(host), &host.port.to_string(), dbname, user) {
        Some(password) => Lookup::Found(Secret::new(password)),
        None => Lookup::NotFound,
    }
}

enum Contents {
    Text(String),
    Ignored(String),
}

fn read(path: &Path) -> io::Result<Contents> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(Contents::Ignored(format!("{} is not a plain file", path.display())));
    }
    if metadata.mode() & 0o077 != 0 {
        let why = format!("{} has group or world access; chmod 0600 makes it usable", path.display());
        return Ok(Contents::Ignored(why));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Contents::Text(String::from_utf8_lossy(&bytes).into_owned()))
}

/// The host as the first field of a line names it.
fn host_field(host: &Host) -> String {
    match &host.addr {
        HostAddr::Tcp { name, hostaddr } if name.is_empty() => hostaddr.clone().unwrap_or_default(),
        HostAddr::Tcp { name, .. } => name.clone(),
        HostAddr::Unix(directory) => {
            let default = DEFAULT_SOCKET_DIRECTORIES.iter().any(|known| directory == &PathBuf::from(known));
            if default { "localhost".to_owned() } else { directory.display().to_string() }
        }
    }
}

/// The password in the first line of `text` whose `hostname:port:database:username` matches.
pub fn password(text: &str, host: &str, port: &str, dbname: &str, user: &str) -> Option<String> {
    let matching = |line: &str| {
        let rest =
            [host, port, dbname, user].iter().try_fold(line, |rest, value| strip_field(rest, value))?;
        Some(unescape(rest))
    };
    text.lines().filter(|line| !line.starts_with('#')).find_map(matching)
}

/// The rest of `line` after its first field, if that field is `*` or, unescaped, `value`.
fn strip_field<'a>(line: &'a str, value: &str) -> Option<&'a str> {
    if let Some(rest) = line.strip_prefix("*:") {
        return Some(rest);
    }
    let mut wanted = value.chars();
    let mut written = line.chars();
    loop {
        match written.next()? {
            ':' => return wanted.next().is_none().then_some(written.as_str()),
            '\\' => {
                let escaped = written.next()?;
                (wanted.next() == Some(escaped)).then_some(())?;
            }
            plain => (wanted.next() == Some(plain)).then_some(())?,
        }
    }
}

/// The password field, up to an unescaped colon, with escapes resolved.
fn unescape(field: &str) -> String {
    let mut password = String::new();
    let mut rest = field.chars();
    while let Some(c) = rest.next() {
        match c {
            ':' => break,
            '\\' => password.push(rest.next().unwrap_or('\\')),
            plain => password.push(plain),
        }
    }
    password
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn find(text: &str) -> Option<String> {
        password(text, "db.example", "5432", "shop", "router")
    }

    #[test]
    fn the_first_matching_line_is_used() {
        let text = "other:5432:shop:router:no\ndb.example:5432:shop:router:first\ndb.example:5432:shop:router:second\n";
        assert_eq!(find(text).as_deref(), Some("first"));
    }

    #[test]
    fn a_star_matches_only_as_a_whole_field() {
        assert_eq!(find("*:*:*:*:any").as_deref(), Some("any"));
        assert_eq!(find("db.*:5432:shop:router:no"), None);
        assert_eq!(password("*:5432:*:router:yes", "*x", "5432", "", "router").as_deref(), Some("yes"));
    }

    #[test]
    fn colons_and_backslashes_are_escaped() {
        let text = r"2001\:db8\:\:1:5432:a\\b:us\er:p\:w\\d:rest";
        assert_eq!(password(text, "2001:db8::1", "5432", r"a\b", "user").as_deref(), Some(r"p:w\d"));
    }

    #[test]
    fn comments_and_short_lines_are_skipped_and_crlf_is_accepted() {
        let text = "# db.example:5432:shop:router:no\n\ndb.example:5432\ndb.example:5432:shop:router\r\n*:*:*:router:ok\r\n";
        assert_eq!(find(text).as_deref(), Some("ok"));
    }

    #[test]
    fn a_prefix_of_a_field_does_not_match() {
        assert_eq!(find("db.exampl:5432:shop:router:no"), None);
        assert_eq!(find("db.example2:5432:shop:router:no"), None);
    }

    #[test]
    fn a_default_socket_directory_matches_localhost_and_another_its_path() {
        let host = |directory: &str| Host { addr: HostAddr::Unix(directory.into()), port: 5432 };
        assert_eq!(host_field(&host("/var/run/postgresql")), "localhost");
        assert_eq!(host_field(&host("/tmp")), "localhost");
        assert_eq!(host_field(&host("/srv/pg")), "/srv/pg");
    }

    #[test]
    fn a_file_that_others_can_read_is_ignored_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgpass");
        let host = Host { addr: HostAddr::Tcp { name: "db.example".into(), hostaddr: None }, port: 5432 };
        assert_eq!(look_up(&path, &host, "shop", "router"), Lookup::NoFile);

        std::fs::write(&path, "db.example:5432:shop:router:secret\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let Lookup::Ignored(why) = look_up(&path, &host, "shop", "router") else { panic!("was read") };
        assert!(why.contains("group or world access"), "{why}");

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(look_up(&path, &host, "shop", "router"), Lookup::Found(Secret::new("secret")));
    }
}
