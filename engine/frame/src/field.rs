//! Fields in network order, and headers that have nothing but such.

/// Two bytes.
#[inline]
pub(crate) fn be16(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

/// Declares a header of so many bytes, and the check that they are all there.
macro_rules! fixed_header {
    ($(#[$doc:meta])* $name:ident: $len:literal, $short:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<'a>(&'a [u8; $len]);

        impl<'a> $name<'a> {
            /// Bytes of the header.
            pub const LEN: usize = $len;

            /// Checks that the header is whole.
            ///
            /// # Errors
            /// It is not.
            #[inline]
            pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
                bytes.first_chunk().map(Self).ok_or(Malformed::$short)
            }
        }
    };
}
pub(crate) use fixed_header;

/// Gives a header that begins with them its ports.
macro_rules! ports {
    ($name:ident.$header:tt) => {
        impl $name<'_> {
            /// Source port.
            #[inline]
            #[must_use]
            pub fn src_port(&self) -> u16 {
                be16(self.$header[0], self.$header[1])
            }

            /// Destination port.
            #[inline]
            #[must_use]
            pub fn dst_port(&self) -> u16 {
                be16(self.$header[2], self.$header[3])
            }
        }
    };
}
pub(crate) use ports;
