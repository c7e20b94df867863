//! Toeplitz key: 40 bytes that determine how flows spread and whether both directions of a flow go
//! to the same queue.
//!
//! **May import** `core`/`std` and `thiserror` only.
//!
//! **Invariant**: a key has exactly [`RssKey::LEN`] bytes, the only length that mlx5 accepts, and
//! `FromStr` parses the output of `Display` back to the same key.

use std::fmt;
use std::str::FromStr;

/// RSS key of 40 bytes, in the byte order of the uAPI's `rx_hash_key` and of `rx_hash_toeplitz_key`
/// in the PRM's TIR.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RssKey([u8; RssKey::LEN]);

impl RssKey {
    /// Number of bytes in an RSS key. mlx5 rejects any other length with EINVAL.
    pub const LEN: usize = 40;

    /// Number of hexadecimal digits in an RSS key's text form.
    pub const HEX_DIGITS: usize = 2 * Self::LEN;

    /// Symmetric RSS key, 0x6d5a repeated: both directions of a flow have the same hash. The key
    /// repeats every 16 bits, the smallest distance between two fields that a change of direction
    /// swaps.
    pub const SYMMETRIC: Self = {
        let mut key = [0; Self::LEN];
        let mut at = 0;
        while at < Self::LEN {
            key[at] = if at % 2 == 0 { 0x6d } else { 0x5a };
            at += 1;
        }
        Self(key)
    };

    /// RSS key of Microsoft's RSS verification suite ("Verifying the RSS hash calculation"), the
    /// default of many drivers. It is not symmetric.
    pub const MICROSOFT: Self = Self([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, //
        0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, //
        0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, //
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// Creates an RSS key from these bytes. Any 40 bytes are a valid key; their spread is not
    /// checked.
    #[must_use]
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Parses an RSS key of exactly 80 hexadecimal digits, upper or lower case, without prefix or
    /// separators.
    ///
    /// # Errors
    /// [`KeyError::Digit`] for the first character that is not a hexadecimal digit, otherwise
    /// [`KeyError::Length`].
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        let mut key = [0u8; Self::LEN];
        let mut digits = 0;
        for found in text.chars() {
            let digit = found.to_digit(16).ok_or(KeyError::Digit {
                found,
                position: digits + 1,
            })?;
            if let Some(byte) = key.get_mut(digits / 2) {
                // `digit` is below 16, so the cast is lossless.
                *byte = *byte << 4 | digit as u8;
            }
            digits += 1;
        }
        if digits == Self::HEX_DIGITS {
            Ok(Self(key))
        } else {
            Err(KeyError::Length { digits })
        }
    }

    /// Returns the RSS key's bytes; the first key byte applies to the first byte of input.
    #[inline]
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Returns `true` if the RSS key gives both directions of every flow the same hash in every
    /// profile: IPv4 and IPv6, with and without ports.
    ///
    /// The result is exact and not a comparison with [`RssKey::SYMMETRIC`]: the hash is linear, so
    /// it suffices that each input bit and the bit that it is swapped with select the same 32 key
    /// bits.
    #[must_use]
    pub fn is_symmetric(&self) -> bool {
        /// First input bit and width in bits of each header field that the reverse direction of a
        /// flow swaps with the field behind it.
        const EXCHANGES: [(usize, usize); 4] = [(0, 32), (64, 16), (0, 128), (256, 16)];
        EXCHANGES.iter().all(|&(first, width)| {
            (first..first + width).all(|bit| self.window(bit) == self.window(bit + width))
        })
    }

    /// Returns the 32 bits of the RSS key that input bit `bit` adds to the hash. Bits are numbered
    /// 0 to 287, the most significant bit of the first byte first.
    pub(crate) fn window(&self, bit: usize) -> u32 {
        let mut wide = 0u64;
        for at in bit / 8..bit / 8 + 5 {
            wide = wide << 8 | u64::from(self.0.get(at).copied().unwrap_or(0));
        }
        // 40 bits contain the window at each of the 8 shifts; the cast keeps its 32 bits.
        (wide >> (8 - bit % 8)) as u32
    }

    fn write_hex(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for RssKey {
    type Err = KeyError;

    /// Parses an RSS key: `symmetric`, `microsoft`, or 80 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, KeyError> {
        match text {
            "symmetric" => Ok(Self::SYMMETRIC),
            "microsoft" => Ok(Self::MICROSOFT),
            // Text of digits alone is meant as a key, so its error is about digits. Other text is
            // treated as a misspelt name.
            hex if !hex.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                Self::from_hex(hex)
            }
            other if other.chars().count() == Self::HEX_DIGITS => Self::from_hex(other),
            other => Err(KeyError::Unknown {
                value: other.to_owned(),
            }),
        }
    }
}

impl fmt::Display for RssKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SYMMETRIC => f.pad("symmetric"),
            Self::MICROSOFT => f.pad("microsoft"),
            _ => self.write_hex(f),
        }
    }
}

impl fmt::Debug for RssKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RssKey(")?;
        self.write_hex(f)?;
        f.write_str(")")
    }
}

/// Error of a text that is not an RSS key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Text of hexadecimal digits only, but not as many as an RSS key has.
    #[error("the RSS key has {digits} hexadecimal digits; it must have exactly 80 (40 bytes)")]
    Length {
        /// Number of hexadecimal digits found in the RSS key.
        digits: usize,
    },
    /// Character in an RSS key that is not a hexadecimal digit.
    #[error("character {found:?} at position {position} of the RSS key is not a hexadecimal digit")]
    Digit {
        /// Character of the RSS key that is not a hexadecimal digit.
        found: char,
        /// Position of the invalid character in the RSS key, counted in characters from 1.
        position: usize,
    },
    /// Text that is neither the name of an RSS key nor resembles hexadecimal digits.
    #[error(
        "unknown RSS key {value:?}: it must be \"symmetric\", \"microsoft\" or \
         exactly 80 hexadecimal digits"
    )]
    Unknown {
        /// Text that was parsed as an RSS key.
        value: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toeplitz::tests::any_key;
    use proptest::prelude::*;

    #[test]
    fn names_are_read_and_printed() {
        for (name, key) in [
            ("symmetric", RssKey::SYMMETRIC),
            ("microsoft", RssKey::MICROSOFT),
        ] {
            assert_eq!(name.parse(), Ok(key));
            assert_eq!(key.to_string(), name);
        }
    }

    #[test]
    fn symmetric_key_repeats_its_pattern() {
        assert_eq!(RssKey::from_hex(&"6d5a".repeat(20)), Ok(RssKey::SYMMETRIC));
        assert_eq!(RssKey::from_hex(&"6D5A".repeat(20)), Ok(RssKey::SYMMETRIC));
        assert_eq!(
            format!("{:?}", RssKey::SYMMETRIC),
            format!("RssKey({})", "6d5a".repeat(20))
        );
    }

    #[test]
    fn length_errors_name_value_and_limit() {
        for digits in [0, 1, 78, 79, 81, 104] {
            let error = RssKey::from_hex(&"a".repeat(digits)).unwrap_err();
            assert_eq!(error, KeyError::Length { digits });
            let text = error.to_string();
            assert!(
                text.contains(&digits.to_string()) && text.contains("80"),
                "{text}"
            );
        }
        let error = "abcd".parse::<RssKey>().unwrap_err();
        assert_eq!(error, KeyError::Length { digits: 4 });
    }

    #[test]
    fn digit_errors_name_character_and_position() {
        let text = format!("{}x{}", "0".repeat(12), "0".repeat(67));
        let expected = KeyError::Digit {
            found: 'x',
            position: 13,
        };
        assert_eq!(RssKey::from_hex(&text), Err(expected.clone()));
        assert_eq!(text.parse::<RssKey>(), Err(expected));
        // A character of two bytes: the parser must not slice by bytes.
        let text = format!("{}\u{e9}", "0".repeat(79));
        assert!(matches!(
            RssKey::from_hex(&text),
            Err(KeyError::Digit { position: 80, .. })
        ));
    }

    #[test]
    fn unknown_names_are_quoted() {
        for value in ["", "Symmetric", "toeplitz", "0x6d5a"] {
            let error = value.parse::<RssKey>().unwrap_err();
            assert_eq!(
                error,
                KeyError::Unknown {
                    value: value.into()
                }
            );
            assert!(error.to_string().contains("80 hexadecimal digits"));
        }
    }

    #[test]
    fn symmetry_is_exact() {
        assert!(RssKey::SYMMETRIC.is_symmetric());
        assert!(!RssKey::MICROSOFT.is_symmetric());
        assert!(RssKey::new([0; 40]).is_symmetric());
        // The last key bit applies to no input; a change of any other bit breaks the symmetry.
        for bit in 0..320 {
            let mut bytes = *RssKey::SYMMETRIC.as_bytes();
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            assert_eq!(RssKey::new(bytes).is_symmetric(), bit == 319, "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(key in any_key()) {
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }

        #[test]
        fn no_text_panics(text in ".{0,100}") {
            let _ = text.parse::<RssKey>();
            let _ = RssKey::from_hex(&text);
        }
    }
}
