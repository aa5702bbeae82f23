//! What an administrator does where the router's role may not.

use pg_logical::conninfo::ConnInfo;

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
    Remedy::steps([Step::new(format!("{why}, as an administrator, whose name stands for ADMINISTRATOR"))
        .typing(init_command(router))])
}

/// Refuses a server whose `wal_level` is not logical.
pub fn check_wal_level(wal_level: &str) -> Result<(), Error> {
    if wal_level == "logical" {
        return Ok(());
    }
    let what = format!("wal_level is {wal_level}, and logical replication needs logical");
    Err(Error::refused(ErrorCode::WalLevel, what, set_wal_level()))
}

/// How to set `wal_level`.
pub fn set_wal_level() -> Remedy {
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
