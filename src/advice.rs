//! Turns errors of [`pg_logical`] into errors of the router. The remedies name the router's settings and commands.

use std::borrow::Cow;

use pg_logical::QueryError;
use pg_logical::conninfo::ConnInfo;
use pg_logical::quoting;
use pg_logical::replication::NotStarted;
use pg_logical::server_error::{ErrorKind, ServerError};
use pg_logical::{Environment, InvalidConnInfo, Remedy};
use tokio_postgres::error::SqlState;

use crate::error::{self, Error, ErrorCode, Peer, Step, Transient, shell_word};

const SERVER_LOG: &str = "The server's log says more";

/// What to do about another session that holds a lock.
pub const LOCK_REMEDY: &str = "Wait until that transaction has ended, or roll it back: SELECT pg_terminate_backend(NUMBER) with the number of the server process, \
     or, if it is prepared, ROLLBACK PREPARED 'NAME' in its database";

impl From<pg_logical::Error> for Error {
    fn from(error: pg_logical::Error) -> Self {
        match error {
            pg_logical::Error::Transient(pg_logical::Transient { what, unavailable, server }) => match server
            {
                Some(server) if server.code == SqlState::TOO_MANY_CONNECTIONS => too_many_connections(what),
                Some(server) => Transient::of_postgres(with_lock_remedy(what, &server), unavailable).into(),
                None => Transient::of_postgres(what, unavailable).into(),
            },
            pg_logical::Error::Definite(pg_logical::Definite { mut what, remedy, server }) => {
                if remedy == Remedy::TlsVersion {
                    // the client is the router
                    what =
                        what.replacen("the server and the client have", "the server and the router have", 1);
                }
                let (advice, code) = (steps(&remedy, server.as_deref()), code(&remedy, server.as_deref()));
                match remedy {
                    Remedy::NameHost => Error::usage(code, what, advice),
                    Remedy::StreamEnded => Error::not_safe(code, what, advice),
                    _ => Error::refused(code, what, advice),
                }
            }
        }
    }
}

impl From<QueryError> for Error {
    fn from(error: QueryError) -> Self {
        pg_logical::Error::from(error).into()
    }
}

/// It passes once sessions end, or once somebody raises the limit.
fn too_many_connections(what: String) -> Error {
    let remedy = "End sessions that nobody needs, or raise max_connections, max_wal_senders or the role's CONNECTION LIMIT, whichever the \
                  server names";
    Error::refused_for_now(ErrorCode::PostgresAccess, what, remedy)
}

/// The text of an error of [`pg_logical`], with the router's remedy.
pub fn in_words(error: &pg_logical::Error) -> String {
    Error::from(error.clone()).to_string()
}

/// Converts an error of a query, with a remedy from the caller.
pub trait OrRemedy {
    /// `remedy` is used only if the server's error is definite.
    fn or_remedy(self, remedy: impl Into<error::Remedy>) -> Error;
}

impl OrRemedy for QueryError {
    fn or_remedy(self, remedy: impl Into<error::Remedy>) -> Error {
        match self {
            QueryError::Server { place, error } => refusal(&error, &format!("Postgres at {place}"), remedy),
            QueryError::Connection(error) => error.into(),
        }
    }
}

/// Converts a server's error. `at` names the server, as "Postgres at db:5432"; `remedy` is used only if the error is definite.
pub fn refusal(error: &ServerError, at: &str, remedy: impl Into<error::Remedy>) -> Error {
    let what = format!("{at}: {error}");
    match error.kind() {
        ErrorKind::Transient => Error::transient(Peer::Postgres, with_lock_remedy(what, error)),
        ErrorKind::Definite if error.is_row_security() => {
            Error::refused(ErrorCode::PostgresRefused, what, ROW_SECURITY)
        }
        ErrorKind::Definite => Error::refused(ErrorCode::PostgresRefused, what, remedy),
    }
}

/// What to do about a policy that hides rows.
const ROW_SECURITY: &str = "As a superuser, let this role see all rows (`ALTER ROLE ... BYPASSRLS`), or run ALTER TABLE ... DISABLE ROW LEVEL SECURITY";

/// Why `slot` cannot be streamed.
pub fn not_started(error: NotStarted, slot: &str) -> Error {
    match error {
        NotStarted::Failed(error) => error.into(),
        // another client started the slot after it was checked
        NotStarted::Server(error) if error.code == SqlState::OBJECT_IN_USE => {
            Error::transient(Peer::Postgres, format!("another client reads the slot {slot}: {error}"))
        }
        // the slot itself is unusable: invalidated, or not a logical one
        NotStarted::Server(error) if matches!(error.code.code(), "55000" | "42704") => Error::not_safe(
            ErrorCode::SlotNotStarted,
            format!("Postgres does not start the slot {slot}: {error}"),
            "Run `outbox-router check`, which shows the state of the slot",
        ),
        NotStarted::Server(error) => refusal(
            &error,
            "START_REPLICATION",
            "Run `outbox-router check`, which checks privileges, slot and publication",
        ),
    }
}

/// Reads a connection string.
///
/// # Errors
/// It cannot be used: exit code 2.
pub fn connection_string(text: &str, env: &Environment) -> Result<ConnInfo, Error> {
    ConnInfo::parse(text, env).map_err(|error| {
        let remedy = connection_string_remedy(&error);
        Error::usage(ErrorCode::ConnectionString, format!("The connection string: {}", error.what), remedy)
    })
}

/// What to do about a connection string that cannot be used.
pub fn connection_string_remedy(error: &InvalidConnInfo) -> String {
    match error.unsupported {
        Some("replication") => "Remove it: the router opens replication connections by itself".to_owned(),
        Some("sslpassword") => {
            "Use a client key without a passphrase, readable by the router's user alone".to_owned()
        }
        _ => error.remedy.clone(),
    }
}

/// Adds a remedy if the error names the session that holds the lock.
fn with_lock_remedy(what: String, error: &ServerError) -> String {
    if error.code == SqlState::LOCK_NOT_AVAILABLE && error.detail.is_some() {
        return format!("{what}. {LOCK_REMEDY}");
    }
    what
}

/// The steps: mostly one sentence.
fn steps(remedy: &Remedy, server: Option<&ServerError>) -> error::Remedy {
    let advice = advice(remedy, server);
    let Remedy::GrantConnect { user, dbname, replication } = remedy else { return advice.into() };
    let (user, dbname) = (quoting::identifier(user), quoting::identifier(dbname));
    let connect = format!("GRANT CONNECT ON DATABASE {dbname} TO {user}");
    if !replication {
        return error::Remedy::steps([Step::new(advice).sql(connect)]);
    }
    let with = |grant: String| Step::new(advice.clone()).sql(grant).sql(connect.clone());
    error::Remedy::steps([with(format!("ALTER ROLE {user} LOGIN REPLICATION"))]).or(
        "On Amazon RDS and Aurora, whose superuser may not do that",
        [with(format!("GRANT rds_replication TO {user}"))],
    )
}

fn code(remedy: &Remedy, server: Option<&ServerError>) -> ErrorCode {
    match remedy {
        Remedy::NameHost | Remedy::NumericAddress | Remedy::RemoveZeroByte | Remedy::CorrectOptions => {
            ErrorCode::ConnectionString
        }
        Remedy::SetPassword
        | Remedy::PasswordFile
        | Remedy::PasswordCommand
        | Remedy::PasswordMethod { .. }
        | Remedy::Scram
        | Remedy::ScramOverTls
        | Remedy::CorrectPassword { .. }
        | Remedy::AllowLogin { .. } => ErrorCode::PostgresLogin,
        Remedy::ChannelBinding
        | Remedy::BypassTlsTermination
        | Remedy::ServerTls
        | Remedy::SystemRoots
        | Remedy::SetRootCertificate
        | Remedy::RootCertificates
        | Remedy::MatchKey
        | Remedy::PemFile { .. }
        | Remedy::ProtectKey
        | Remedy::ClientCertificate
        | Remedy::TlsVersion
        | Remedy::CertificateName { .. }
        | Remedy::TrustSelfSigned
        | Remedy::TrustAuthority
        | Remedy::RenewCertificate
        | Remedy::SetClock
        | Remedy::ServerCertificate => ErrorCode::PostgresTls,
        Remedy::CorrectDatabase { .. } | Remedy::GrantConnect { .. } => ErrorCode::PostgresAccess,
        Remedy::FollowServerHint => ErrorCode::PostgresRefused,
        Remedy::SocketPermission
        | Remedy::CheckServer
        | Remedy::CheckServerAndProxies
        | Remedy::AvoidPooler
        | Remedy::CheckServerIdentity => ErrorCode::PostgresUnusable,
        Remedy::ReportBug => ErrorCode::Bug,
        // before 18 the log from before the publication was created cannot be decoded
        Remedy::StreamEnded if server.is_some_and(|error| error.code == SqlState::UNDEFINED_OBJECT) => {
            ErrorCode::StreamUnreadable
        }
        Remedy::StreamEnded => ErrorCode::SlotNotStarted,
    }
}

fn advice(remedy: &Remedy, server: Option<&ServerError>) -> Cow<'static, str> {
    match remedy {
        Remedy::NameHost => "Set postgres.url".into(),
        Remedy::NumericAddress => "Put names into host and numeric addresses into hostaddr".into(),
        Remedy::SocketPermission => {
            "Let the router's user enter the socket's directory and write to the socket".into()
        }
        Remedy::CheckServer => "Check host and port: is that a Postgres server?".into(),
        Remedy::CheckServerAndProxies => {
            "Check host and port: is that a Postgres server, without a proxy in between?".into()
        }
        Remedy::AvoidPooler => {
            "Connect to Postgres directly: a pooler such as PgBouncer does not support replication".into()
        }
        Remedy::RemoveZeroByte => {
            "Remove the zero byte from user, database, password, application_name or options".into()
        }
        Remedy::CorrectOptions => "Correct options in the connection string, or use a Postgres from 14 on".into(),
        Remedy::SetPassword => {
            "Give one in postgres.url, postgres.password_file, postgres.password_command, PGPASSWORD or the passfile (~/.pgpass)".into()
        }
        Remedy::PasswordFile => "Make postgres.password_file a file that the router can read".into(),
        Remedy::PasswordCommand => {
            "Make postgres.password_command a program that the router can run, with its arguments, and that prints the password \
             and nothing else"
                .into()
        }
        Remedy::Scram => "Let pg_hba.conf use scram-sha-256 for this user".into(),
        Remedy::ScramOverTls => {
            "Let pg_hba.conf use scram-sha-256 for this user over TLS and set its password anew under password_encryption = 'scram-sha-256', or relax channel_binding".into()
        }
        Remedy::ChannelBinding => "Connect by TLS to a server that offers it, or relax channel_binding".into(),
        Remedy::BypassTlsTermination => {
            "A proxy in between seems to terminate TLS with its own certificate: connect to Postgres directly or, if the proxy is intended, set channel_binding=disable".into()
        }
        Remedy::CheckServerIdentity => {
            "Make sure that this is the right server and that nothing rewrites the connection".into()
        }
        Remedy::ServerTls => "Set ssl = on with a certificate on the server, or relax sslmode".into(),
        Remedy::SystemRoots => "Install the package ca-certificates, or set sslrootcert to a file".into(),
        Remedy::SetRootCertificate => {
            "Set sslrootcert to the file with the certificate of the authority that signed the server's, or to system".into()
        }
        Remedy::RootCertificates => "Put PEM certificates of certificate authorities into it".into(),
        Remedy::ReportBug => "Report this as a bug".into(),
        Remedy::MatchKey => "Make sslkey the private key of the first certificate in sslcert".into(),
        Remedy::ProtectKey => "Give it mode 0600, or 0640 and root as its owner".into(),
        Remedy::ClientCertificate => {
            "Set sslcert and sslkey to a certificate that an authority in the server's ssl_ca_file signed".into()
        }
        Remedy::TlsVersion => "Allow TLS 1.2 or later on the server (ssl_max_protocol_version, ssl_ciphers)".into(),
        Remedy::TrustSelfSigned => {
            "Set sslrootcert to a file with this certificate, if it is known to be the server's".into()
        }
        Remedy::TrustAuthority => "Set sslrootcert to the file with that authority's certificate".into(),
        Remedy::RenewCertificate => "Renew the certificate on the server, or set this machine's clock right".into(),
        Remedy::SetClock => "Set this machine's clock right, or replace the certificate on the server".into(),
        Remedy::ServerCertificate => {
            "Give the server a certificate for servers, with its names as subject alternative names".into()
        }
        Remedy::FollowServerHint => server.map_or(SERVER_LOG.into(), general_remedy),
        Remedy::CorrectPassword { user } => format!(
                "Correct the password (postgres.url or --url, postgres.password_file, postgres.password_command, PGPASSWORD or the passfile), or on the server: ALTER ROLE {} PASSWORD '...'. If there is no such role yet, `outbox-router init --role {}` with an administrator's --url makes it",
                quoting::identifier(user),
                shell_word(user)
        )
        .into(),
        Remedy::AllowLogin { user, dbname } => format!(
                "Make sure that role \"{user}\" exists (`outbox-router init --role {}` with an administrator's --url makes it) and may log in, that pg_hba.conf (then SELECT pg_reload_conf()) has a line for it, for database \"{dbname}\", for this client's address and for this sslmode, and that sslcert is set if the line asks for a certificate, whose CN must be the role unless pg_ident.conf maps it",
                shell_word(user)
        )
        .into(),
        Remedy::CorrectDatabase { dbname } => format!("Create database \"{dbname}\", or correct the database's name in the connection string (postgres.url, or --url of this command)").into(),
        Remedy::GrantConnect { user, replication: true, .. } => {
            format!("As an administrator let \"{user}\" replicate").into()
        }
        Remedy::GrantConnect { user, .. } => format!("As a superuser let \"{user}\" connect").into(),
        Remedy::PasswordMethod { user } => format!(
                "Let pg_hba.conf use scram-sha-256, md5 or cert for user \"{user}\" (Kerberos, GSSAPI and SSPI are not supported)"
        )
        .into(),
        Remedy::PemFile { parameter } => format!("Make {parameter} a PEM file that the router can read").into(),
        Remedy::CertificateName { host } => format!(
                "Connect by a name that the certificate has, or give the server a certificate with \"{host}\" among its subject alternative names"
        )
        .into(),
        // a router knows more: which rows are behind it, and how they are sent
        Remedy::StreamEnded => {
            "The stream cannot be read past this position, and nothing was skipped. Run `outbox-router check`, which shows the state of the slot; \
             the server's log says more"
                .into()
        }
    }
}

/// The remedy from the server's hint or the SQLSTATE.
fn general_remedy(error: &ServerError) -> Cow<'static, str> {
    if let Some(hint) = &error.hint {
        return hint.trim_end_matches('.').to_owned().into();
    }
    let by_code = match error.code.code() {
        "42501" => {
            "Grant the router's role this privilege: `outbox-router init --print-sql` prints all that it needs"
        }
        "42P01" | "3F000" => "Create it with outbox-router init, or correct the name in the configuration",
        "42704" | "42703" => {
            "Correct the name in the configuration, or create what is missing with outbox-router init"
        }
        _ => SERVER_LOG,
    };
    by_code.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Definite, Exit};

    fn definite(what: &str, remedy: Remedy) -> Definite {
        match Error::from(pg_logical::Error::definite(what, remedy)) {
            Error::Definite(error) => error,
            Error::Transient(error) => panic!("{error}"),
        }
    }

    fn server_error(code: &str) -> ServerError {
        ServerError {
            severity: "ERROR".to_owned(),
            code: SqlState::from_code(code),
            message: "no".to_owned(),
            detail: None,
            hint: None,
            routine: None,
        }
    }

    fn refused(error: ServerError) -> QueryError {
        QueryError::Server { place: "db:5432".to_owned(), error: Box::new(error) }
    }

    #[test]
    fn a_refusal_exits_with_1_unless_it_is_usage_or_unsafe() {
        for (remedy, exit, words) in [
            (Remedy::SetPassword, Exit::Refused, "postgres.password_file"),
            (Remedy::NameHost, Exit::Usage, "Set postgres.url"),
            (Remedy::StreamEnded, Exit::Unsafe, "nothing was skipped"),
        ] {
            let error = definite("x", remedy);
            assert!(error.exit == exit && error.remedy.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn too_many_connections_are_waited_out_and_have_a_remedy() {
        let full = pg_logical::Transient {
            what: "Postgres at db:5432: full (SQLSTATE 53300)".to_owned(),
            unavailable: false,
            server: Some(Box::new(server_error("53300"))),
        };
        let Error::Transient(error) = Error::from(pg_logical::Error::Transient(full)) else { panic!() };
        assert_eq!(error.code(), ErrorCode::PostgresAccess);
        assert!(
            error.what.starts_with("Postgres at db:5432: full (SQLSTATE 53300). End sessions"),
            "{error}"
        );
    }

    #[test]
    fn the_client_is_the_router_here() {
        let what = "the server and the client have no TLS version or cipher in common: x";
        let error = definite(what, Remedy::TlsVersion);
        assert_eq!(error.what, "the server and the router have no TLS version or cipher in common: x");
    }

    #[test]
    fn a_connection_string_has_a_remedy_in_the_routers_words() {
        let env = Environment::empty().with_user("me");
        let advised = |text: &str| connection_string(text, &env).unwrap_err().to_string();
        insta::assert_snapshot!(
            [advised("host=h replication=database"), advised("host=h sslpassword=x"), advised("shop")]
                .join("\n")
        );
    }

    #[test]
    fn a_lock_whose_holder_is_known_has_a_remedy() {
        let mut locked = server_error("55P03");
        assert!(!Error::from(refused(locked.clone())).to_string().contains(LOCK_REMEDY));
        locked.detail = Some("waiting for a lock, blocked by server process 7".to_owned());
        for error in [Error::from(refused(locked.clone())), refused(locked).or_remedy("act")] {
            assert!(
                matches!(&error, Error::Transient(error) if error.what.ends_with(LOCK_REMEDY)),
                "{error}"
            );
        }
    }

    #[test]
    fn a_refusal_has_the_callers_remedy_or_that_of_its_sqlstate() {
        let error = refused(server_error("42P01"));
        assert_eq!(
            error.clone().or_remedy("act").to_string(),
            "OBR-1005: Postgres at db:5432: no (SQLSTATE 42P01). Events: delayed, not lost: they wait in the log until the router \
             runs. act"
        );
        let general = Error::from(error).to_string();
        assert!(general.contains("Create it with outbox-router init"), "{general}");
    }
}
