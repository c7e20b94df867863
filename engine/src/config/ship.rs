//! Values of `ship.sensor`, the name of a capture in a store, and `ship.packets`, the selection of
//! files that are sent.

use super::ConfigValueError;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Name of a sensor (a capture in the object store), used in object paths and queries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sensor(String);

impl Sensor {
    /// Maximum length of a sensor's name in bytes.
    const MAX_LEN: usize = 64;

    /// Returns the name of the sensor as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Sensor {
    type Error = ConfigValueError;

    fn try_from(text: String) -> Result<Self, ConfigValueError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let fits = (1..=Self::MAX_LEN).contains(&text.len());
        if fits && !text.starts_with('.') && text.chars().all(is_plain) {
            return Ok(Self(text));
        }
        let most = Self::MAX_LEN;
        Err(ConfigValueError::NotASensor { text, most })
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

/// Selection of capture files that are sent to the object store (`ship.packets`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ShipPackets {
    /// `ship.packets = "all"`: send all capture files.
    #[default]
    All,
    /// `ship.packets = "none"`: send no capture files, only files derived from them.
    None,
    /// Send capture files that may contain frames matched by this pcap-filter expression.
    Of(String),
}

impl TryFrom<String> for ShipPackets {
    type Error = ConfigValueError;

    fn try_from(text: String) -> Result<Self, ConfigValueError> {
        match text.trim() {
            "all" => Ok(Self::All),
            "none" => Ok(Self::None),
            "" => Err(ConfigValueError::NoPackets),
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
        let long = "x".repeat(Sensor::MAX_LEN + 1);
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
