//! `ship.sensor`: what a capture is called where many of them meet; `ship.packets`: which of its files are sent there.

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

/// `ship.packets`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ShipPackets {
    /// `"all"`
    #[default]
    All,
    /// `"none"`: what is in the files alone.
    None,
    /// Files that may hold frames of this pcap-filter expression.
    Of(String),
}

impl TryFrom<String> for ShipPackets {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.trim() {
            "all" => Ok(Self::All),
            "none" => Ok(Self::None),
            "" => Err("is empty; write \"all\", \"none\" or a filter".into()),
            _ => Ok(Self::Of(text)),
        }
    }
}

impl From<ShipPackets> for String {
    fn from(it: ShipPackets) -> Self {
        match it {
            ShipPackets::All => "all".into(),
            ShipPackets::None => "none".into(),
            ShipPackets::Of(expression) => expression,
        }
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

    #[test]
    fn packets_are_a_word_or_a_filter() {
        let of = |text: &str| ShipPackets::try_from(text.to_owned());
        let port = "udp port 53";
        for (text, packets) in [
            ("all", ShipPackets::All),
            ("none", ShipPackets::None),
            (port, ShipPackets::Of(port.into())),
        ] {
            assert_eq!(of(text), Ok(packets.clone()), "{text}");
            assert_eq!(String::from(packets), text);
        }
        assert!(of(" ").is_err());
    }
}
