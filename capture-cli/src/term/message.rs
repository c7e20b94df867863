//! Form of the lines on stderr: text for people, or one JSON object per line for log collectors.

use super::text::{Text, escaped_json};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use std::sync::OnceLock;

/// Name of the option that selects the form of lines on stderr.
const OPTION: &str = "--log-format";
/// Target of messages to the user in JSON lines, which distinguishes them from events of the log.
const MESSAGES: &str = "wqcap";

/// Format of all lines on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum LogFormat {
    /// Each line on stderr is text.
    #[default]
    Text,
    /// Each line on stderr is one JSON object, a [`LogRecord`].
    Json,
}

/// Format of all lines on stderr. It is set once, when the program begins.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Sets the format of all lines on stderr. Only the first call has an effect.
pub fn set_format(format: LogFormat) {
    let _ = FORMAT.set(format);
}

/// Returns `true` if lines on stderr are JSON objects.
pub fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Returns the command-line arguments that select the present format of lines on stderr for a
/// helper process of this program.
pub fn arguments() -> &'static [&'static str] {
    if is_json() { &[OPTION, "json"] } else { &[] }
}

/// Returns the format of lines on stderr that a command line selects, even if clap rejects that
/// line. The last option counts.
pub fn of_arguments(arguments: impl IntoIterator<Item = String>) -> LogFormat {
    let (mut format, mut follows) = (LogFormat::Text, false);
    for argument in arguments {
        let value = match argument.strip_prefix(OPTION) {
            _ if follows => Some(argument.as_str()),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        if let Some(given) = value.and_then(|it| it.parse().ok()) {
            format = given;
        }
        follows = !follows && argument == OPTION;
    }
    format
}

/// Kind of a message on stderr that is not an event of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Error: the reason why the command failed.
    Error,
    /// Warning: a problem that does not end the command.
    Warning,
    /// Note: a fact that the user may not expect.
    Note,
    /// Answer that the user requested, such as a table.
    Answer,
    /// Message of a thread that panicked, with its backtrace.
    Panic,
}

impl MessageKind {
    /// Returns the word that precedes a message of this kind in text format.
    fn prefix(self) -> &'static str {
        match self {
            Self::Error => "error: ",
            Self::Warning => "warning: ",
            Self::Note => "note: ",
            Self::Answer | Self::Panic => "",
        }
    }

    /// Returns the level of a message of this kind in JSON format.
    fn level(self) -> RecordLevel {
        match self {
            Self::Error | Self::Panic => RecordLevel::Error,
            Self::Warning => RecordLevel::Warn,
            Self::Note | Self::Answer => RecordLevel::Info,
        }
    }
}

/// Returns the lines on stderr for a message of one line. In text format, line ends in it are
/// escaped.
pub fn line(kind: MessageKind, message: &str) -> String {
    match is_json() {
        true => record_of(kind, message),
        false => format!("{}{}\n", kind.prefix(), Text(message)),
    }
}

/// Returns the lines on stderr for a message of several lines. After a prefix, later lines are
/// indented, so that a line end in a foreign text does not begin another message.
pub fn block(kind: MessageKind, message: &str) -> String {
    let message = message.trim_end();
    match kind {
        _ if is_json() => record_of(kind, message.trim_start()),
        MessageKind::Answer | MessageKind::Panic => format!("{message}\n"),
        _ => format!("{}{}\n", kind.prefix(), message.replace('\n', "\n  ")),
    }
}

fn record_of(kind: MessageKind, message: &str) -> String {
    LogRecord {
        time: now(),
        level: kind.level(),
        target: MESSAGES,
        message,
        fields: Map::new(),
    }
    .line()
}

/// Returns the present time in the form of the field `time` of a [`LogRecord`].
pub fn now() -> String {
    format!("{:.6}", Timestamp::now())
}

/// Level of a [`LogRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum RecordLevel {
    /// Failure of a command or of a part of it.
    Error,
    /// Problem that the command survives.
    Warn,
    /// Fact for people, and each line of the audit trail.
    Info,
    /// Detail for the search for a fault.
    Debug,
    /// Every detail for the search for a fault.
    Trace,
}

/// Line on stderr with `--log-format json`: one JSON object.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogRecord<'a> {
    /// Time of the line in RFC 3339, in UTC, with microseconds.
    pub time: String,
    /// Severity of the line.
    pub level: RecordLevel,
    /// Source of the line: `audit` for the audit trail, `wqcap` for a message to the user, otherwise
    /// the module of the program.
    pub target: &'a str,
    /// Text of the line. A table is one message of several lines.
    pub message: &'a str,
    /// Values of the event by name; empty for a message to the user.
    pub fields: Map<String, Value>,
}

impl LogRecord<'_> {
    /// Returns the record as one line, in which everything that a terminal obeys is escaped.
    pub fn line(&self) -> String {
        // Text and numbers can always be written.
        let json = serde_json::to_string(self).unwrap_or_default();
        escaped_json(&json) + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_documented_schema_is_that_of_the_type() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/log.schema.json");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let documented: Value = serde_json::from_str(&text).unwrap_or_default();
        let schema = schemars::schema_for!(LogRecord<'_>).to_value();
        assert!(
            documented == schema,
            "docs/log.schema.json differs from the type; write this: {schema:#}"
        );
    }

    #[test]
    fn a_record_is_one_line_that_no_terminal_obeys() {
        let message = "a\nb\t\u{1b}[31m \u{7f}\u{9b}\u{202e}\u{2028} größe \"q\"";
        let line = record_of(MessageKind::Note, message);
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        let shown = r#"a\nb\t\u001b[31m \u007f\u009b\u202e\u2028 größe \"q\""#;
        assert!(line.contains(shown), "{line}");
        let record: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(record["message"], message);
        assert_eq!(record["level"], "INFO");
        assert_eq!(record["fields"], json!({}));
        let time = record["time"].as_str().expect("a text");
        assert!(time.parse::<Timestamp>().is_ok(), "{time}");
        assert_eq!(time.len(), "2026-03-01T12:00:00.000000Z".len(), "{time}");
    }

    #[test]
    fn later_lines_of_an_error_are_indented() {
        let text = "no such key\nerror: forged\n";
        assert_eq!(
            block(MessageKind::Error, text),
            "error: no such key\n  error: forged\n"
        );
        assert_eq!(line(MessageKind::Note, "a\nb"), "note: a\\nb\n");
        assert_eq!(block(MessageKind::Answer, "a\nb\n"), "a\nb\n");
    }

    #[test]
    fn the_format_of_a_wrong_command_line_is_found() {
        let of = |text: &str| of_arguments(text.split(' ').map(str::to_owned));
        for text in [
            "wqcap --log-format json run --no-such-option",
            "wqcap run --nothing --log-format=json",
            "wqcap --log-format text --log-format json",
        ] {
            assert_eq!(of(text), LogFormat::Json, "{text}");
        }
        for text in [
            "wqcap json",
            "wqcap --log-format",
            "wqcap --log-format yaml",
            "wqcap --log-formatjson",
            "wqcap --log-format=json --log-format=text",
        ] {
            assert_eq!(of(text), LogFormat::Text, "{text}");
        }
    }
}
