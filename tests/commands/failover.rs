//! `init` and `check` with standbys. The pair of servers is Postgres 17 or later, whatever version the suite runs on.

use super::check::Found;
use crate::faults::failover::PG_HBA;
use crate::support::eventually::eventually;
use crate::support::place::{Place, psql};
use crate::support::postgres::{PrivatePostgres, Shutdown};

const FAILOVER: &str = "SELECT failover FROM pg_replication_slots WHERE slot_name = current_database()";

/// Replaces ports and positions.
fn masked(place: &Place, text: &str, servers: &[&PrivatePostgres]) -> String {
    let mut text = place.masked(text);
    for (server, name) in servers.iter().zip(["PRIMARY", "STANDBY"]) {
        text = text.replace(&format!("127.0.0.1:{}", server.port()), name);
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in scripts/test --full"]
async fn failover_is_prepared_by_init_and_examined_by_check() {
    let (primary, standby) = PrivatePostgres::pair(PG_HBA, &[], &[]).await;
    let mut place = Place::on(&primary.url());
    let servers = [&primary, &standby];
    let failover = |found: &Found| {
        masked(&place, &(found.of("failover") + &found.of("failover_standby")), &servers)
            .trim_end()
            .to_owned()
    };
    let mut session = standby.superuser().await;
    let database = format!("SELECT 1 FROM pg_database WHERE datname = '{}'", place.name);
    eventually("the standby has the database", async || session.query_one(&database).await.unwrap()).await;

    assert_eq!(place.run(&["init"]).code, 0);
    assert_eq!(place.psql(FAILOVER).trim(), "t");
    let by_script = Place::on(&primary.url());
    let file = by_script.folder().join("init.sql");
    std::fs::write(&file, by_script.run(&["init", "--print-sql"]).out).unwrap();
    let ran = psql(&by_script.url("postgres"), &["-f", file.to_str().unwrap()]);
    assert_eq!((ran.code, by_script.psql(FAILOVER).trim()), (0, "t"), "{ran:?}");

    // a copied slot is not a failover slot, but the copy with which a reset replaces the slot must be one
    for arguments in [&["slot", "bookmark", "here"][..], &["slot", "reset", "--to", "here", "--yes"]] {
        let ran = by_script.run(arguments);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    assert_eq!(by_script.psql(FAILOVER).trim(), "t");

    // a slot that was created before there was a standby
    place.psql(&format!(
        "SELECT pg_drop_replication_slot('{0}'); SELECT pg_create_logical_replication_slot('{0}', 'pgoutput')",
        place.name
    ));
    insta::assert_snapshot!("failover_a_slot_without", failover(&Found::at(&place)));
    let ran = place.run(&["init"]);
    let line = ran.out.lines().find(|line| line.starts_with("slot ")).unwrap().to_owned();
    insta::assert_snapshot!("failover_init", masked(&place, &line, &servers));
    assert_eq!(place.psql(FAILOVER).trim(), "t");

    insta::assert_snapshot!("failover_standby_unknown", failover(&Found::at(&place)));
    let hosts = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}", standby.port(), primary.port());
    let both = format!("{hosts}/{}", place.name);
    place.set("POSTGRES__URL", &both);
    let failover = |found: &Found| {
        masked(&place, &(found.of("failover") + &found.of("failover_standby")), &servers)
            .trim_end()
            .to_owned()
    };
    insta::assert_snapshot!("failover_standby_not_set_up", failover(&Found::at(&place)));

    standby.configure(&[("sync_replication_slots", "on")]).await;
    primary.configure(&[("synchronized_standby_slots", "standby")]).await;
    // the copy is usable once the primary's slot has passed the position from which the standby retains WAL
    let advance = "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_insert_lsn()) FROM \
                   pg_replication_slots WHERE slot_name = current_database()";
    let prepared = eventually("the standby keeps a copy", async || {
        place.psql("CHECKPOINT");
        place.psql(advance);
        let found = Found::at(&place);
        found.of("failover_standby").contains("keeps a copy of the slot, confirmed").then_some(found)
    })
    .await;
    assert_eq!(prepared.code, 0);
    insta::assert_snapshot!("failover_prepared", failover(&prepared));

    standby.stop(Shutdown::Fast);
    let found = eventually("the slot of the standby is not read", async || {
        Some(Found::at(&place)).filter(|found| found.code == 1)
    })
    .await;
    insta::assert_snapshot!("failover_standby_away", failover(&found));

    // no standby can be seen any more, but Postgres still waits for one
    let only = format!("postgres://postgres@127.0.0.1:{}/{}", primary.port(), place.name);
    place.set("POSTGRES__URL", &only);
    for slots in ["standby", "nobody, standby"] {
        primary.configure(&[("synchronized_standby_slots", slots)]).await;
        let errors = Found::at(&place).errors();
        assert!(
            errors.contains("OBR-1106") && errors.contains("events wait until one does"),
            "{slots}: {errors}"
        );
    }
    primary.configure(&[("synchronized_standby_slots", "")]).await;
    assert_eq!(Found::at(&place).errors(), "");
}

#[test]
fn failover_before_17_with_several_hosts_causes_warning() {
    let mut place = Place::new();
    if place.server_version() >= 170_000 {
        return;
    }
    assert_eq!(place.run(&["init"]).code, 0);
    let one = Found::at(&place).of("failover");
    assert!(one.starts_with("ok: no standby is known; before Postgres 17"), "{one}");
    let url = place.url("postgres");
    let (_, host) = url.rsplit_once('@').unwrap();
    let twice = format!("postgres://postgres@{},{host}", host.split('/').next().unwrap());
    place.set("POSTGRES__URL", &twice);
    let several = Found::at(&place).of("failover");
    assert!(several.starts_with("warning: there are standbys, and before Postgres 17"), "{several}");
    assert!(several.contains("\n-> Upgrade Postgres"), "{several}");
}
