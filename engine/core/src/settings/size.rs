//! Number of bytes with an optional unit: `2048`, `1500B`, `256MiB`.

use super::SettingError;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// Configured number of bytes. `Display` is exact: the printed text parses to the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Names and bytes of the size units, the largest binary unit first: [`fmt::Display`] uses the
/// first that divides the number.
const UNITS: [(&str, u64); 13] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
    ("T", 1 << 40),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
];

/// Sizes below this number of bytes are printed without a unit: 2048, not 2KiB.
const PLAIN_BELOW: u64 = 64 << 10;

impl Size {
    /// Returns the configured number of bytes as `u32`, at most `u32::MAX`. Configuration keys that
    /// use this function are limited to much smaller values.
    #[must_use]
    pub fn to_u32(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS
            .iter()
            .take(4)
            .find(|(_, bytes)| self.0 >= PLAIN_BELOW && self.0.is_multiple_of(*bytes));
        match unit {
            Some((name, bytes)) => write!(f, "{}{name}", self.0 / bytes),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for Size {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let text = text.trim();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = (&text[..digits], text[digits..].trim());
        if number.is_empty() {
            return Err(SettingError::NotASize(text.to_owned()));
        }
        let bytes = match UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        {
            Some((_, bytes)) => *bytes,
            None if unit.is_empty() => 1,
            None => {
                let (text, unit) = (text.to_owned(), unit.to_owned());
                return Err(SettingError::UnknownUnit { text, unit });
            }
        };
        number
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(bytes))
            // TOML integers are signed: a larger number could not be printed.
            .filter(|n| i64::try_from(*n).is_ok())
            .map(Self)
            .ok_or_else(|| SettingError::SizeTooLarge(text.to_owned()))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.to_string();
        if text.ends_with('B') {
            serializer.serialize_str(&text)
        } else {
            serializer.serialize_u64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrText {
            expected: "a size: bytes, or a string such as \"256MiB\"",
            number: |n| Some(Self(n)),
            text: str::parse,
        })
    }
}

/// Visitor for a configuration value that is written as a whole number or as a string.
pub struct NumberOrText<T, E> {
    /// Description of the expected configuration value, for error messages.
    pub expected: &'static str,
    /// Converts a configuration value that is a whole number; `None`: it is out of range.
    pub number: fn(u64) -> Option<T>,
    /// Parses a configuration value that is a string.
    pub text: fn(&str) -> Result<T, E>,
}

impl<T, P: fmt::Display> de::Visitor<'_> for NumberOrText<T, P> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        let value = u64::try_from(n).ok().and_then(self.number);
        value.ok_or_else(|| E::invalid_value(de::Unexpected::Signed(n), &self))
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<T, E> {
        (self.number)(n).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(n), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_units_parse() {
        for (text, bytes) in [
            ("2048", 2048),
            ("1500B", 1500),
            ("4 GiB", 4 << 30),
            ("256mib", 256 << 20),
            ("5MB", 5_000_000),
            ("1G", 1 << 30),
            ("64k", 64 << 10),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn malformed_sizes_are_refused() {
        for text in [
            "",
            "GiB",
            "4Gi",
            "-1",
            "1.5GiB",
            "99999999999TiB",
            "4 GiB GiB",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn printing_is_exact() {
        for bytes in [
            0,
            1,
            2048,
            1500,
            65536,
            65537,
            256 << 20,
            (256 << 20) + 1,
            3 << 40,
        ] {
            let text = Size(bytes).to_string();
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        assert_eq!(Size(4 << 30).to_string(), "4GiB");
        assert_eq!(Size(2048).to_string(), "2048");
    }
}
