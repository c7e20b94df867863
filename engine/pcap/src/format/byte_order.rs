//! Decoding of integers in a capture file of either byte order.

/// Byte order of the integers in a capture file or in a section of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// Byte order with the least significant byte first.
    Little,
    /// Byte order with the most significant byte first.
    Big,
}

impl ByteOrder {
    /// Byte order of the machine that runs this program.
    pub const NATIVE: Self = if cfg!(target_endian = "big") {
        Self::Big
    } else {
        Self::Little
    };

    /// Returns the byte order in which the first four bytes of a file, as a number, equal `magic`;
    /// `None`: neither.
    #[must_use]
    pub fn from_magic(magic: u32, bytes: &[u8]) -> Option<Self> {
        [Self::Little, Self::Big]
            .into_iter()
            .find(|order| order.u32(bytes, 0) == magic)
    }
}

macro_rules! numbers {
    ($($name:ident: $bytes:literal),+) => {
        impl ByteOrder {
            $(
                #[doc = concat!("Returns the ", $bytes, "-byte integer at `at`; 0 if `bytes` is too short.")]
                #[inline]
                #[must_use]
                pub fn $name(self, bytes: &[u8], at: usize) -> $name {
                    let native = $name::from_ne_bytes(array(bytes, at));
                    if self == Self::NATIVE { native } else { native.swap_bytes() }
                }
            )+
        }
    };
}

numbers!(u16: "two", u32: "four", u64: "eight", u128: "sixteen");

/// Returns the `N` bytes of `bytes` at offset `at`; zeros if `bytes` is too short.
#[inline]
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let there = bytes.get(at..).and_then(|rest| rest.first_chunk());
    there.copied().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_byte_orders_and_missing_bytes() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(ByteOrder::Little.u16(&bytes, 1), 0x0302);
        assert_eq!(ByteOrder::Big.u32(&bytes, 4), 0x0506_0708);
        assert_eq!(ByteOrder::Big.u64(&bytes, 0), 0x0102_0304_0506_0708);
        assert_eq!(ByteOrder::Big.u32(&bytes, 5), 0);
    }
}
