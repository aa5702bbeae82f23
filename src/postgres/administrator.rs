//! What an administrator does where the router's role may not.

use pg_logical::conninfo::{ConnInfo, Host, HostAddr};

use crate::error::{Error, ErrorCode, Remedy, Step, shell_word};

/// `outbox-router init` for the server, the database and the role of `router`. Only the administrator has to be filled in.
pub fn init_command(router: &ConnInfo) -> String {
    let administrator = ConnInfo {
        user: "ADMINISTRATOR".to_owned(),
        password: None,
        passfile: None,
        ssl_client: None,
        connect_timeout: None,
        application_name: None,
        options: None,
        ..router.clone()
    };
    format!(
        "outbox-router init --url {} --role {}",
        shell_word(&administrator.to_redacted_uri()),
        shell_word(&router.user)
    )
}

/// The remedy with this command as its only step. `why` says what it is for.
pub fn init_remedy(why: &str, router: &ConnInfo) -> Remedy {
    Remedy::steps([Step::new(format!(
        "{why}, as an administrator (replace ADMINISTRATOR with that role's name)"
    ))
    .typing(init_command(router))])
}

/// Refuses a server whose `wal_level` is not logical.
pub fn check_wal_level(wal_level: &str, hosts: &[Host]) -> Result<(), Error> {
    if wal_level == "logical" {
        return Ok(());
    }
    let what = format!("wal_level is {wal_level}, and logical replication needs logical");
    Err(Error::refused(ErrorCode::WalLevel, what, set_wal_level(hosts)))
}

/// Services by the ends of their hosts' names, and how to set `wal_level` there (`docs/managed`). No role may run ALTER SYSTEM. Cloud
/// SQL has no names, and Supabase has `logical` already.
const SERVICES: [(&[&str], &str); 3] = [
    (
        &[".rds.amazonaws.com", ".rds.amazonaws.com.cn"],
        "Set rds.logical_replication = 1 in a parameter group of your own, give it to the instance or the cluster, and reboot the \
         instance or the cluster's writer",
    ),
    (
        &[
            ".postgres.database.azure.com",
            ".postgres.database.chinacloudapi.cn",
            ".postgres.database.usgovcloudapi.net",
        ],
        "On Azure set the server parameter wal_level to logical, and restart the server",
    ),
    (
        &[".neon.tech"],
        "Switch on logical replication in the settings of the Neon project: this restarts its computes, and cannot be undone",
    ),
];

/// How to set `wal_level` on the server, which is one of `hosts`.
pub fn set_wal_level(hosts: &[Host]) -> Remedy {
    let name = |host: &Host| match &host.addr {
        HostAddr::Tcp { name, .. } => name.trim_end_matches('.').to_ascii_lowercase(),
        HostAddr::Unix(_) => String::new(),
    };
    let of_service = |(ends, _): &&(&[&str], &str)| {
        ends.iter().any(|end| hosts.iter().map(name).any(|name| name.ends_with(end)))
    };
    if let Some((_, how)) = SERVICES.iter().find(of_service) {
        return Remedy::from(*how);
    }
    Remedy::steps([Step::new("As a superuser set wal_level, and restart Postgres")
        .sql("ALTER SYSTEM SET wal_level = logical")])
    .or(
        "On a managed service",
        [Step::new(
            "On Amazon RDS and Aurora set rds.logical_replication = 1 in the parameter group, on Cloud SQL the flag \
             cloudsql.logical_decoding, on Azure the server parameter wal_level, and restart. On Neon switch on logical \
             replication in the settings of the project",
        )],
    )
}

/// What to do if no replication slot is free.
pub fn free_slot() -> Remedy {
    Remedy::steps([Step::new("Raise max_replication_slots, and restart Postgres")]).or(
        "Without a restart",
        [
            Step::new("Look for a slot that nobody needs any more").sql(
                "SELECT slot_name, slot_type, database, active, pg_size_pretty(pg_current_wal_lsn() - restart_lsn) FROM pg_replication_slots",
            ),
            Step::new("Drop it, with its name in the place of NAME: whoever reads it loses what it has not read yet")
                .sql("SELECT pg_drop_replication_slot('NAME')"),
        ],
    )
}

#[cfg(test)]
mod tests {
    use pg_logical::Environment;

    use super::*;

    #[test]
    fn a_service_that_the_host_names_has_a_remedy_of_its_own() {
        for (host, says) in [
            ("shop.abc.eu-central-1.rds.amazonaws.com", "rds.logical_replication = 1 in a parameter group"),
            (
                "shop.cluster-abc.cn-north-1.rds.amazonaws.com.cn",
                "rds.logical_replication = 1 in a parameter group",
            ),
            ("Shop.postgres.database.azure.com.", "On Azure set the server parameter"),
            ("ep-cool-123.eu-central-1.aws.neon.tech", "cannot be undone"),
        ] {
            let conninfo =
                ConnInfo::parse(&format!("postgres://me@10.0.0.1,{host}/shop"), &Environment::empty());
            let remedy = set_wal_level(&conninfo.unwrap().hosts).to_string();
            assert!(remedy.contains(says) && !remedy.contains("ALTER SYSTEM"), "{host}: {remedy}");
        }
        for url in [
            "postgres://me@db/shop",
            "postgres://me@rds.amazonaws.com.example/shop",
            "host=/run/postgresql user=me",
        ] {
            let conninfo = ConnInfo::parse(url, &Environment::empty()).unwrap();
            let remedy = set_wal_level(&conninfo.hosts).to_string();
            assert!(
                remedy.contains("ALTER SYSTEM") && remedy.contains("On a managed service"),
                "{url}: {remedy}"
            );
        }
    }

    #[test]
    fn the_command_names_server_database_and_role_but_no_secret() {
        let command =
            |url: &str| init_command(&ConnInfo::parse(url, &Environment::empty().with_user("me")).unwrap());
        assert_eq!(
            command("postgres://router:secret@db:5433/shop?sslcert=c&sslkey=k&connect_timeout=3"),
            "outbox-router init --url 'postgres://ADMINISTRATOR@db:5433/shop?sslmode=prefer' --role router"
        );
        assert_eq!(
            command("host=/run/postgresql user='it\\'s' dbname=shop"),
            "outbox-router init --url 'postgres://ADMINISTRATOR@%2Frun%2Fpostgresql:5432/shop?sslmode=prefer' --role 'it'\\''s'"
        );
    }
}
