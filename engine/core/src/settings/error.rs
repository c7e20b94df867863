//! Errors of values of configuration keys.

/// Text that is not a valid value of a configuration key. It is quoted as given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// Text that is not a number of bytes.
    #[error(
        "{0:?} is not a size; write a number of bytes, or a number with B, KiB, MiB, GiB or TiB"
    )]
    NotASize(String),
    /// Number of bytes with an unknown unit.
    #[error(
        "{text:?}: the unit {unit:?} is not known; the units are B, KiB, MiB, GiB, TiB (also K, M, G, T) and KB, MB, GB, TB"
    )]
    UnknownUnit {
        /// Configured number with its unit, as given.
        text: String,
        /// Unit of the number, which is not known.
        unit: String,
    },
    /// Number of bytes above the largest integer of TOML.
    #[error("{0:?} is too large: a size is at most {most} bytes", most = i64::MAX)]
    SizeTooLarge(String),
    /// Percentage that is not a whole number from 1 to 100.
    #[error("{0:?}: a share of the disk must be a whole number from \"1%\" to \"100%\"")]
    NotAShare(String),
    /// Text that is not a span of time with its unit.
    #[error("{0:?} is not a time; write a number with its unit: 100ms, 60s, 5m, 2h")]
    NotASpan(String),
    /// Text that is not a compression of capture files.
    #[error(
        "{0:?} is not a compression; write \"none\", \"lz4\", \"zstd\" or \"zstd:1\" to \"zstd:22\""
    )]
    NotACompression(String),
    /// Text that is not an octal file mode.
    #[error("{0:?} is not a file mode; write it in octal: \"0660\"")]
    NotAFileMode(String),
}
