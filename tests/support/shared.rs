//! The servers that all tests share. `scripts/test` starts them.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The shared Postgres, without a database: `postgres://postgres@127.0.0.1:15432`.
pub(crate) fn postgres() -> &'static str {
    static URL: LazyLock<String> = LazyLock::new(|| {
        let url = variable("TEST_POSTGRES_URL");
        url.rsplit_once('/')
            .unwrap_or_else(|| panic!("TEST_POSTGRES_URL names no database: {url}"))
            .0
            .to_owned()
    });
    &URL
}

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
