//! Errors from a Postgres server, and whether a client should try again.

use std::fmt;
use std::io;

use postgres_protocol::message::backend::ErrorFields;
use tokio_postgres::error::SqlState;
use tokio_postgres::fallible_iterator::FallibleIterator;

/// An `ErrorResponse` (Postgres manual, "Error and Notice Message Fields").
#[derive(Clone, PartialEq, Eq)]
pub struct ServerError {
    /// `ERROR`, `FATAL` or `PANIC`, never translated.
    pub severity: String,
    /// SQLSTATE (Postgres manual, "PostgreSQL Error Codes").
    pub code: SqlState,
    /// The primary message, in the server's language.
    pub message: String,
    /// The server's details.
    pub detail: Option<String>,
    /// The server's suggestion.
    pub hint: Option<String>,
    /// The function of the server's source that reports it.
    pub routine: Option<String>,
}

/// Whether an error may pass by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Another try may succeed.
    Transient,
    /// It stays until somebody acts.
    Definite,
}

/// `idle_in_transaction_session_timeout` and `transaction_timeout`, which behind a pooler apply to the router too. The other limits
/// have codes of class 57.
const LIMITS_OF_TRANSACTIONS: [&str; 2] = ["25P03", "25P04"];

/// Whether this code means that the server is shutting down, has crashed or is not up yet.
pub fn is_unavailable(code: &SqlState) -> bool {
    [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW].contains(code)
}

impl ServerError {
    /// Reads the fields of an `ErrorResponse` or a `NoticeResponse`. Fields that cannot be read are left empty, so that the
    /// rest of the server's message is still reported.
    pub(super) fn from_fields(mut fields: ErrorFields<'_>) -> ServerError {
        let mut error = ServerError {
            severity: String::new(),
            code: SqlState::INTERNAL_ERROR,
            message: String::new(),
            detail: None,
            hint: None,
            routine: None,
        };
        while let Ok(Some(field)) = fields.next() {
            let value = String::from_utf8_lossy(field.value_bytes());
            match field.type_() {
                b'S' if error.severity.is_empty() => error.severity = value.into_owned(),
                b'V' => error.severity = value.into_owned(),
                b'C' => error.code = SqlState::from_code(&value),
                b'M' => error.message = value.into_owned(),
                b'D' => error.detail = Some(value.into_owned()),
                b'H' => error.hint = Some(value.into_owned()),
                b'R' => error.routine = Some(value.into_owned()),
                _ => {}
            }
        }
        error
    }

    /// Reads the body of an `ErrorResponse`, after tag and length.
    ///
    /// # Errors
    /// The body is not a list of fields.
    pub fn parse(body: &[u8]) -> io::Result<ServerError> {
        use postgres_protocol::message::backend::Message;
        let mut message = bytes::BytesMut::with_capacity(body.len() + 5);
        message.extend_from_slice(b"E");
        let length = u32::try_from(body.len() + 4).map_err(io::Error::other)?;
        message.extend_from_slice(&length.to_be_bytes());
        message.extend_from_slice(body);
        match Message::parse(&mut message)? {
            Some(Message::ErrorResponse(body)) => Ok(Self::from_fields(body.fields())),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Whether the same request may succeed later. Restarts, too many connections, locks and failovers are transient; a wrong
    /// password is not.
    pub fn kind(&self) -> ErrorKind {
        let code = self.code.code();
        // PgBouncer refuses a startup parameter with a code that is otherwise transient
        if self.is_pooler_refusal() {
            return ErrorKind::Definite;
        }
        let class = code.get(..2).unwrap_or_default();
        let transient = matches!(class, "08" | "40" | "53" | "57" | "XX")
            // an I/O error on the server, an object in use by another session, a standby that may be promoted
            || [SqlState::SYSTEM_ERROR, SqlState::IO_ERROR].contains(&self.code)
            || [SqlState::OBJECT_IN_USE, SqlState::LOCK_NOT_AVAILABLE].contains(&self.code)
            || self.code == SqlState::READ_ONLY_SQL_TRANSACTION
            || LIMITS_OF_TRANSACTIONS.contains(&code);
        if transient { ErrorKind::Transient } else { ErrorKind::Definite }
    }

    /// Whether a policy of row-level security would hide rows from a session with `row_security = off`. The message is translated.
    pub fn is_row_security(&self) -> bool {
        self.code == SqlState::INSUFFICIENT_PRIVILEGE && self.routine.as_deref() == Some("check_enable_rls")
    }

    /// Whether it comes from a pooler that does not support replication sessions.
    pub(super) fn is_pooler_refusal(&self) -> bool {
        self.code == SqlState::PROTOCOL_VIOLATION && self.message.contains("startup parameter")
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.trim_end_matches('.'))?;
        // details of data exceptions and constraint violations quote rows, which may include a payload
        let quotes_rows = matches!(self.code.code().get(..2), Some("22" | "23"));
        if let Some(detail) = self.detail.as_deref().filter(|_| !quotes_rows) {
            write!(f, ": {}", detail.trim_end_matches('.'))?;
        }
        write!(f, " (SQLSTATE {})", self.code.code())
    }
}

/// The same as `Display`, so that neither quotes rows.
impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerError({self})")
    }
}

impl std::error::Error for ServerError {}

/// The last words of an error if the server has closed the connection without an error of its own.
pub const CLOSED: &str = "the server closed the connection";

/// The last words of an error if the server has ended a stream without an error of its own.
pub const STOPPED: &str = "the server ended the stream, as it does when it is stopped";

/// The cause of an I/O error in words, without the operating system's error number.
pub(crate) fn io_reason(error: &io::Error) -> String {
    /// `EMFILE`
    const TOO_MANY_OPEN_FILES: i32 = 24;
    match error.kind() {
        _ if error.raw_os_error() == Some(TOO_MANY_OPEN_FILES) => {
            "too many open files: raise the limit of this process (ulimit -n)".to_owned()
        }
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => CLOSED.to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset by the server".to_owned(),
        io::ErrorKind::TimedOut => "the connection timed out".to_owned(),
        _ => {
            let text = error.to_string();
            match text.split_once(" (os error ") {
                Some((reason, _)) => reason.to_lowercase(),
                None => text,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: &str, message: &str) -> ServerError {
        ServerError {
            severity: "FATAL".into(),
            code: SqlState::from_code(code),
            message: message.into(),
            detail: None,
            hint: None,
            routine: None,
        }
    }

    #[test]
    fn the_untranslated_severity_takes_precedence() {
        let body = b"SFEHLER\0VERROR\0C55006\0Mreplication slot \"s\" is active for PID 7\0Dmore.\0Hwait.\0Fslot.c\0\0";
        let error = ServerError::parse(body).unwrap();
        assert_eq!(error.severity, "ERROR");
        assert_eq!(error.code, SqlState::OBJECT_IN_USE);
        assert_eq!(error.message, "replication slot \"s\" is active for PID 7");
        assert_eq!(error.detail.as_deref(), Some("more."));
        assert_eq!(error.hint.as_deref(), Some("wait."));
        assert_eq!(error.to_string(), "replication slot \"s\" is active for PID 7: more (SQLSTATE 55006)");
    }

    #[test]
    fn fields_that_end_early_or_are_not_utf8_do_not_panic() {
        for body in [&b""[..], b"S", b"SERROR", b"M\xff\xfe\0\0", b"\0"] {
            let _ = ServerError::parse(body);
        }
        assert_eq!(ServerError::parse(b"M\xff\0\0").unwrap().message, "\u{fffd}");
    }

    #[test]
    fn restarts_limits_and_locks_are_transient() {
        for code in [
            "57014", "57P05", "25P03", "25P04", "57P03", "57P01", "57P02", "53300", "08006", "08P01",
            "40001", "55006", "25006", "58030", "XX000",
        ] {
            assert_eq!(error(code, "x").kind(), ErrorKind::Transient, "{code}");
        }
    }

    #[test]
    fn errors_that_only_a_person_can_fix_are_definite() {
        for code in ["28P01", "28000", "3D000", "42501", "42P01", "55000", "0A000", "58P01"] {
            assert_eq!(error(code, "x").kind(), ErrorKind::Definite, "{code}");
        }
        let pooler = error("08P01", "unsupported startup parameter: replication");
        assert_eq!(pooler.kind(), ErrorKind::Definite);
    }

    #[test]
    fn a_detail_that_quotes_a_row_is_not_shown() {
        let mut violation = error("23505", "duplicate key value violates unique constraint \"outbox_pkey\"");
        violation.detail = Some("Key (payload)=(secret) already exists.".into());
        assert!(!format!("{violation} {violation:?}").contains("secret"), "{violation}");
    }
}
