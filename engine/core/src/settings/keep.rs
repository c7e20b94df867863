//! Bytes of files to keep: a size, or a share of the disk.

use super::{NumberOrText, SettingError, Size};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Limit on kept capture files: the value of `output.keep` or `output.keep_free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Number of bytes of capture files to keep, or of disk space to leave free; 0: no limit.
    Size(Size),
    /// Percentage of the file system of `output.dir` to use or to leave free, 1 to 100.
    Percent(u8),
}

impl Default for Keep {
    fn default() -> Self {
        Self::Size(Size(0))
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => size.fmt(f),
            Self::Percent(n) => write!(f, "{n}%"),
        }
    }
}

impl Serialize for Keep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Size(size) => size.serialize(serializer),
            Self::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrText {
            expected: "a size such as \"500GiB\", or a share of the disk such as \"80%\"",
            number: |n| Some(Self::Size(Size(n))),
            text: |text| {
                let Some(number) = text.strip_suffix('%') else {
                    return text.parse().map(Self::Size);
                };
                match number.trim_end().parse() {
                    Ok(n) if (1..=100).contains(&n) => Ok(Self::Percent(n)),
                    _ => Err(SettingError::NotAShare(text.to_owned())),
                }
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Table {
        keep: Keep,
    }

    #[test]
    fn sizes_and_shares_read_and_print() {
        for (text, keep, printed) in [
            ("keep = 0", Keep::default(), "keep = 0"),
            ("keep = 1024", Keep::Size(Size(1024)), "keep = 1024"),
            (
                "keep = \"2GiB\"",
                Keep::Size(Size(2 << 30)),
                "keep = \"2GiB\"",
            ),
            ("keep = \"80%\"", Keep::Percent(80), "keep = \"80%\""),
            ("keep = \"5 %\"", Keep::Percent(5), "keep = \"5%\""),
        ] {
            let table: Table = toml::from_str(text).expect(text);
            assert_eq!(table.keep, keep);
            assert_eq!(toml::to_string(&table).expect("prints").trim(), printed);
        }
        for text in ["0%", "101%", "-1%", "1.5%", "%", "half", "-5"] {
            let e = toml::from_str::<Table>(&format!("keep = \"{text}\"")).expect_err(text);
            assert!(e.to_string().contains(text), "{e}");
        }
    }
}
