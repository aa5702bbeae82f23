//! Everything that is checked in Postgres: first the connections, then what one of them shows.

use pg_logical::connect::Startup;
use pg_logical::conninfo::{ConnInfo, HostAddr, RootCert, SslMode};
use pg_logical::session::Session;

use super::address::is_local;
use super::finding::Findings;
use super::outbox::OutboxLook;
use super::{dead_letters, failover, outbox, positions, role, server, shards, slot};
use crate::commands::connect;
use crate::commands::server::Server;
use crate::config::Config;
use crate::error::Error;
use crate::outbox::Outbox;
use crate::postgres::catalog::Catalog;
use crate::routing::Router;

/// What to do if Postgres was reached but has not answered everything.
const BROKEN_OFF: &str = "The connection was made, and then Postgres refused what was asked, did not answer or ended the session, for the \
                          reason given. Checks that are not listed were not made: run check again";

/// What to do if Postgres cannot be reached.
const UNREACHABLE: &str = "Check that the server runs, and host, port and network: `[postgres] url`";

/// Checks Postgres. The topics are judged against what is learnt about the table.
pub(super) async fn look(config: &Config) -> (Findings, Option<OutboxLook>, Vec<positions::Ours>) {
    let mut findings = Findings::default();
    encryption(&config.postgres.conninfo, &mut findings);
    let mut session = match connect(config, "check", Startup::default()).await {
        Ok(session) => session,
        Err(error) => {
            findings.failure("postgres_connection", error, UNREACHABLE);
            return (findings, None, Vec::new());
        }
    };
    let (outbox, ours) = match check_in_session(&mut session, config, &mut findings).await {
        Ok((outbox, ours)) => (Some(outbox), ours),
        Err(error) => {
            findings.failure("postgres_connection", error, BROKEN_OFF);
            (None, Vec::new())
        }
    };
    session.close().await;
    (findings, outbox, ours)
}

async fn check_in_session(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<(OutboxLook, Vec<positions::Ours>), Error> {
    let shards = config.every_shard();
    // what the shards have in common is checked once
    let Some((config, others)) = shards.split_first() else { return Ok((OutboxLook::default(), Vec::new())) };
    let server = Server::look(session).await?;
    let encrypted = if session.is_tls() { "with TLS" } else { "without TLS" };
    findings.ok(
        "postgres_connection",
        format!("Postgres {} at {}, {encrypted}", server.version, session.info().place),
    );
    server::judge_version(&server, findings);
    let catalog = Catalog::query(session, &config.postgres, &config.outbox).await?;
    server::judge_settings(&server, config, &catalog, findings);
    role::judge(session, config, &server, &catalog, findings).await?;
    slot::judge(session, config, &catalog, findings).await?;
    failover::judge(session, config, &server, &catalog, findings).await?;
    role::judge_heartbeat(session, config, findings).await?;
    dead_letters::judge(session, config, findings).await?;
    let outbox = Outbox::of(config, Router::of(config).extra_columns());
    let looked = outbox::judge(session, config, &outbox, &server, &catalog, findings).await?;
    let mut catalogs = vec![catalog];
    for shard in others {
        let catalog = Catalog::query(session, &shard.postgres, &shard.outbox).await?;
        slot::judge(session, shard, &catalog, findings).await?;
        outbox::judge_published(shard, &catalog, findings);
        catalogs.push(catalog);
    }
    let found: Vec<(&Config, &Catalog)> = shards.iter().zip(&catalogs).collect();
    shards::judge(session, &found, findings).await?;
    let mut ours = Vec::new();
    for (config, catalog) in found {
        ours.extend(positions::Ours::of(config, catalog, session).await?);
    }
    Ok((looked, ours))
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
        SslMode::Prefer => "a server that has no TLS is talked to in clear text",
        _ => "another server could take its place",
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
