//! All password methods, without TLS.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use pg_logical::Secret;
use pg_logical::conninfo::{ChannelBinding, ConnInfo, Host, Password};

use super::{Case, Expect, PLAIN, try_all};
use crate::support::postgres::{PrivatePostgres, conninfo};

const PG_HBA: &str = "
local all scram     scram-sha-256
host  all scram     127.0.0.1/32 scram-sha-256
host  all hashed    127.0.0.1/32 md5
host  all cleartext 127.0.0.1/32 password
host  all trusted   127.0.0.1/32 trust
";

const ROLES: [&str; 7] = [
    "CREATE ROLE scram LOGIN PASSWORD 'sesame'",
    "CREATE ROLE cleartext LOGIN PASSWORD 'sesame'",
    "CREATE ROLE trusted LOGIN",
    "CREATE ROLE nobody LOGIN",
    "SET password_encryption = 'md5'",
    "CREATE ROLE hashed LOGIN PASSWORD 'sesame'",
    "RESET password_encryption",
];

fn with_password(host: Host, user: &str, password: &str) -> ConnInfo {
    ConnInfo { password: Some(Password::Given(Secret::new(password))), ..conninfo([host], user) }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn correct_passwords_are_accepted_and_wrong_ones_refused() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    server.execute(&ROLES).await;
    let tcp = || server.tcp("localhost");
    let folder = tempfile::tempdir().unwrap();

    let passfile = folder.path().join("pgpass");
    fs::write(&passfile, format!("localhost:{}:postgres:scram:sesame\n", server.port())).unwrap();
    fs::set_permissions(&passfile, fs::Permissions::from_mode(0o600)).unwrap();
    let open_passfile = folder.path().join("open");
    fs::copy(&passfile, &open_passfile).unwrap();
    fs::set_permissions(&open_passfile, fs::Permissions::from_mode(0o644)).unwrap();
    let from_passfile = |path| ConnInfo { passfile: Some(path), ..conninfo([tcp()], "scram") };

    let missing = ConnInfo {
        password: Some(Password::File(folder.path().join("missing"))),
        ..conninfo([tcp()], "scram")
    };
    let no_database = ConnInfo { dbname: "nowhere".into(), ..conninfo([tcp()], "trusted") };
    let bound = |conninfo| ConnInfo { channel_binding: ChannelBinding::Require, ..conninfo };

    try_all(vec![
        Case { name: "trust", conninfo: conninfo([tcp()], "trusted"), expect: PLAIN },
        Case { name: "SCRAM", conninfo: with_password(tcp(), "scram", "sesame"), expect: PLAIN },
        Case {
            name: "SCRAM on a unix socket",
            conninfo: with_password(server.unix(), "scram", "sesame"),
            expect: PLAIN,
        },
        Case { name: "md5", conninfo: with_password(tcp(), "hashed", "sesame"), expect: PLAIN },
        Case { name: "cleartext", conninfo: with_password(tcp(), "cleartext", "sesame"), expect: PLAIN },
        Case { name: "passfile", conninfo: from_passfile(passfile), expect: PLAIN },
        Case {
            name: "passfile that everybody can read",
            conninfo: from_passfile(open_passfile),
            expect: Expect::Refused(&["asks for a password", "group or world access"]),
        },
        Case {
            name: "wrong SCRAM password",
            conninfo: with_password(tcp(), "scram", "wrong-one"),
            expect: Expect::Refused(&[
                "user \"scram\"",
                "database \"postgres\"",
                "localhost:",
                "password authentication failed for user \"scram\" (SQLSTATE 28P01)",
                "with the configured password",
                "ALTER ROLE",
            ]),
        },
        Case {
            name: "wrong md5 password",
            conninfo: with_password(tcp(), "hashed", "wrong-one"),
            expect: Expect::Refused(&["28P01"]),
        },
        Case {
            name: "wrong cleartext password",
            conninfo: with_password(tcp(), "cleartext", "wrong-one"),
            expect: Expect::Refused(&["28P01"]),
        },
        Case {
            name: "no password",
            conninfo: conninfo([tcp()], "scram"),
            expect: Expect::Refused(&["asks for a password and none is configured", "PGPASSWORD"]),
        },
        Case {
            name: "missing password file",
            conninfo: missing,
            expect: Expect::Refused(&["cannot read the password file", "missing"]),
        },
        Case {
            name: "no line in pg_hba.conf",
            conninfo: conninfo([tcp()], "nobody"),
            expect: Expect::Refused(&["28000", "pg_hba.conf", "\"nobody\""]),
        },
        Case {
            name: "no such role",
            conninfo: conninfo([tcp()], "stranger"),
            expect: Expect::Refused(&["28000", "\"stranger\""]),
        },
        Case {
            name: "no such database",
            conninfo: no_database,
            expect: Expect::Refused(&["3D000", "Create database \"nowhere\""]),
        },
        Case {
            name: "channel binding required without TLS",
            conninfo: bound(with_password(tcp(), "scram", "sesame")),
            expect: Expect::Refused(&["channel_binding=require", "not encrypted"]),
        },
        Case {
            name: "channel binding required of trust",
            conninfo: bound(conninfo([tcp()], "trusted")),
            expect: Expect::Refused(&["channel_binding=require", "SCRAM-SHA-256-PLUS"]),
        },
        Case {
            name: "channel binding required of md5",
            conninfo: bound(with_password(tcp(), "hashed", "sesame")),
            expect: Expect::Refused(&["channel_binding=require"]),
        },
        Case {
            name: "a wrong password is not tried on the next host",
            conninfo: ConnInfo {
                hosts: vec![tcp(), server.unix()],
                ..with_password(tcp(), "scram", "wrong-one")
            },
            expect: Expect::Refused(&["cannot connect to Postgres at localhost:", "28P01"]),
        },
    ])
    .await;

    let password_file = folder.path().join("password");
    let rotating =
        || ConnInfo { password: Some(Password::File(password_file.clone())), ..conninfo([tcp()], "scram") };
    fs::write(&password_file, "sesame\n").unwrap();
    try_all(vec![Case { name: "password file", conninfo: rotating(), expect: PLAIN }]).await;
    server.execute(&["ALTER ROLE scram PASSWORD 'rotated'"]).await;
    try_all(vec![Case { name: "old password", conninfo: rotating(), expect: Expect::Refused(&["28P01"]) }])
        .await;
    fs::write(&password_file, "rotated\r\n").unwrap();
    try_all(vec![Case { name: "rotated password", conninfo: rotating(), expect: PLAIN }]).await;

    let url_file = folder.path().join("url");
    let of_file = || with_password(tcp(), "scram", "sesame").of_file(url_file.clone());
    for (user, password) in [("scram", "rotated"), ("hashed", "sesame")] {
        fs::write(&url_file, format!("postgres://{user}:{password}@elsewhere/other\n")).unwrap();
        try_all(vec![Case { name: "rotated connection string", conninfo: of_file(), expect: PLAIN }]).await;
    }
}
