//! Logs to standard error, for people or for machines.
//!
//! `RUST_LOG` selects what is logged, in `tracing-subscriber`'s `EnvFilter` syntax. librdkafka's lines arrive through the
//! `log` crate with the target `librdkafka`.

mod queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::panic;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pg_logical::password_command;
use signal_hook::low_level;
use tracing::Subscriber;
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{FormatFields, Writer, debug_fn};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::log::{Log, LogFormat, LogLevel};
use crate::error::{Definite, Error, ErrorCode};
use crate::terminal;
use crate::utc::Utc;
use queue::Queue;

/// What is logged at each level unless `RUST_LOG` is set. Libraries log nothing more at `debug` than at `info`. The router logs itself
/// what librdkafka logs at `info`.
fn directives(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info,librdkafka=warn",
        LogLevel::Debug => "info,librdkafka=warn,outbox_router=debug",
        LogLevel::Trace => "info,librdkafka=warn,outbox_router=trace",
    }
}

/// The target of the lines of `pg-logical`.
const POSTGRES_CRATE: &str = "pg_logical";

/// How long the process waits at its end for unwritten lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The lines for standard error, with [`Writes::Queued`].
static QUEUE: OnceLock<Arc<Queue>> = OnceLock::new();

/// The format that [`init`] was called with.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// At once, so that they appear in order with the lines of standard output.
    Synchronous,
    /// By a thread of its own, so that standard error never blocks the program. Lines that cannot be written are dropped and
    /// counted.
    Queued,
}

/// Starts logging to standard error. Call it once per process.
///
/// # Errors
/// `RUST_LOG` is invalid, or no thread can be started; the exit code is 2.
pub fn init(Log { level, format }: Log, writes: Writes) -> Result<(), Error> {
    let format = *FORMAT.get_or_init(|| format);
    let filter = filter(std::env::var("RUST_LOG").ok().as_deref(), level)?;
    let colours = terminal::colours(&io::stderr());
    let subscriber = match writes {
        Writes::Synchronous => subscriber(format, filter, colours, now, io::stderr),
        Writes::Queued => {
            let queue = Queue::start(io::stderr(), move |lines| dropped(format, colours, lines)).map_err(
                |error| {
                    Error::usage(
                        ErrorCode::ProcessLimits,
                        format!("Cannot start the thread that writes the log: {error}"),
                        "Raise the limit of processes and threads (ulimit -u, or the container's pids limit)",
                    )
                },
            )?;
            subscriber(format, filter, colours, now, Arc::clone(QUEUE.get_or_init(|| queue)))
        }
    };
    // only tests install a second logger in one process; the first one stays
    let _ = subscriber.try_init();
    log_panics();
    Ok(())
}

/// Waits until the log is written, with a timeout in case nobody reads it.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(FLUSH_TIMEOUT);
    }
}

/// The line with the number of dropped lines, logged regardless of `RUST_LOG`.
fn dropped(format: LogFormat, colours: bool, lines: u64) -> Vec<u8> {
    let text = Arc::new(Queue::default());
    let subscriber = subscriber(format, EnvFilter::new("warn"), colours, now, Arc::clone(&text));
    tracing::subscriber::with_default(subscriber, || {
        tracing::warn!(lines, "log lines were dropped, because standard error could not be written");
    });
    text.take()
}

fn filter(rust_log: Option<&str>, level: LogLevel) -> Result<EnvFilter, Error> {
    let rust_log = rust_log.map(str::trim).filter(|text| !text.is_empty());
    let directives = rust_log.unwrap_or_else(|| directives(level));
    EnvFilter::builder().parse(with_parts(directives)).map_err(|error| {
        Error::usage(ErrorCode::Environment,
            format!("RUST_LOG={directives} is invalid: {error}"),
            "Set it to a level (error, warn, info, debug, trace), to target=level pairs with commas between, or unset it",
        )
    })
}

/// Extends directives for `outbox_router`, or for its Postgres modules, to the crate that does most of that work, unless the
/// directives name it.
fn with_parts(directives: &str) -> String {
    let mut all = directives.to_owned();
    if directives.contains(POSTGRES_CRATE) {
        return all;
    }
    for directive in directives.split(',').map(str::trim) {
        let (target, level) = directive.find('=').map_or((directive, ""), |at| directive.split_at(at));
        if matches!(target, "outbox_router" | "outbox_router::postgres") {
            all.push_str(&format!(",{POSTGRES_CRATE}{level}"));
        }
    }
    all
}

fn subscriber<W>(
    format: LogFormat,
    filter: EnvFilter,
    colours: bool,
    clock: Clock,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(clock)
        .with_ansi(colours)
        // it would use eprintln, which panics if standard error is closed
        .log_internal_errors(false);
    match format {
        LogFormat::Text => {
            let builder = builder.fmt_fields(fields()).with_target(false);
            Box::new(builder.with_writer(Indented(writer)).finish())
        }
        LogFormat::Json => Box::new(
            builder
                .with_writer(writer)
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false)
                .finish(),
        ),
    }
}

/// The library's format, with all control characters escaped so that no text from a server affects the terminal. The library
/// escapes only some of them, and only in messages.
fn fields() -> impl for<'writer> FormatFields<'writer> {
    debug_fn(|writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        let colours = writer.has_ansi_escapes();
        let mut harmless = Harmless(writer);
        match field.name() {
            "message" => write!(harmless, "{value:?}"),
            // fields that the `log` crate adds
            name if name.starts_with("log.") => Ok(()),
            name => {
                let name = name.strip_prefix("r#").unwrap_or(name);
                if colours {
                    write!(harmless.0, "\u{1b}[3m{name}\u{1b}[0m\u{1b}[2m=\u{1b}[0m")?;
                } else {
                    write!(harmless.0, "{name}=")?;
                }
                write!(harmless, "{value:?}")
            }
        }
    })
    .delimited(" ")
}

/// Escapes control characters.
struct Harmless<'a, W>(&'a mut W);

impl<W: fmt::Write> fmt::Write for Harmless<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if c.is_control() && c != '\n' && c != '\t' {
                write!(self.0, "{}", c.escape_default())?;
            } else {
                self.0.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// Indents the second and later lines of an event, so that no text from a server looks like an event of its own.
struct Indented<W>(W);

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for Indented<W> {
    type Writer = Indented<W::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        Indented(self.0.make_writer())
    }
}

impl<W: Write> Write for Indented<W> {
    /// `event` is one event, including the line feed at its end.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let mut lines = event.split_inclusive(|byte| *byte == b'\n');
        let mut text = lines.next().unwrap_or_default().to_vec();
        for line in lines {
            text.extend_from_slice(b"    ");
            text.extend_from_slice(line);
        }
        self.0.write_all(&text)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes to standard error why the process ends: what was found, what it means for events and the steps, or a JSON line.
pub fn report(error: &Error) {
    let format = FORMAT.get().copied().unwrap_or_default();
    // makes room for this line in case the queue is full
    flush();
    // RUST_LOG may have silenced the log, or may itself be invalid
    if format == LogFormat::Json && tracing::enabled!(tracing::Level::ERROR) {
        match error {
            Error::Definite(Definite { code, what, events, remedy, .. }) => {
                tracing::error!(%code, effect = events.effect.name(), %events, %remedy, "{what}");
            }
            Error::Transient(transient) => tracing::error!(code = %transient.code(), "{transient}"),
        }
        return;
    }
    let text = match error {
        Error::Definite(definite) => definite.in_lines(),
        Error::Transient(transient) => transient.in_lines(),
    };
    let mut line = format!("error: {}\n", terminal::harmless(&text));
    if QUEUE.get().is_some()
        && let Error::Definite(Definite { code, what, .. }) = error
        && text.lines().count() > SHORT
    {
        line += &last_line(*code, what, &now_utc());
    }
    // if this fails, the message is lost
    let _ = match QUEUE.get() {
        Some(queue) => (&**queue).write_all(line.as_bytes()),
        None => io::stderr().write_all(line.as_bytes()),
    };
}

/// How many lines of a refusal are read at a glance.
const SHORT: usize = 3;

/// What follows the steps of a refusal in a log, whose last line is what people see first: code and cause once more.
fn last_line(code: ErrorCode, what: &str, time: &Utc) -> String {
    format!("{time} ERROR stopped with {code}: {}\n", terminal::harmless(&what.replace('\n', " ")))
}

/// Ends the process with this exit code once the log is written. Exit handlers of libraries do not run: OpenSSL would shut
/// down, and a Kafka client's thread in a TLS handshake would crash.
pub fn end(code: i32) -> ! {
    // a closed pipe does not matter
    let _ = io::stdout().flush();
    flush();
    let _killed = password_command::kill_all();
    low_level::exit(code)
}

/// Writes the time of a log line.
type Clock = fn(&mut Writer<'_>) -> fmt::Result;

fn now(writer: &mut Writer<'_>) -> fmt::Result {
    write!(writer, "{}", now_utc())
}

fn now_utc() -> Utc {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Utc(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

/// Logs a panic like any other event, with a backtrace only if `RUST_BACKTRACE` asks for one.
fn log_panics() {
    panic::set_hook(Box::new(|info| {
        // a message formatted at run time may quote values, perhaps a payload
        let what = info.payload().downcast_ref::<&'static str>().copied().unwrap_or_default();
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(
            place,
            what,
            "outbox-router has panicked, which is a bug; please report it with this line"
        );
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            tracing::error!(%backtrace, "backtrace of the panic");
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_last_line_of_a_refusal_has_its_code_and_its_cause() {
        let line = last_line(ErrorCode::SlotLost, "the slot\nis gone", &Utc(1_769_903_999_123_456));
        let (time, line) = line.split_once(' ').unwrap();
        assert!(time.starts_with("2026-01-31T"), "{time}");
        assert_eq!(line, "ERROR stopped with OBR-3004: the slot is gone\n");
    }

    /// The log of two events and of a library.
    fn logged(format: LogFormat, rust_log: Option<&str>, colours: bool) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let clock: Clock = |writer| write!(writer, "{}", Utc(1_769_903_999_123_456));
        let subscriber =
            subscriber(format, filter(rust_log, LogLevel::Info).unwrap(), colours, clock, move || {
                writer.clone()
            });
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(peer = "postgres", host = "db:5432", "connected");
            tracing::warn!(error = %"it\nbroke", "lost");
            tracing::debug!("not by default");
            tracing::info!(target: "librdkafka", "chatter");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn for_people() {
        insta::assert_snapshot!(logged(LogFormat::Text, None, false));
    }

    #[test]
    fn for_machines_one_object_a_line() {
        let text = logged(LogFormat::Json, Some(""), false);
        for line in text.lines() {
            assert!(serde_json::from_str::<serde_json::Value>(line).unwrap().is_object(), "{line}");
        }
        insta::assert_snapshot!(text);
    }

    /// In messages and in fields, whether they come from the router or from a library.
    #[test]
    fn no_text_from_outside_acts_on_a_terminal() {
        let lines = Lines::default();
        let writer = lines.clone();
        let hostile = "\u{1b}[2J\r\u{9b}31m\u{7}it\nforged";
        for colours in [false, true] {
            let filter = filter(None, LogLevel::Info).unwrap();
            let writer = writer.clone();
            let subscriber = subscriber(LogFormat::Text, filter, colours, now, move || writer.clone());
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(reason = %hostile, debug = ?hostile, text = hostile, "{hostile}");
                tracing::warn!(error = &io::Error::other(hostile) as &dyn std::error::Error, "lost");
            });
        }
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(!text.contains("\u{1b}[2J") && !text.contains(['\r', '\u{9b}', '\u{7}']), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("forged")), "{text}");
        assert_eq!(text.matches("\\u{1b}[2J").count(), 10, "{text}");
    }

    #[test]
    fn colours_only_if_wanted() {
        assert!(logged(LogFormat::Text, None, true).contains('\u{1b}'));
        assert!(!logged(LogFormat::Text, None, false).contains('\u{1b}'));
    }

    #[test]
    fn rust_log_replaces_the_default() {
        let text = logged(LogFormat::Text, Some("librdkafka=info,outbox_router=debug"), false);
        assert_eq!(text.matches("chatter").count(), 1, "{text}");
        assert_eq!(text.matches("not by default").count(), 1, "{text}");
        assert_eq!(logged(LogFormat::Text, Some("error"), false), "");
    }

    #[test]
    fn what_rust_log_says_of_the_router_holds_for_its_postgres_crate() {
        assert_eq!(with_parts("outbox_router=debug"), "outbox_router=debug,pg_logical=debug");
        assert_eq!(with_parts("warn,outbox_router"), "warn,outbox_router,pg_logical");
        assert_eq!(
            with_parts("outbox_router::postgres=trace"),
            "outbox_router::postgres=trace,pg_logical=trace"
        );
        for unchanged in ["debug", "outbox_router::relay=debug", "outbox_router=debug,pg_logical=off"] {
            assert_eq!(with_parts(unchanged), unchanged);
        }
        let of_the_crate = |filter: &str| {
            let text = Arc::new(Queue::default());
            let filter = super::filter(Some(filter), LogLevel::Info).unwrap();
            let subscriber = subscriber(LogFormat::Text, filter, false, now, Arc::clone(&text));
            tracing::subscriber::with_default(subscriber, || {
                tracing::debug!(target: "pg_logical::session", "closing");
            });
            String::from_utf8(text.take()).unwrap()
        };
        assert!(of_the_crate("outbox_router=debug").contains("closing"));
        assert_eq!(of_the_crate("outbox_router=info"), "");
    }

    #[test]
    fn rust_log_that_makes_no_sense_is_an_error() {
        insta::assert_snapshot!(filter(Some("outbox_router=loud"), LogLevel::Info).unwrap_err().to_string());
    }
}
