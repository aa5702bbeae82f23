//! A session that locks a table, as a schema migration might.

use serde_json::Value;
use tokio_postgres::Client;

use super::eventually::eventually;
use super::outbox::Outbox;
use super::router::Router;
use super::settings::Settings;

pub(crate) struct TableLock {
    client: Client,
    pid: i32,
    /// Name with schema.
    table: &'static str,
}

impl TableLock {
    pub(crate) async fn take(outbox: &Outbox, table: &'static str) -> Self {
        let client = outbox.client().await;
        client
            .batch_execute(&format!(
                "SET application_name = 'schema migration'; BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"
            ))
            .await
            .unwrap();
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        TableLock { client, pid, table }
    }

    /// The server process that holds the lock.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) async fn release(self) {
        self.client.batch_execute("COMMIT").await.unwrap();
    }

    /// Whether a text names the table and the session that has locked it.
    pub(crate) fn is_named_in(&self, text: &str) -> bool {
        let (table, process) = (format!("table {}", self.table), format!("server process {}", self.pid));
        [&table, &process, "application_name schema migration", "role postgres"]
            .iter()
            .all(|part| text.contains(part))
    }

    /// Waits for a log line that names both, and returns it.
    pub(crate) async fn is_logged_by(&self, router: &mut Router) -> String {
        eventually("a log line names the table and the locking session", async || {
            router.assert_running();
            router.log().lines().find(|line| self.is_named_in(line)).map(str::to_owned)
        })
        .await
    }

    /// Waits until `/status`, `/readyz`, the log and `outbox-router status` name both. Returns the reason.
    pub(crate) async fn is_shown_by(&self, settings: &Settings, router: &mut Router) -> String {
        let reason = router
            .shows("the reason names the table and the locking session", |status| {
                let reason = status["reason"].as_str()?;
                self.is_named_in(reason).then(|| reason.to_owned())
            })
            .await;
        eventually("readiness names them", async || {
            let (ready, text) = router.get("/readyz")?;
            (ready == 503 && self.is_named_in(&text)).then_some(())
        })
        .await;
        self.is_logged_by(router).await;
        let admin = format!("127.0.0.1:{}", router.admin_port().unwrap());
        let ran = settings.clone().set("admin.listen", admin).run(&["status", "--json"]);
        let status: Value = serde_json::from_str(&ran.out).unwrap();
        assert!(self.is_named_in(status["router"]["reason"].as_str().unwrap()), "{ran:?}");
        reason
    }
}
