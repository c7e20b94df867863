//! `ship.sensor`: what a capture is called where many of them meet.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A sensor's name: a part of paths and of queries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sensor(String);

impl Sensor {
    /// The longest one.
    const LONGEST: usize = 64;

    /// It as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Sensor {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let fits = (1..=Self::LONGEST).contains(&text.len());
        if fits && !text.starts_with('.') && text.chars().all(is_plain) {
            return Ok(Self(text));
        }
        Err(format!(
            "{text:?} is not a sensor's name; write at most {} letters, digits, - and _, or dots behind the first of them",
            Self::LONGEST
        ))
    }
}

impl From<Sensor> for String {
    fn from(it: Sensor) -> Self {
        it.0
    }
}

impl fmt::Display for Sensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sensor_is_a_plain_word() {
        for good in ["dc1-tap3", "A_b.c", "7"] {
            let sensor = Sensor::try_from(good.to_owned());
            assert_eq!(sensor.expect(good).as_str(), good);
        }
        let long = "x".repeat(Sensor::LONGEST + 1);
        for bad in ["", ".", "..", "a/b", "a b", "a=b", "ä", long.as_str()] {
            assert!(Sensor::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
