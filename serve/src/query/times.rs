//! Points in time of requests.

use jiff::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// Reason why a text of a request is not a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// The text has none of the forms of a point in time.
    #[error(
        "the text is not a time; write 2026-03-01T12:00:00Z with an offset from UTC, seconds since 1970, -10m, or now"
    )]
    Form,
    /// The point in time is before 1970 or after 2553.
    #[error("the time must be in the years 1970 to 2553")]
    Range,
}

/// Returns the present time in nanoseconds since 1970; 0 if the clock is earlier.
pub fn now() -> u64 {
    since_1970(SystemTime::now())
}

/// Returns a time in nanoseconds since 1970; 0 if it is earlier.
pub fn since_1970(time: SystemTime) -> u64 {
    let passed = time.duration_since(UNIX_EPOCH);
    passed.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX))
}

/// Parses a point in time: RFC 3339 with an offset, seconds since 1970 with at most nine decimals,
/// a duration before the present time (`-10m`), or `now`. Returns nanoseconds since 1970.
pub fn parse(text: &str, now: u64) -> Result<u64, TimeError> {
    let text = text.trim();
    if text == "now" {
        return Ok(now);
    }
    if let Some(ago) = text.strip_prefix('-') {
        let ago = humantime::parse_duration(ago).map_err(|_| TimeError::Form)?;
        let ago = u64::try_from(ago.as_nanos()).map_err(|_| TimeError::Range)?;
        return Ok(now.saturating_sub(ago));
    }
    if text.starts_with(|it: char| it.is_ascii_digit()) && !text.contains(['-', ':']) {
        return seconds(text);
    }
    let stamp: Timestamp = text.parse().map_err(|_| TimeError::Form)?;
    u64::try_from(stamp.as_nanosecond()).map_err(|_| TimeError::Range)
}

/// Parses seconds since 1970 with at most nine decimals. Returns nanoseconds since 1970.
fn seconds(text: &str) -> Result<u64, TimeError> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |it: &str| !it.is_empty() && it.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > 9 {
        return Err(TimeError::Form);
    }
    let whole: u64 = whole.parse().map_err(|_| TimeError::Range)?;
    let ns: u64 = format!("{decimals:0<9}")
        .parse()
        .map_err(|_| TimeError::Form)?;
    let whole = whole.checked_mul(1_000_000_000).ok_or(TimeError::Range)?;
    whole.checked_add(ns).ok_or(TimeError::Range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_forms() {
        let now = 1_000_000_000_000_000_000;
        for (text, ns) in [
            ("now", now),
            ("-10m", now - 600_000_000_000),
            ("-1h 30m", now - 5_400_000_000_000),
            ("1764216000", 1_764_216_000_000_000_000),
            ("1764216000.5", 1_764_216_000_500_000_000),
            ("0.000000001", 1),
            ("2026-11-27T04:00:00Z", 1_795_752_000_000_000_000),
            ("2026-11-27T05:00:00.25+01:00", 1_795_752_000_250_000_000),
        ] {
            assert_eq!(parse(text, now), Ok(ns), "{text}");
        }
        for text in [
            "",
            "soon",
            "-",
            "-x",
            "1.",
            ".5",
            "1.0000000001",
            "1e5",
            "2026-11-27",
            "2026-11-27T04:00:00",
            "1..2",
            "１",
        ] {
            assert_eq!(parse(text, now), Err(TimeError::Form), "{text}");
        }
        for text in ["99999999999999", "1960-01-01T00:00:00Z"] {
            assert_eq!(parse(text, now), Err(TimeError::Range), "{text}");
        }
    }
}
