//! Numbers in either byte order, and pcapng's options.

/// The byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Order {
    /// This machine's.
    pub const NATIVE: Self = if cfg!(target_endian = "big") {
        Self::Big
    } else {
        Self::Little
    };

    /// The two bytes at `at`; 0 where there are none.
    #[inline]
    #[must_use]
    pub fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let two = array(bytes, at);
        match self {
            Self::Little => u16::from_le_bytes(two),
            Self::Big => u16::from_be_bytes(two),
        }
    }

    /// The four bytes at `at`; 0 where there are none.
    #[inline]
    #[must_use]
    pub fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let four = array(bytes, at);
        match self {
            Self::Little => u32::from_le_bytes(four),
            Self::Big => u32::from_be_bytes(four),
        }
    }

    /// The eight bytes at `at`; 0 where there are none.
    #[inline]
    #[must_use]
    pub fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let eight = array(bytes, at);
        match self {
            Self::Little => u64::from_le_bytes(eight),
            Self::Big => u64::from_be_bytes(eight),
        }
    }

    /// A stamp as pcapng has them: the high word first, whatever the byte order within a word.
    #[inline]
    pub(super) fn stamp(self, bytes: &[u8], at: usize) -> u64 {
        u64::from(self.u32(bytes, at)) << 32 | u64::from(self.u32(bytes, at + 4))
    }
}

#[inline]
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .unwrap_or([0; N])
}

/// The options of a block, up to their end or to the first that does not fit.
pub fn options(mut bytes: &[u8], order: Order) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let code = order.u16(bytes, 0);
        let len = usize::from(order.u16(bytes, 2));
        let value = bytes.get(4..4 + len).filter(|_| code != 0)?;
        bytes = bytes.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
        Some((code, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_and_no_bytes() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(Order::Little.u16(&bytes, 1), 0x0302);
        assert_eq!(Order::Big.u32(&bytes, 4), 0x0506_0708);
        assert_eq!(Order::Big.u64(&bytes, 0), 0x0102_0304_0506_0708);
        assert_eq!(Order::Little.stamp(&bytes, 0), 0x0403_0201_0807_0605);
        assert_eq!(Order::Big.u32(&bytes, 5), 0);
    }

    #[test]
    fn options_end_where_they_say_or_where_they_break() {
        let bytes = [2, 0, 3, 0, 9, 8, 7, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        let all: Vec<_> = options(&bytes, Order::Little).collect();
        assert_eq!(all, [(2, &[9, 8, 7][..]), (5, &[])]);
        let broken = [2, 0, 0, 0, 3, 0, 200, 0, 1];
        assert_eq!(options(&broken, Order::Little).count(), 1);
        assert_eq!(options(&[], Order::Big).count(), 0);
    }
}
