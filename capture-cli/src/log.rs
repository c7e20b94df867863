//! Log events as lines on stderr, in the form of all other messages: `warning: text key=value`, or
//! a JSON object. Lines of the audit trail begin with `audit:` and are written at every level that
//! is set while the program runs.

use crate::term::{
    message::{self, LogRecord, MessageKind, RecordLevel},
    stderr::{self, TextKind},
    terminal,
    text::Text,
};
use serde_json::{Map, Value};
use std::{
    fmt, io,
    sync::{Mutex, OnceLock, PoisonError},
};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    filter::ParseError,
    fmt::{
        FmtContext, FormatEvent, FormatFields, MakeWriter,
        format::{JsonFields, Writer},
    },
    registry::LookupSpan,
    reload,
};

/// Target by which log events of the audit trail are recognised.
const AUDIT: &str = "audit";

/// Type of the function that replaces the active log filter.
type Change = dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync;

/// Function that replaces the active log filter; [`start`] sets it once.
static CHANGE: OnceLock<Box<Change>> = OnceLock::new();
/// Active log level, or the whole value of the environment variable `RUST_LOG`.
static LEVEL: Mutex<String> = Mutex::new(String::new());

/// Reason why the log level cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum LogLevelError {
    /// Logging was not started by [`start`].
    #[error("the log level cannot be set, because logging has not been started")]
    NotStarted,
    /// The text of the log level is not a valid filter of log events.
    #[error(transparent)]
    Filter(#[from] ParseError),
    /// The active log filter cannot be replaced.
    #[error(transparent)]
    Reload(#[from] reload::Error),
}

/// Returns the active log level, or the whole value of the environment variable `RUST_LOG`.
pub fn level() -> String {
    LEVEL.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Sets the log level. `level` may also be a filter in the form of `RUST_LOG`.
pub fn set_level(level: &str) -> Result<(), LogLevelError> {
    let change = CHANGE.get().ok_or(LogLevelError::NotStarted)?;
    change(filter(level)?)?;
    level.clone_into(&mut LEVEL.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(())
}

/// Builds the log filter for the level `level`. It includes the audit trail unless `level` excludes
/// it.
fn filter(level: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::try_new(format!("audit=info,{level}"))
}

/// Starts logging at level `error` with `quiet`, else `warn` with the audit trail, `debug` with one
/// `verbose` and `trace` with more. `RUST_LOG` overrides this level.
pub fn start(verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "debug",
        (false, _) => "trace",
    };
    stderr::catch_panics();
    let chosen = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let mut active = chosen.as_deref().unwrap_or(level);
    let made = match (&chosen, quiet) {
        (None, true) => EnvFilter::try_new(active),
        _ => filter(active),
    };
    let filter = made.unwrap_or_else(|e| {
        terminal::print(
            MessageKind::Warning,
            format_args!("RUST_LOG is invalid ({e}): logging at level {level}"),
        );
        active = level;
        EnvFilter::new(level)
    });
    active.clone_into(&mut LEVEL.lock().unwrap_or_else(PoisonError::into_inner));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .event_format(LogLine)
        .with_writer(Stderr)
        .with_filter_reloading();
    let handle = builder.reload_handle();
    let _ = CHANGE.set(Box::new(move |filter| handle.reload(filter)));
    builder.init();
}

/// Formatter that writes a log event as one line: `level: text key=value`, or a [`LogRecord`].
struct LogLine;

impl<S, N> FormatEvent<S, N> for LogLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if message::is_json() {
            return to.write_str(&record(event)?);
        }
        to.write_str(match *event.metadata().level() {
            _ if event.metadata().target() == AUDIT => "audit: ",
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            Level::INFO => "info: ",
            Level::DEBUG => "debug: ",
            Level::TRACE => "trace: ",
        })?;
        let mut fields = String::new();
        let format = context.field_format();
        format.format_fields(Writer::new(&mut fields), event)?;
        // One event is one line, whatever names and answers it quotes.
        writeln!(to, "{}", Text(fields))
    }
}

/// Formats a log event as a line of JSON. A line of the audit trail has fields only, so that its
/// message is its field `what`.
fn record(event: &Event<'_>) -> Result<String, fmt::Error> {
    let mut fields = String::new();
    JsonFields::new().format_fields(Writer::new(&mut fields), event)?;
    let mut fields: Map<String, Value> = serde_json::from_str(&fields).map_err(|_| fmt::Error)?;
    let text = match fields.remove("message") {
        Some(text) => Some(text),
        None => fields.get("what").cloned(),
    };
    let line = LogRecord {
        time: message::now(),
        level: match *event.metadata().level() {
            Level::ERROR => RecordLevel::Error,
            Level::WARN => RecordLevel::Warn,
            Level::INFO => RecordLevel::Info,
            Level::DEBUG => RecordLevel::Debug,
            Level::TRACE => RecordLevel::Trace,
        },
        target: event.metadata().target(),
        message: text.as_ref().and_then(Value::as_str).unwrap_or_default(),
        fields,
    };
    Ok(line.line())
}

/// Destination of all log events: stderr.
struct Stderr;

impl MakeWriter<'_> for Stderr {
    type Writer = Lines;

    fn make_writer(&self) -> Lines {
        Lines(TextKind::Ordinary)
    }

    fn make_writer_for(&self, metadata: &Metadata<'_>) -> Lines {
        match metadata.target() {
            AUDIT => Lines(TextKind::Audit),
            _ => Lines(TextKind::Ordinary),
        }
    }
}

/// Writer of log events to stderr, to which the subscriber passes one whole event in each call.
struct Lines(TextKind);

impl io::Write for Lines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        stderr::write_lines(self.0, text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
