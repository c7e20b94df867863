//! Span of time with its unit: `100ms`, `60s`, `1h 30m`.

use super::{NumberOrText, SettingError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, str::FromStr, time::Duration};

/// Configured span of time. `Display` is exact: the printed text parses to the same span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// Returns the span of time in nanoseconds, at most `u64::MAX`.
    #[must_use]
    pub fn nanos(self) -> u64 {
        crate::time::nanos(self.0)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl FromStr for Span {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        humantime::parse_duration(text.trim())
            .map(Self)
            .map_err(|_| SettingError::NotASpan(text.to_owned()))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrText {
            expected: "a time with its unit, such as \"60s\"",
            // Zero needs no unit. The unit of any other bare number would be a guess.
            number: |n| (n == 0).then(Self::default),
            text: str::parse,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_with_units_parse() {
        for (text, ms) in [
            ("100ms", 100),
            ("60s", 60_000),
            ("5m", 300_000),
            ("1h 30m", 5_400_000),
            ("0s", 0),
        ] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(ms))), "{text}");
        }
        for text in ["", "60", "1.5", "-1s", "s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn printing_is_exact() {
        for ns in [0, 1, 1_000_000, 60_000_000_000, 90_061_000_000_007] {
            let span = Span(Duration::from_nanos(ns));
            assert_eq!(span.to_string().parse(), Ok(span));
        }
    }
}
