//! Log events as lines on stderr, in the voice of all other messages: `warning: text key=value`.

use crate::terminal;
use std::{fmt, io};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

/// Starts logging: errors with `quiet`, else warnings, or more for each `verbose`. `RUST_LOG` overrides both.
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
    let filter = EnvFilter::try_new(chosen.as_deref().unwrap_or(level)).unwrap_or_else(|e| {
        terminal::say(format_args!(
            "warning: RUST_LOG is not understood ({e}): logging from level {level}"
        ));
        EnvFilter::new(level)
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .event_format(Line)
        .with_writer(|| Lines)
        .init();
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

/// The subscriber hands over one whole event at a time.
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        terminal::write_lines(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
