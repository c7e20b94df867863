//! Name templates of capture files, such as `{host}-{interface}-q{queue}-%Y%m%dT%H%M%S`, or
//! `%Y%m%d/%H/q{queue}` with a folder for each day and one for each hour.
//!
//! May import: nothing of this crate.
//!
//! Invariant: a name is a path below a folder. Each of its components has a character and does not
//! begin with a dot, so that no name leads out of the folder.

use jiff::{Timestamp, Zoned, fmt::strtime, tz::TimeZone};
use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr};

/// Template from which the names of capture files are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTemplate {
    text: String,
    parts: Vec<NamePart>,
    zone: TimeZone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum NamePart {
    Text(String),
    /// Part of a name template in the format of strftime(3), applied to the first record's
    /// timestamp.
    Time(String),
    Host,
    Interface,
    /// Queue number in a name template: `q{queue}` becomes `q07` or `all`; `{queue}` becomes `07`
    /// or `all`.
    Queue {
        prefix: bool,
    },
    StartNs,
}

impl NameTemplate {
    /// Default name template of `output.name`. [`crate::name`] recognises names of this form.
    pub const DEFAULT: &'static str = "wqcap-q{queue}-{start_ns}";

    /// Returns `true` for the default name template, whose names [`crate::name`] recognises.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.text == Self::DEFAULT
    }

    /// Returns `true` if the name template gives files of different queues different names.
    #[must_use]
    pub fn distinguishes_queues(&self) -> bool {
        self.parts
            .iter()
            .any(|it| matches!(it, NamePart::Queue { .. }))
    }

    /// Returns the number of folder levels in names of this template.
    #[must_use]
    pub fn folder_depth(&self) -> usize {
        let of = |part: &NamePart| match part {
            NamePart::Text(text) | NamePart::Time(text) => text.matches('/').count(),
            _ => 0,
        };
        self.parts.iter().map(of).sum()
    }

    /// Returns the name template with host and interface filled in, in the system's time zone.
    #[must_use]
    pub fn bind(&self, host: &str, interface: &str) -> Self {
        let parts = self.parts.iter().map(|part| match part {
            NamePart::Host => NamePart::Text(plain(host)),
            NamePart::Interface => NamePart::Text(plain(interface)),
            other => other.clone(),
        });
        Self {
            text: self.text.clone(),
            parts: parts.collect(),
            zone: TimeZone::system(),
        }
    }

    /// Returns the name of a capture file with its extension `ending`. `queue` is `None` for a file
    /// of all queues. `attempt` is the number of names that were already taken: `{start_ns}` is
    /// increased by as many nanoseconds, or a number follows the name, so that names of later
    /// attempts sort after earlier ones. The folders stay the same.
    #[must_use]
    pub fn name(&self, queue: Option<u16>, start_ns: u64, ending: &str, attempt: u64) -> String {
        let counts = self.parts.contains(&NamePart::StartNs);
        let mut name = self.stem(queue, start_ns, attempt);
        if attempt > 0 && !counts {
            name += &follower(attempt);
        }
        format!("{name}.{ending}")
    }

    /// Returns the longest path component (by bytes) that a file name of this template can have: a
    /// folder, or the file's name followed by `.` and `ending`. Names of months and days vary with
    /// the time.
    #[must_use]
    pub fn longest_component(&self, ending: &str) -> String {
        const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;
        /// Number of days from 1970 to 2026-01-01.
        const FIRST_DAY: u64 = 20_454;
        let last_ns = (FIRST_DAY..FIRST_DAY + 366).map(|day| (day + 1) * DAY_NS - 1);
        let names = last_ns.map(|ns| self.name(Some(u16::MAX), ns, ending, u64::MAX));
        let components = |name: String| name.split('/').map(str::to_owned).collect::<Vec<_>>();
        let all = names.flat_map(components);
        all.max_by_key(String::len).unwrap_or_default()
    }

    /// Returns `true` if this name template can make the file name `stem`, a name without its
    /// extension.
    #[must_use]
    pub fn matches(&self, stem: &str) -> bool {
        let pieces: Vec<_> = self.parts.iter().flat_map(NamePart::pieces).collect();
        let counted = without_follower(stem).into_iter();
        // Numbering scheme of earlier versions.
        let counted = counted.chain(
            stem.rsplit_once('-')
                .filter(|it| is_number(it.1))
                .map(|it| it.0),
        );
        fits(&pieces, stem) || counted.into_iter().any(|name| fits(&pieces, name))
    }

    fn stem(&self, queue: Option<u16>, ns: u64, attempt: u64) -> String {
        let stamp = Timestamp::from_nanosecond(ns.into()).unwrap_or_default();
        let stamp = stamp.to_zoned(self.zone.clone());
        let text = |part: &NamePart| match (part, queue) {
            (NamePart::Text(text), _) => text.clone(),
            // The format was tested when the template was parsed.
            (NamePart::Time(format), _) => in_time(format, &stamp).unwrap_or_default(),
            (NamePart::Host, _) => "host".into(),
            (NamePart::Interface, _) => "interface".into(),
            (NamePart::Queue { .. }, None) => "all".into(),
            (NamePart::Queue { prefix: true }, Some(queue)) => format!("q{queue:02}"),
            (NamePart::Queue { prefix: false }, Some(queue)) => format!("{queue:02}"),
            (NamePart::StartNs, _) => ns.saturating_add(attempt).to_string(),
        };
        self.parts.iter().map(text).collect()
    }
}

/// Minimum number of digits of the number that is appended to a file name that already exists.
const FOLLOWER_DIGITS: usize = 3;

/// Returns the suffix for a file name that was found to exist `attempt` times: `_001` to `_999`,
/// then `_a1000`, `_b10000`.
///
/// The names sort in the order of the attempts: in byte order `_` sorts after the dot of the
/// extension, a digit sorts before a letter, and the letter grows with the number's length.
fn follower(attempt: u64) -> String {
    let number = format!("{attempt:0FOLLOWER_DIGITS$}");
    match number.len() - FOLLOWER_DIGITS {
        0 => format!("_{number}"),
        // A number has at most 20 digits.
        more => format!("_{}{number}", char::from(b'a' + (more - 1) as u8)),
    }
}

/// Returns the file name without its [`follower`]. Returns `None` if the name has none.
fn without_follower(stem: &str) -> Option<&str> {
    let (name, number) = stem.rsplit_once('_')?;
    let digits = number.trim_start_matches(|c: char| c.is_ascii_lowercase());
    let attempt = digits.parse().ok().filter(|_| is_number(digits))?;
    (follower(attempt) == stem[name.len()..]).then_some(name)
}

/// Pattern for a part of a file name that a template made.
#[derive(Debug, PartialEq, Eq)]
enum NamePattern {
    Text(String),
    Number,
    /// Pattern of the queue number in a file name, as [`NamePart::Queue`] writes it.
    Queue {
        prefix: bool,
    },
    /// Pattern of one or more characters of a file name except `/`.
    Some,
}

impl NamePart {
    fn pieces(&self) -> Vec<NamePattern> {
        match self {
            Self::Text(text) => vec![NamePattern::Text(text.clone())],
            Self::Time(format) => pieces_of(format),
            Self::StartNs => vec![NamePattern::Number],
            Self::Queue { prefix } => vec![NamePattern::Queue { prefix: *prefix }],
            Self::Host | Self::Interface => vec![NamePattern::Some],
        }
    }
}

/// Returns the file name patterns of a strftime(3) format that is valid.
fn pieces_of(format: &str) -> Vec<NamePattern> {
    let mut pieces = Vec::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        pieces.push(NamePattern::Text(before.into()));
        // Flags and width.
        let after = after.trim_start_matches(|c: char| "-_^#.:".contains(c) || c.is_ascii_digit());
        let mut letters = after.chars();
        pieces.push(match letters.next() {
            Some('%') => NamePattern::Text("%".into()),
            Some('Y' | 'm' | 'd' | 'H' | 'M' | 'S' | 's' | 'j' | 'y' | 'f' | 'N') => {
                NamePattern::Number
            }
            _ => NamePattern::Some,
        });
        rest = letters.as_str();
    }
    pieces.push(NamePattern::Text(rest.into()));
    pieces
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Returns `true` if a file name consists of these patterns.
fn fits(pieces: &[NamePattern], name: &str) -> bool {
    let Some((piece, pieces)) = pieces.split_first() else {
        return name.is_empty();
    };
    let after = |text: &str| name.strip_prefix(text).is_some_and(|it| fits(pieces, it));
    match piece {
        NamePattern::Text(text) => after(text),
        NamePattern::Number => begins(name, is_number, pieces),
        NamePattern::Queue { prefix } => {
            let number = if *prefix {
                name.strip_prefix('q')
            } else {
                Some(name)
            };
            after("all") || number.is_some_and(|it| begins(it, is_number, pieces))
        }
        NamePattern::Some => begins(name, |text| !text.contains('/'), pieces),
    }
}

/// Returns `true` if a file name begins with characters that `may_be` accepts, followed by these
/// patterns.
fn begins(name: &str, may_be: fn(&str) -> bool, pieces: &[NamePattern]) -> bool {
    let ends = name.char_indices().map(|(at, c)| at + c.len_utf8());
    ends.take_while(|end| may_be(&name[..*end]))
        .any(|end| fits(pieces, &name[end..]))
}

impl Default for NameTemplate {
    fn default() -> Self {
        Self {
            text: Self::DEFAULT.into(),
            parts: vec![
                NamePart::Text("wqcap-".into()),
                NamePart::Queue { prefix: true },
                NamePart::Text("-".into()),
                NamePart::StartNs,
            ],
            zone: TimeZone::UTC,
        }
    }
}

impl fmt::Display for NameTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for NameTemplate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reason why a text is not a name template.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A placeholder of the name template has no closing brace.
    #[error("a {{ in the name has no }}; write {{host}}, {{interface}}, {{queue}} or {{start_ns}}")]
    Unclosed,
    /// A placeholder of the name template has this unknown name.
    #[error(
        "the placeholder {{{0}}} of the file name is not known; write {{host}}, {{interface}}, {{queue}} or {{start_ns}}"
    )]
    Placeholder(String),
    /// Names of the template would begin with a slash, so that they leave the folder.
    #[error("the name of capture files is a path below output.dir and must not begin with /")]
    Absolute,
    /// Names of the template would have a path component that is empty or begins with a dot.
    #[error(
        "each part of a file name between slashes must have at least one character and must not begin with a dot"
    )]
    Component,
    /// Names of the template would have a line break or a zero byte.
    #[error("the name of capture files must be one line of text")]
    Line,
    /// A part of the name template is not a valid format of strftime(3).
    #[error("{text:?} is not a format of strftime(3): {source}")]
    Time {
        /// Part of the name template that is invalid.
        text: String,
        /// Error of the time library for the invalid part.
        source: jiff::Error,
    },
    /// A time conversion in this part of the name template yields a slash.
    #[error("{0:?} has a conversion that yields a /; write %m-%d-%y instead of %D")]
    Slash(String),
}

impl FromStr for NameTemplate {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (word, after) = after.split_once('}').ok_or(TemplateError::Unclosed)?;
            let (before, part) = match word {
                "host" => (before, NamePart::Host),
                "interface" => (before, NamePart::Interface),
                "start_ns" => (before, NamePart::StartNs),
                "queue" => match before.strip_suffix('q') {
                    Some(before) => (before, NamePart::Queue { prefix: true }),
                    None => (before, NamePart::Queue { prefix: false }),
                },
                _ => return Err(TemplateError::Placeholder(word.into())),
            };
            push(&mut parts, before)?;
            parts.push(part);
            rest = after;
        }
        push(&mut parts, rest)?;
        let it = Self {
            text: text.into(),
            parts,
            zone: TimeZone::UTC,
        };
        let example = it.stem(Some(0), 0, 0);
        if example.starts_with('/') {
            return Err(TemplateError::Absolute);
        }
        let mut parts = example.split('/');
        if parts.any(|part| part.is_empty() || part.starts_with('.')) {
            return Err(TemplateError::Component);
        }
        if example.contains(['\0', '\n']) {
            return Err(TemplateError::Line);
        }
        Ok(it)
    }
}

/// Appends the text between two placeholders of a name template as a literal or strftime(3) part.
fn push(parts: &mut Vec<NamePart>, text: &str) -> Result<(), TemplateError> {
    if text.contains('%') {
        let example = in_time(text, &Zoned::default()).map_err(|source| TemplateError::Time {
            text: text.into(),
            source,
        })?;
        if example.matches('/').count() != text.matches('/').count() {
            return Err(TemplateError::Slash(text.into()));
        }
        parts.push(NamePart::Time(text.into()));
    } else if !text.is_empty() {
        parts.push(NamePart::Text(text.into()));
    }
    Ok(())
}

fn in_time(format: &str, stamp: &Zoned) -> Result<String, jiff::Error> {
    strtime::format(format, stamp)
}

/// Returns the name of a host or interface with `_` for characters that a file name should not
/// have.
fn plain(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "._-".contains(c);
    let name: String = name
        .trim()
        .chars()
        .map(|c| if is_plain(c) { c } else { '_' })
        .collect();
    // The name may begin a path component, which must not begin with a dot.
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::FileName;
    use std::path::Path;

    /// Time 2026-11-22T15:30:00.000000005Z in nanoseconds since 1970.
    const NS: u64 = 1_795_361_400_000_000_005;

    #[test]
    fn a_template_becomes_a_name() {
        for (text, queue, want) in [
            ("out", None, "out.pcap"),
            (
                "{host}-{interface}-q{queue}-%Y%m%dT%H%M%S",
                Some(3),
                "sensor_1-eth0.7-q03-20261122T153000.pcap",
            ),
            ("{queue}_%s", Some(12), "12_1795361400.pcap"),
            ("a-q{queue}", None, "a-all.pcap"),
            ("%Y%m%d/%H/q{queue}", Some(3), "20261122/15/q03.pcap"),
            ("{host}/{interface}.%j", None, "sensor_1/eth0.7.326.pcap"),
            ("{start_ns}", None, "1795361400000000005.pcap"),
        ] {
            let template: NameTemplate = text.parse().expect(text);
            let mut bound = template.bind("sensor/1\n", "eth0.7");
            bound.zone = TimeZone::UTC;
            assert_eq!(bound.name(queue, NS, "pcap", 0), want);
        }
    }

    #[test]
    fn names_of_the_default_template_are_recognised() {
        let default = NameTemplate::default();
        let parsed: NameTemplate = NameTemplate::DEFAULT.parse().expect("reads");
        assert_eq!(parsed, default);
        assert!(default.is_default() && default.distinguishes_queues());
        for queue in [None, Some(7)] {
            let ending = "pcapng.zst";
            for attempt in [0, 9] {
                let name = FileName {
                    queue,
                    start_ns: NS + attempt,
                    ending,
                    sealed: false,
                };
                let made = default.name(queue, NS, ending, attempt);
                assert_eq!(made, name.to_string());
                assert_eq!(FileName::parse(Path::new(&made)), Some(name));
            }
        }
    }

    #[test]
    fn a_taken_name_is_followed_by_a_number() {
        let template: NameTemplate = "out".parse().expect("reads");
        let names = [0, 1, 2].map(|attempt| template.name(None, NS, "pcapng", attempt));
        assert_eq!(names, ["out.pcapng", "out_001.pcapng", "out_002.pcapng"]);
        assert!(!template.distinguishes_queues());
        // One nanosecond before the next second.
        let template: NameTemplate = "%S/{start_ns}".parse().expect("reads");
        let names = [0, 1].map(|attempt| template.name(None, 999_999_999, "pcap", attempt));
        assert_eq!(names, ["00/999999999.pcap", "00/1000000000.pcap"]);
        assert_eq!(template.folder_depth(), 1);
        let host: NameTemplate = "{host}/a".parse().expect("reads");
        assert_eq!(host.bind("..", "").name(None, 0, "pcap", 0), "_./a.pcap");
    }

    #[test]
    fn the_longest_component_has_every_part_at_its_longest() {
        for (text, longest) in [
            ("out", "out_q18446744073709551615.pcap.part"),
            ("%A-%B-%A-%B/x", "Wednesday-September-Wednesday-September"),
            ("%Y/{start_ns}", "18446744073709551615.pcap.part"),
            (
                "q{queue}/{host}-of-the-first-floor",
                "sensor-of-the-first-floor_q18446744073709551615.pcap.part",
            ),
            (
                "q{queue}-{interface}",
                "q65535-eth0_q18446744073709551615.pcap.part",
            ),
        ] {
            let template: NameTemplate = text.parse().expect(text);
            let mut bound = template.bind("sensor", "eth0");
            bound.zone = TimeZone::UTC;
            assert_eq!(bound.longest_component("pcap.part"), longest);
        }
    }

    /// The lists of this tool and `ls` in the C locale use this order.
    #[test]
    fn names_of_one_moment_sort_in_the_order_of_writing() {
        for text in ["out", "tap-%Y%m%dT%H%M%S", "q{queue}-%H"] {
            let template: NameTemplate = text.parse().expect("reads");
            for ending in FileName::ENDINGS {
                let attempts = (0..1200).chain([9_999, 10_000, 123_456, 1_000_000, u64::MAX]);
                let names: Vec<_> = attempts
                    .map(|attempt| template.name(Some(1), NS, ending, attempt))
                    .collect();
                assert!(names.is_sorted(), "{names:?}");
                let stems = names.iter().map(|it| &it[..it.len() - ending.len() - 1]);
                assert!(stems.clone().all(|it| template.matches(it)), "{names:?}");
                // The name of a file one second later sorts after all of them.
                let later = template.name(Some(1), NS + 1_000_000_000, ending, 0);
                assert!(text != "tap-%Y%m%dT%H%M%S" || names.last() < Some(&later));
            }
        }
        let template: NameTemplate = "out".parse().expect("reads");
        let names = [999, 1000, 10_000].map(|attempt| template.name(None, NS, "pcap", attempt));
        assert_eq!(names, ["out_999.pcap", "out_a1000.pcap", "out_b10000.pcap"]);
        for stem in ["out-1", "out-12", "out_001"] {
            assert!(template.matches(stem), "{stem}");
        }
        for stem in [
            "out_1",
            "out_0001",
            "out_1000",
            "out_b1000",
            "out_",
            "out_a",
            "out_+01",
        ] {
            assert!(!template.matches(stem), "{stem}");
        }
    }

    #[test]
    fn a_name_that_was_made_matches_and_others_do_not() {
        for text in [
            "out",
            "{host}-{interface}-q{queue}-%Y%m%dT%H%M%S",
            "{queue}_%s",
            "a%%b-%b-%-d",
            "x-{start_ns}",
            "%Y%m%d/%H/q{queue}",
            "m%b/{host}/%A-%M",
        ] {
            let template: NameTemplate = text.parse().expect(text);
            let bound = template.bind("sensor", "eth0");
            for (queue, attempt) in [(None, 0), (Some(12), 0), (None, 3)] {
                let name = bound.name(queue, NS, "pcap", attempt);
                let stem = name.strip_suffix(".pcap").expect("its ending");
                assert!(bound.matches(stem), "{text}: {stem}");
                for other in [format!("x{stem}"), format!("{stem}-copy"), String::new()] {
                    assert!(!bound.matches(&other), "{text}: {other}");
                }
            }
        }
        let weekly: NameTemplate = "%A/q{queue}".parse().expect("reads");
        assert_eq!(
            (weekly.folder_depth(), weekly.matches("Sunday/q01")),
            (1, true)
        );
        assert!(!weekly.matches("a/Sunday/q01") && !weekly.matches("q01"));
        let hourly: NameTemplate = "tap-%Y%m%d".parse().expect("reads");
        assert!(hourly.matches("tap-20261122") && hourly.matches("tap-20261122-7"));
        for other in [
            "tap-",
            "tap-2026x",
            "tap-20261122-",
            "tap-20261122-seven",
            "notes",
        ] {
            assert!(!hourly.matches(other), "{other}");
        }
    }

    #[test]
    fn invalid_templates_are_refused() {
        for (text, part) in [
            ("", "at least one character"),
            (".out", "dot"),
            ("{hst}", "{hst}"),
            ("{host", "has no }"),
            ("/a", "output.dir"),
            ("a//b", "at least one character"),
            ("a/", "at least one character"),
            ("../a", "dot"),
            ("a/.b", "dot"),
            ("%H/%D", "%m-%d-%y"),
            ("%!", "strftime"),
            ("out-%", "strftime"),
        ] {
            let problem = text.parse::<NameTemplate>().expect_err(text);
            assert!(problem.to_string().contains(part), "{text}: {problem}");
        }
    }
}
