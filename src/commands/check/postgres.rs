//! Runs all checks of Postgres.

use pg_logical::connect::Startup;
use pg_logical::conninfo::{ConnInfo, HostAddr, RootCert, SslMode};
use pg_logical::session::Session;

use super::address::is_local;
use super::finding::Findings;
use super::outbox::OutboxFacts;
use super::{
    backfill, bookmarks, dead_letters, failover, outbox, partitions, polling, positions, role, rows_kept,
    server, shards, slot,
};
use crate::commands::connect;
use crate::commands::server::Server;
use crate::config::{CatchUp, Config};
use crate::error::{Error, Peer};
use crate::outbox::Outbox;
use crate::postgres::catalog::Catalog;
use crate::routing::Router;

/// What to do if the checks were interrupted.
const INTERRUPTED: &str = "After connecting, Postgres refused a query, did not answer or ended the session. Checks that are not listed \
                           were not made: run check again";

/// Checks Postgres. Returns the findings, and what the checks of topics and checkpoints need.
pub(super) async fn check(config: &Config) -> (Findings, Option<OutboxFacts>, Vec<positions::RouterState>) {
    let mut findings = Findings::default();
    encryption(&config.postgres.conninfo, &mut findings);
    let mut session = match connect(config, "check", Startup::default()).await {
        Ok(session) => session,
        Err(error) => {
            findings.failure("postgres_connection", error, Peer::Postgres.if_unreachable());
            return (findings, None, Vec::new());
        }
    };
    let (outbox, states) = match check_in_session(&mut session, config, &mut findings).await {
        Ok((outbox, states)) => (Some(outbox), states),
        Err(error) => {
            findings.failure("postgres_connection", error, INTERRUPTED);
            (None, Vec::new())
        }
    };
    session.close().await;
    (findings, outbox, states)
}

async fn check_in_session(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<(OutboxFacts, Vec<positions::RouterState>), Error> {
    let shards = config.every_shard();
    // properties that the shards share are checked for the first one only
    let Some((config, others)) = shards.split_first() else {
        return Ok((OutboxFacts::default(), Vec::new()));
    };
    let server = Server::query(session).await?;
    let encrypted = if session.is_tls() { "with TLS" } else { "without TLS" };
    findings.ok(
        "postgres_connection",
        format!("Postgres {} at {}, {encrypted}", server.version, session.info().place),
    );
    server::check_version(&server, findings);
    role::check_row_security(session, config, findings).await?;
    rows_kept::check(session, config, findings).await?;
    if let Some(polling) = &config.polling {
        polling::check(session, config, polling, &server, findings).await?;
        return Ok((OutboxFacts::default(), Vec::new()));
    }
    if !server.standby {
        partitions::check(session, config, findings).await?;
    }
    let catalog = Catalog::query(session, &config.postgres, &config.outbox).await?;
    server::check_settings(&server, config, &catalog, findings);
    role::check(session, config, &server, &catalog, findings).await?;
    slot::check(session, config, &catalog, findings).await?;
    bookmarks::check(session, config, findings).await?;
    bookmarks::check_cluster_manager(session, findings).await?;
    backfill::check(session, config, findings).await?;
    failover::check(session, config, &server, &catalog, findings).await?;
    role::check_heartbeat(session, config, findings).await?;
    if config.postgres.catch_up == CatchUp::Auto {
        server::check_bulk_reads(&server, &catalog, shards.len(), findings);
        role::check_bulk_reads(session, findings).await?;
    }
    dead_letters::check(session, config, findings).await?;
    let outbox = Outbox::of(config, Router::of(config).extra_columns());
    let outbox_facts = outbox::check(session, config, &outbox, &catalog, findings).await?;
    let mut catalogs = vec![catalog];
    for shard in others {
        let catalog = Catalog::query(session, &shard.postgres, &shard.outbox).await?;
        slot::check(session, shard, &catalog, findings).await?;
        bookmarks::check(session, shard, findings).await?;
        backfill::check(session, shard, findings).await?;
        outbox::check_published(shard, &catalog, findings);
        catalogs.push(catalog);
    }
    let found: Vec<(&Config, &Catalog)> = shards.iter().zip(&catalogs).collect();
    shards::check(session, &found, findings).await?;
    let mut states = Vec::new();
    for (config, catalog) in found {
        states.extend(positions::RouterState::of(config, catalog, session).await?);
    }
    Ok((outbox_facts, states))
}

/// Warns if a host on another machine does not have to prove its identity.
fn encryption(conninfo: &ConnInfo, findings: &mut Findings) {
    let verified =
        conninfo.ssl_mode == SslMode::VerifyFull || matches!(conninfo.ssl_root_cert, Some(RootCert::System));
    let remote = conninfo.hosts.iter().find_map(|host| match &host.addr {
        HostAddr::Tcp { name, hostaddr } => {
            let address = hostaddr.as_deref().filter(|address| !address.is_empty()).unwrap_or(name);
            (!is_local(address)).then_some(name)
        }
        HostAddr::Unix(_) => None,
    });
    let Some(remote) = remote.filter(|_| !verified) else { return };
    let without = match conninfo.ssl_mode {
        SslMode::Disable | SslMode::Allow => "the connection need not be encrypted",
        SslMode::Prefer => "a server without TLS gets an unencrypted connection",
        _ => "another server could impersonate it",
    };
    findings.warning(
        "sslmode",
        format!("sslmode is weaker than verify-full, and {remote} is not this machine: {without}"),
        "Add sslmode=verify-full and sslrootcert=FILE (or sslrootcert=system) to `[postgres] url`",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use pg_logical::Environment;

    fn warnings(url: &str) -> usize {
        let mut findings = Findings::default();
        let env = Environment::empty().with_user("me").with_file("/ca.pem");
        encryption(&ConnInfo::parse(url, &env).unwrap(), &mut findings);
        findings.0.len()
    }

    #[test]
    fn only_a_remote_host_has_to_prove_who_it_is() {
        for url in [
            "postgres://db/shop",
            "postgres://db/shop?sslmode=require",
            "postgres://localhost,db/shop",
            "host=localhost hostaddr=10.0.0.7",
        ] {
            assert_eq!(warnings(url), 1, "{url}");
        }
        for url in [
            "postgres://localhost/shop",
            "postgres://127.0.0.1/shop",
            "postgres://[::1]/shop",
            "host=/run/postgresql",
            "postgres://db/shop?sslmode=verify-full&sslrootcert=/ca.pem",
            "postgres://db/shop?sslrootcert=system",
        ] {
            assert_eq!(warnings(url), 0, "{url}");
        }
    }
}
