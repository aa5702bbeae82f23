//! TLS: the server's certificate, the client's certificate, and what happens if one side does not use TLS.

use std::path::{Path, PathBuf};

use pg_logical::Secret;
use pg_logical::connect::Startup;
use pg_logical::conninfo::{ChannelBinding, ConnInfo, Password, RootCert, SslMode};
use pg_logical::session::Session;

use super::{Case, Expect, PLAIN, TLS, try_all};
use crate::support::certificates::{Authority, Identity, self_signed};
use crate::support::postgres::{PrivatePostgres, conninfo};

const PG_HBA: &str = "
host      all scram     127.0.0.1/32 scram-sha-256
host      all hashed    127.0.0.1/32 md5
hostssl   all encrypted 127.0.0.1/32 scram-sha-256
hostnossl all plain     127.0.0.1/32 scram-sha-256
hostssl   all certified 127.0.0.1/32 cert
hostssl   all twofold   127.0.0.1/32 scram-sha-256 clientcert=verify-full
";

const ROLES: [&str; 8] = [
    "CREATE ROLE scram LOGIN PASSWORD 'sesame'",
    "CREATE ROLE encrypted LOGIN PASSWORD 'sesame'",
    "CREATE ROLE plain LOGIN PASSWORD 'sesame'",
    "CREATE ROLE certified LOGIN",
    "CREATE ROLE twofold LOGIN PASSWORD 'sesame'",
    "SET password_encryption = 'md5'",
    "CREATE ROLE hashed LOGIN PASSWORD 'sesame'",
    "RESET password_encryption",
];

/// A server, and the files that a client needs for it.
struct Setup {
    server: PrivatePostgres,
    folder: tempfile::TempDir,
    root: PathBuf,
}

impl Setup {
    fn with(&self, mode: SslMode, user: &str) -> ConnInfo {
        self.to("db.example", mode, user)
    }

    fn to(&self, host: &str, mode: SslMode, user: &str) -> ConnInfo {
        ConnInfo {
            ssl_mode: mode,
            password: Some(Password::Given(Secret::new("sesame"))),
            ..conninfo([self.server.tcp(host)], user)
        }
    }

    fn verified(&self, host: &str, mode: SslMode, root: &Path) -> ConnInfo {
        ConnInfo { ssl_root_cert: Some(RootCert::File(root.to_owned())), ..self.to(host, mode, "scram") }
    }

    fn as_client(&self, user: &str, certificate: (PathBuf, PathBuf)) -> ConnInfo {
        ConnInfo { ssl_client: Some(certificate), ..self.with(SslMode::Require, user) }
    }

    async fn serve(&self, identity: &Identity) {
        self.server.install("server.crt", &identity.certificate);
        self.server.install("server.key", &identity.key);
        self.server.configure(&[("ssl", "on")]).await;
    }

    fn save(&self, name: &str, identity: &Identity) -> (PathBuf, PathBuf) {
        identity.save(self.folder.path(), name)
    }

    fn save_root(&self, name: &str, certificate: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, certificate).unwrap();
        path
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn tls_is_negotiated_and_verified_according_to_sslmode() {
    let authority = Authority::new("the authority");
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    server.execute(&ROLES).await;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.crt");
    std::fs::write(&root, &authority.certificate).unwrap();
    let setup = Setup { server, folder, root };

    setup.server.configure(&[("ssl", "off")]).await;
    server_without_tls(&setup).await;
    setup.server.install("client-ca.crt", &authority.certificate);
    setup.server.configure(&[("ssl_ca_file", "client-ca.crt")]).await;
    setup.serve(&authority.issue("db.example", &["db.example", "127.0.0.1"])).await;
    modes(&setup).await;
    channel_binding(&setup).await;
    client_certificates(&setup, &authority).await;
    other_certificates(&setup, &authority).await;
}

async fn server_without_tls(setup: &Setup) {
    let none = |mode| {
        Expect::Refused(match mode {
            SslMode::Require => &["db.example:", "does not support TLS", "sslmode=require"],
            _ => &["db.example:", "does not support TLS", "sslmode=verify-full"],
        })
    };
    try_all(vec![
        Case { name: "disable", conninfo: setup.with(SslMode::Disable, "scram"), expect: PLAIN },
        Case { name: "allow", conninfo: setup.with(SslMode::Allow, "scram"), expect: PLAIN },
        Case { name: "prefer", conninfo: setup.with(SslMode::Prefer, "scram"), expect: PLAIN },
        Case {
            name: "require of a server without TLS",
            conninfo: setup.with(SslMode::Require, "scram"),
            expect: none(SslMode::Require),
        },
        Case {
            name: "verify-full of a server without TLS",
            conninfo: setup.verified("db.example", SslMode::VerifyFull, &setup.root),
            expect: none(SslMode::VerifyFull),
        },
        Case {
            name: "prefer where only TLS is allowed",
            conninfo: setup.with(SslMode::Prefer, "encrypted"),
            expect: Expect::Refused(&["28000"]),
        },
        Case {
            name: "sslmode is ignored on a unix socket",
            conninfo: ConnInfo {
                ssl_mode: SslMode::VerifyFull,
                ..conninfo([setup.server.unix()], "postgres")
            },
            expect: PLAIN,
        },
    ])
    .await;
}

async fn modes(setup: &Setup) {
    let other = setup.save_root("other.crt", &Authority::new("another authority").certificate);
    let missing = setup.folder.path().join("missing.crt");
    let garbage = setup.save_root("garbage.crt", "no certificate");
    let wrong = ConnInfo {
        password: Some(Password::Given(Secret::new("wrong"))),
        ..setup.with(SslMode::Prefer, "scram")
    };
    let verified = |host, mode| setup.verified(host, mode, &setup.root);
    let unknown = || Expect::Refused(&["signed by", "the authority", "other.crt", "Set sslrootcert"]);
    try_all(vec![
        Case { name: "disable", conninfo: setup.with(SslMode::Disable, "scram"), expect: PLAIN },
        Case { name: "allow", conninfo: setup.with(SslMode::Allow, "scram"), expect: PLAIN },
        Case {
            name: "allow where only TLS is allowed",
            conninfo: setup.with(SslMode::Allow, "encrypted"),
            expect: TLS,
        },
        Case { name: "prefer", conninfo: setup.with(SslMode::Prefer, "scram"), expect: TLS },
        Case {
            name: "prefer where TLS is not allowed",
            conninfo: setup.with(SslMode::Prefer, "plain"),
            expect: PLAIN,
        },
        Case {
            name: "prefer where nothing is allowed reports both attempts",
            conninfo: setup.with(SslMode::Prefer, "stranger"),
            expect: Expect::Refused(&["no encryption", "(before that, with TLS: ", "SSL encryption"]),
        },
        Case {
            name: "prefer does not repeat a wrong password without TLS",
            conninfo: wrong,
            expect: Expect::Refused(&[
                "\"postgres\": password authentication failed",
                "with the configured password. ",
            ]),
        },
        Case {
            name: "prefer does not send the right password again without TLS",
            conninfo: ConnInfo { dbname: "nowhere".into(), ..setup.with(SslMode::Prefer, "scram") },
            expect: Expect::Refused(&["\"nowhere\": database \"nowhere\" does not exist (SQLSTATE 3D000). "]),
        },
        Case { name: "require", conninfo: setup.with(SslMode::Require, "scram"), expect: TLS },
        Case {
            name: "require where TLS is not allowed",
            conninfo: setup.with(SslMode::Require, "plain"),
            expect: Expect::Refused(&["28000", "sslmode"]),
        },
        Case {
            name: "require with a root certificate checks the chain",
            conninfo: setup.verified("db.example", SslMode::Require, &other),
            expect: unknown(),
        },
        Case {
            name: "require does not check the name",
            conninfo: verified("other.example", SslMode::Require),
            expect: TLS,
        },
        Case {
            name: "require with a missing root certificate",
            conninfo: setup.verified("db.example", SslMode::Require, &missing),
            expect: TLS,
        },
        Case {
            name: "prefer falls back from a certificate that fails verification",
            conninfo: setup.verified("db.example", SslMode::Prefer, &other),
            expect: PLAIN,
        },
        Case { name: "verify-ca", conninfo: verified("other.example", SslMode::VerifyCa), expect: TLS },
        Case {
            name: "verify-ca, a host that is not a valid DNS name",
            conninfo: verified("not a name", SslMode::VerifyCa),
            expect: TLS,
        },
        Case {
            name: "verify-ca, another authority",
            conninfo: setup.verified("db.example", SslMode::VerifyCa, &other),
            expect: unknown(),
        },
        Case {
            name: "verify-ca without sslrootcert",
            conninfo: setup.with(SslMode::VerifyCa, "scram"),
            expect: Expect::Refused(&["sslmode=verify-ca", "Set sslrootcert"]),
        },
        Case {
            name: "verify-ca with a missing sslrootcert",
            conninfo: setup.verified("db.example", SslMode::VerifyCa, &missing),
            expect: Expect::Refused(&["missing.crt", "no such file"]),
        },
        Case {
            name: "sslrootcert without a certificate",
            conninfo: setup.verified("db.example", SslMode::VerifyCa, &garbage),
            expect: Expect::Refused(&["garbage.crt", "holds no certificate"]),
        },
        Case { name: "verify-full", conninfo: verified("db.example", SslMode::VerifyFull), expect: TLS },
        Case {
            name: "verify-full by address",
            conninfo: verified("127.0.0.1", SslMode::VerifyFull),
            expect: TLS,
        },
        Case {
            name: "verify-full, wrong host name",
            conninfo: verified("other.example", SslMode::VerifyFull),
            expect: Expect::Refused(&[
                "other.example:",
                "is for \"db.example\", \"127.0.0.1\", not for \"other.example\"",
                "subject alternative names",
            ]),
        },
        Case {
            name: "sslrootcert=system trusts no private authority",
            conninfo: ConnInfo {
                ssl_root_cert: Some(RootCert::System),
                ..setup.with(SslMode::Require, "scram")
            },
            expect: Expect::Refused(&["sslrootcert"]),
        },
    ])
    .await;
}

async fn channel_binding(setup: &Setup) {
    let bound =
        |user| ConnInfo { channel_binding: ChannelBinding::Require, ..setup.with(SslMode::Require, user) };
    let unbound =
        ConnInfo { channel_binding: ChannelBinding::Disable, ..setup.with(SslMode::Require, "scram") };
    try_all(vec![
        Case { name: "channel binding required", conninfo: bound("scram"), expect: TLS },
        Case { name: "channel binding disabled", conninfo: unbound, expect: TLS },
        Case {
            name: "channel binding required of md5",
            conninfo: bound("hashed"),
            expect: Expect::Refused(&["channel_binding=require", "SCRAM-SHA-256-PLUS"]),
        },
    ])
    .await;
    let mut session = Session::connect(&bound("scram"), &Startup::default()).await.unwrap();
    let ssl = session.query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").await.unwrap();
    assert_eq!(ssl.as_deref(), Some("t"));
}

async fn client_certificates(setup: &Setup, authority: &Authority) {
    let good = setup.save("certified", &authority.issue("certified", &[]));
    let both = setup.save("twofold", &authority.issue("twofold", &[]));
    let foreign = setup.save("foreign", &Authority::new("a foreign authority").issue("certified", &[]));
    let exposed = setup.save("exposed", &authority.issue("certified", &[]));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&exposed.1, mode).unwrap();
    let mixed = (good.0.clone(), both.1.clone());
    let missing = (setup.folder.path().join("missing.crt"), good.1.clone());
    let keyless = (good.0.clone(), good.0.clone());
    try_all(vec![
        Case { name: "cert", conninfo: setup.as_client("certified", good.clone()), expect: TLS },
        Case {
            name: "clientcert=verify-full and a password",
            conninfo: setup.as_client("twofold", both.clone()),
            expect: TLS,
        },
        Case {
            name: "a certificate for another role",
            conninfo: setup.as_client("certified", both),
            expect: Expect::Refused(&[
                "certificate authentication failed",
                "CN must be the role unless pg_ident.conf maps it",
            ]),
        },
        Case {
            name: "no certificate",
            conninfo: setup.with(SslMode::Require, "certified"),
            expect: Expect::Refused(&["requires a valid client certificate"]),
        },
        Case {
            name: "a certificate of a foreign authority",
            conninfo: setup.as_client("certified", foreign),
            expect: Expect::Refused(&["does not accept the client's certificate", "ssl_ca_file"]),
        },
        Case {
            name: "a key that others can read",
            conninfo: setup.as_client("certified", exposed),
            expect: Expect::Refused(&["exposed.key has group or world access", "0600"]),
        },
        Case {
            name: "a key of another certificate",
            conninfo: setup.as_client("certified", mixed),
            expect: Expect::Refused(&["certified.crt and sslkey", "twofold.key"]),
        },
        Case {
            name: "no such certificate file",
            conninfo: setup.as_client("certified", missing),
            expect: Expect::Refused(&["missing.crt", "no such file"]),
        },
        Case {
            name: "a key file without a key",
            conninfo: setup.as_client("certified", keyless),
            expect: Expect::Refused(&["sslkey", "world access"]),
        },
    ])
    .await;
}

async fn other_certificates(setup: &Setup, authority: &Authority) {
    let root = setup.root.clone();
    let full = |host, root: &Path| setup.verified(host, SslMode::VerifyFull, root);

    setup.serve(&authority.issue_expired("db.example", &["db.example"])).await;
    try_all(vec![
        Case {
            name: "expired",
            conninfo: full("db.example", &root),
            expect: Expect::Refused(&["expired on 2002-01-01", "Renew"]),
        },
        Case { name: "expired, unverified", conninfo: setup.with(SslMode::Require, "scram"), expect: TLS },
    ])
    .await;

    setup.serve(&authority.issue("*.example", &[])).await;
    try_all(vec![
        Case { name: "common name alone", conninfo: full("db.example", &root), expect: TLS },
        Case {
            name: "common name alone, wrong host",
            conninfo: full("db.elsewhere", &root),
            expect: Expect::Refused(&["is for \"*.example\", not for \"db.elsewhere\""]),
        },
    ])
    .await;

    setup.serve(&authority.issue_version_1("db.example")).await;
    let other = setup.save_root("other.crt", &Authority::new("the authority").certificate);
    let version_1 = |tls| {
        vec![
            Case { name: tls, conninfo: full("db.example", &root), expect: TLS },
            Case { name: tls, conninfo: setup.with(SslMode::Require, "scram"), expect: TLS },
            Case {
                name: tls,
                conninfo: full("db.elsewhere", &root),
                expect: Expect::Refused(&["is for \"db.example\", not for \"db.elsewhere\""]),
            },
            Case {
                name: tls,
                conninfo: full("db.example", &other),
                expect: Expect::Refused(&["signed by \"CN=the authority\"", "Set sslrootcert"]),
            },
        ]
    };
    try_all(version_1("X.509 version 1")).await;
    setup.server.configure(&[("ssl_max_protocol_version", "TLSv1.2")]).await;
    try_all(version_1("X.509 version 1 in TLS 1.2")).await;

    let own = self_signed("db.example", &[]);
    let own_root = setup.save_root("own.crt", &own.certificate);
    setup.serve(&own).await;
    try_all(vec![
        Case { name: "self-signed and trusted", conninfo: full("db.example", &own_root), expect: TLS },
        Case {
            name: "self-signed and unknown",
            conninfo: full("db.example", &root),
            expect: Expect::Refused(&["is self-signed", "root.crt", "Set sslrootcert"]),
        },
        Case {
            name: "self-signed, channel bound",
            conninfo: ConnInfo {
                channel_binding: ChannelBinding::Require,
                ..setup.with(SslMode::Require, "scram")
            },
            expect: TLS,
        },
    ])
    .await;

    let old = [("ssl_min_protocol_version", "TLSv1"), ("ssl_max_protocol_version", "TLSv1.1")];
    setup.server.configure(&old).await;
    try_all(vec![Case {
        name: "TLS 1.1",
        conninfo: setup.with(SslMode::Require, "scram"),
        expect: Expect::Refused(&["no TLS version or cipher in common", "TLS 1.2"]),
    }])
    .await;
}
