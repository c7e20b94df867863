//! Log events as lines on stderr, in the voice of all other messages: `warning: text key=value`. Those of the audit trail
//! begin with `audit:`, and are written at every level that is chosen while the program runs.

use crate::term::{
    stderr::{self, Kind},
    terminal,
};
use std::{
    fmt, io,
    sync::{Mutex, OnceLock, PoisonError},
};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    filter::ParseError,
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    registry::LookupSpan,
};

/// Target of the audit trail's events.
const AUDIT: &str = "audit";

type Change = dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync;

/// Puts another filter in place, and what holds, in words.
static CHANGE: OnceLock<Box<Change>> = OnceLock::new();
static LEVEL: Mutex<String> = Mutex::new(String::new());

/// The level from which is logged, or the whole of `RUST_LOG`.
pub fn level() -> String {
    LEVEL.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Logs from `level` on.
pub fn set_level(level: &str) -> Result<(), String> {
    let change = CHANGE.get().ok_or("logging has not been started")?;
    change(filter(level).map_err(|e| e.to_string())?)?;
    level.clone_into(&mut LEVEL.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(())
}

/// What is logged at `level`: the audit trail too, unless `level` says otherwise of it.
fn filter(level: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::try_new(format!("audit=info,{level}"))
}

/// Starts logging: errors alone with `quiet`, else warnings and the audit trail, or more for each `verbose`. `RUST_LOG`
/// overrides the level.
pub fn start(verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "debug",
        (false, _) => "trace",
    };
    let chosen = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let mut holds = chosen.as_deref().unwrap_or(level);
    let made = match (&chosen, quiet) {
        (None, true) => EnvFilter::try_new(holds),
        _ => filter(holds),
    };
    let filter = made.unwrap_or_else(|e| {
        terminal::say(format_args!(
            "warning: RUST_LOG is invalid ({e}): logging at level {level}"
        ));
        holds = level;
        EnvFilter::new(level)
    });
    holds.clone_into(&mut LEVEL.lock().unwrap_or_else(PoisonError::into_inner));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .event_format(Line)
        .with_writer(Stderr)
        .with_filter_reloading();
    let handle = builder.reload_handle();
    let _ = CHANGE.set(Box::new(move |filter| {
        handle.reload(filter).map_err(|e| e.to_string())
    }));
    builder.init();
}

struct Line;

impl<S, N> FormatEvent<S, N> for Line
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
        to.write_str(match *event.metadata().level() {
            _ if event.metadata().target() == AUDIT => "audit: ",
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            Level::INFO => "info: ",
            Level::DEBUG => "debug: ",
            Level::TRACE => "trace: ",
        })?;
        context.field_format().format_fields(to.by_ref(), event)?;
        writeln!(to)
    }
}

/// Destination of all events.
struct Stderr;

impl MakeWriter<'_> for Stderr {
    type Writer = Lines;

    fn make_writer(&self) -> Lines {
        Lines(Kind::Ordinary)
    }

    fn make_writer_for(&self, metadata: &Metadata<'_>) -> Lines {
        match metadata.target() {
            AUDIT => Lines(Kind::Audit),
            _ => Lines(Kind::Ordinary),
        }
    }
}

/// The subscriber hands over one whole event at a time.
struct Lines(Kind);

impl io::Write for Lines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        stderr::write_lines(self.0, text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
