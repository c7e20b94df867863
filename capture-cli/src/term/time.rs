//! Points in time as typed by users.

use jiff::{
    Timestamp,
    civil::{DateTime, Time},
    tz::{AmbiguousOffset, Offset, TimeZone},
};
use std::{
    fmt,
    str::FromStr,
    time::{SystemTime, SystemTimeError},
};
use wqcap_engine::config::Span;

/// Point in time that a user typed, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimePoint(pub u64);

/// Reason why a text that a user typed is not a point in time.
#[derive(Debug, thiserror::Error)]
pub enum TimePointError {
    /// The clock of this machine is before 1970.
    #[error("this machine's clock is before 1970")]
    Before1970(#[from] SystemTimeError),
    /// The clock of this machine is beyond the year 2553.
    #[error("this machine's clock is outside of the years 1970 to 2262; set the clock")]
    FarOff,
    /// The duration after a sign (`-10m`, `+10m`) is invalid.
    #[error("{0}")]
    Span(<Span as FromStr>::Err),
    /// The text has none of the forms of a point in time.
    #[error(
        "the text is not a time; write 2026-03-01T12:00:00Z, \"2026-03-01 12:00:00\" or 12:00 (local time), seconds since 1970, -10m, +10m, or now"
    )]
    Form,
    /// The local time occurs twice, because clocks are set back.
    #[error(
        "this local time occurs twice, as {0} and as {1}; write one of these, with its offset from UTC"
    )]
    Twice(String, String),
    /// The local time does not occur, because clocks are set forward.
    #[error(
        "there is no such local time, because clocks are set forward at that time: write {0} or {1}, which have an offset from UTC"
    )]
    Never(String, String),
    /// The point in time is outside of the range that nanoseconds in 64 bits can express.
    #[error("the time must be in the years 1970 to 2553")]
    Range,
}

impl FromStr for TimePoint {
    type Err = TimePointError;

    fn from_str(text: &str) -> Result<Self, TimePointError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let now = u64::try_from(now.as_nanos()).map_err(|_| TimePointError::FarOff)?;
        Self::at(text, now, &TimeZone::system())
    }
}

/// Formats the point in time in UTC, in the format of RFC 3339.
impl fmt::Display for TimePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_nanosecond(self.0.into()) {
            Ok(stamp) => write!(f, "{stamp}"),
            Err(_) => write!(f, "{} ns", self.0),
        }
    }
}

impl TimePoint {
    /// Parses a point in time that a user typed. Relative times count from `now`, and local times
    /// are in `zone`.
    fn at(text: &str, now: u64, zone: &TimeZone) -> Result<Self, TimePointError> {
        let text = text.trim();
        if text == "now" {
            return Ok(Self(now));
        }
        let span = |text: &str| {
            let span = text.parse::<Span>().map_err(TimePointError::Span)?;
            Ok::<_, TimePointError>(u64::try_from(span.0.as_nanos()).unwrap_or(u64::MAX))
        };
        if let Some(back) = text.strip_prefix('-') {
            return Ok(Self(now.saturating_sub(span(back)?)));
        }
        if let Some(ahead) = text.strip_prefix('+') {
            return Ok(Self(now.saturating_add(span(ahead)?)));
        }
        if let Some(ns) = unix(text) {
            return Ok(Self(ns));
        }
        let stamp = match text.parse::<Timestamp>() {
            Ok(stamp) => stamp,
            Err(_) => local(civil(text, now, zone)?, zone)?,
        };
        let ns = u64::try_from(stamp.as_nanosecond());
        ns.map(Self).map_err(|_| TimePointError::Range)
    }
}

/// Parses a local time that a user typed: a date, a date with a time, or a time of today.
fn civil(text: &str, now: u64, zone: &TimeZone) -> Result<DateTime, TimePointError> {
    if let Ok(civil) = text.parse() {
        return Ok(civil);
    }
    let time: Time = text.parse().map_err(|_| TimePointError::Form)?;
    let now = Timestamp::from_nanosecond(now.into()).map_err(|_| TimePointError::FarOff)?;
    Ok(zone.to_datetime(now).date().to_datetime(time))
}

/// Converts a local time to a time stamp; the local time must occur exactly once in `zone`.
fn local(civil: DateTime, zone: &TimeZone) -> Result<Timestamp, TimePointError> {
    let at = |offset: Offset| {
        let stamp = offset.to_timestamp(civil);
        stamp.map_err(|_| TimePointError::Range)
    };
    // The offset is part of each reading: 2024-10-27T02:30:00+02:00.
    let shown = |stamp: Timestamp, offset| stamp.display_with_offset(offset).to_string();
    match zone.to_ambiguous_timestamp(civil).offset() {
        AmbiguousOffset::Unambiguous { offset } => at(offset),
        AmbiguousOffset::Fold { before, after } => {
            let reading = |offset| at(offset).map(|stamp| shown(stamp, offset));
            Err(TimePointError::Twice(reading(before)?, reading(after)?))
        }
        // A reading with one offset is a time at which the other one applies.
        AmbiguousOffset::Gap { before, after } => {
            let earlier = shown(at(before)?, after);
            Err(TimePointError::Never(earlier, shown(at(after)?, before)))
        }
    }
}

/// Parses a point in time given as seconds since 1970 with up to nine decimals, without rounding.
fn unix(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if seconds.is_empty() || !digits(seconds) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let nanos: u64 = format!("{fraction:0<9}").parse().ok()?;
    let seconds: u64 = seconds.parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-03-01T12:00:00Z in nanoseconds since 1970.
    const NOW: u64 = 1_772_366_400_000_000_000;

    #[test]
    fn local_times_that_occur_twice_or_never_are_refused() {
        let zone = TimeZone::get("Europe/Berlin").expect("the time zone is known");
        let at = |text| TimePoint::at(text, NOW, &zone).map_err(|e| e.to_string());
        for (text, readings) in [
            (
                "2024-10-27 02:30:00",
                ["2024-10-27T02:30:00+02:00", "2024-10-27T02:30:00+01:00"],
            ),
            (
                "2024-10-27T02:00",
                ["2024-10-27T02:00:00+02:00", "2024-10-27T02:00:00+01:00"],
            ),
            (
                "2024-03-31 02:10:00",
                ["2024-03-31T03:10:00+02:00", "2024-03-31T01:10:00+01:00"],
            ),
        ] {
            let e = at(text).expect_err(text);
            assert!(readings.iter().all(|it| e.contains(it)), "{e}");
        }
        for (text, seconds) in [
            ("2024-10-27 01:59:59", 1_729_987_199),
            ("2024-10-27 03:00:00", 1_729_994_400),
            ("2024-03-31 01:59:59", 1_711_846_799),
            ("2024-03-31 03:00:00", 1_711_846_800),
            ("2024-10-27T02:25:00+02:00", 1_729_988_700),
        ] {
            assert_eq!(at(text), Ok(TimePoint(seconds * 1_000_000_000)), "{text}");
        }
    }

    #[test]
    fn moments() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let at = |text| TimePoint::at(text, NOW, &zone).ok().map(|it| it.0);
        for text in [
            "2026-03-01T12:00:00Z",
            "2026-03-01T13:00:00+01:00",
            "2026-03-01 14:00:00",
            "2026-03-01T14:00",
            "1772366400",
            "1772366400.000000000",
            "14:00",
            "14:00:00",
            "now",
        ] {
            assert_eq!(at(text), Some(NOW), "{text}");
        }
        assert_eq!(at("1772366400.5"), Some(NOW + 500_000_000));
        assert_eq!(at("2026-03-01T12:00:00.000000001Z"), Some(NOW + 1));
        assert_eq!(at("-10m"), Some(NOW - 600_000_000_000));
        assert_eq!(at("+10m"), Some(NOW + 600_000_000_000));
        assert_eq!(TimePoint(NOW).to_string(), "2026-03-01T12:00:00Z");
        assert_eq!(
            TimePoint(NOW + 5).to_string(),
            "2026-03-01T12:00:00.000000005Z"
        );
        assert!(TimePoint(u64::MAX).to_string().starts_with("2554-"));
        assert_eq!(at("-1h 30m"), Some(NOW - 5_400_000_000_000));
        assert_eq!(at("2026-03-01"), Some(NOW - 14 * 3_600_000_000_000));
        for text in [
            "",
            "-",
            "-5",
            "+",
            "yesterday",
            "1e9",
            "1.0000000001",
            "99999999999999999999",
            "1969-12-31T23:59:59Z",
            "25:00",
        ] {
            assert_eq!(at(text), None, "{text}");
        }
    }
}
