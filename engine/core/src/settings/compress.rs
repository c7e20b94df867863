//! Compression of capture files.

use super::SettingError;
use serde::{Deserialize, Serialize};

/// Compression of capture files (`output.compress`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Compress {
    /// `"none"`: capture files are not compressed.
    #[default]
    None,
    /// `"zstd"` or `"zstd:LEVEL"`: zstd compression, level 1 to 22.
    Zstd(Option<u8>),
    /// `"lz4"`: compression in LZ4 frames.
    Lz4,
}

impl Compress {
    /// Returns the file name suffix of the compression, such as `.zst`; empty without compression.
    /// It follows the suffix of the file format.
    #[must_use]
    pub fn ending(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Zstd(_) => ".zst",
            Self::Lz4 => ".lz4",
        }
    }
}

impl TryFrom<String> for Compress {
    type Error = SettingError;

    fn try_from(text: String) -> Result<Self, SettingError> {
        match text.as_str() {
            "none" => Ok(Self::None),
            "zstd" => Ok(Self::Zstd(None)),
            "lz4" => Ok(Self::Lz4),
            _ => text
                .strip_prefix("zstd:")
                .and_then(|level| level.parse().ok())
                .filter(|level| (1..=22).contains(level))
                .map(|level| Self::Zstd(Some(level)))
                .ok_or(SettingError::NotACompression(text)),
        }
    }
}

impl From<Compress> for String {
    fn from(compress: Compress) -> Self {
        match compress {
            Compress::None => "none".into(),
            Compress::Zstd(None) => "zstd".into(),
            Compress::Zstd(Some(level)) => format!("zstd:{level}"),
            Compress::Lz4 => "lz4".into(),
        }
    }
}
