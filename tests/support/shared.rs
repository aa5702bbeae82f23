//! The servers that all tests share. `scripts/test` starts them.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// One of the Postgres servers that all tests share, without a database: `postgres://postgres@127.0.0.1:15432`. It is the same for
/// all tests of this process.
pub(crate) fn postgres() -> &'static str {
    let [others @ .., _] = SERVERS.as_slice() else { panic!("TEST_POSTGRES_URLS is empty") };
    match others.len() {
        0 => postgres_with_long_transactions(),
        count => &others[usize::try_from(std::process::id()).unwrap() % count],
    }
}

/// The one for tests that leave a transaction open for a while, for example to hold a lock: whoever creates a slot on the same server
/// waits until it has ended.
pub(crate) fn postgres_with_long_transactions() -> &'static str {
    SERVERS.last().unwrap()
}

/// The URLs of the servers, without a database.
static SERVERS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let urls = std::env::var("TEST_POSTGRES_URLS").unwrap_or_else(|_| variable("TEST_POSTGRES_URL"));
    let server =
        |url: &str| url.rsplit_once('/').unwrap_or_else(|| panic!("{url} names no database")).0.to_owned();
    urls.split_whitespace().map(server).collect()
});

/// Host and port of the shared broker.
pub(crate) fn kafka() -> &'static str {
    static ADDRESS: LazyLock<String> = LazyLock::new(|| variable("TEST_KAFKA"));
    &ADDRESS
}

/// A variable that `scripts/services env` exports.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: run scripts/test, or first\n  \
             scripts/services up && eval \"$(scripts/services env)\""
        )
    })
}

/// The statement that creates a database. `TEST_DATABASE_OPTIONS` has the fastest way on the shared server.
pub(crate) fn create_database(name: &str) -> String {
    format!("CREATE DATABASE {name} {}", std::env::var("TEST_DATABASE_OPTIONS").unwrap_or_default())
}

/// A name that no other test has or had in an earlier run on the same servers.
pub(crate) fn unique() -> String {
    static RUN: LazyLock<u32> = LazyLock::new(rand::random);
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{:08x}_{}", *RUN, NEXT.fetch_add(1, Ordering::Relaxed))
}
