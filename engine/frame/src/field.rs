//! Helpers for header fields in network byte order and for headers of fixed length.

/// Returns the 16-bit value of two big-endian bytes.
#[inline]
pub(crate) fn be16(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

/// Declares a view of a header with `$len` bytes, whose constructor checks the length.
macro_rules! fixed_header {
    ($(#[$doc:meta])* $name:ident: $len:literal, $short:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<'a>(&'a [u8; $len]);

        impl<'a> $name<'a> {
            /// Length of this type of header in bytes.
            pub const LEN: usize = $len;

            /// Checks that all bytes of a fixed-length header are present.
            ///
            /// # Errors
            /// `bytes` ends within the header.
            #[inline]
            pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
                bytes.first_chunk().map(Self).ok_or(Malformed::$short)
            }
        }
    };
}
pub(crate) use fixed_header;

/// Declares a parsed header of variable length, with its length and the type of the next header.
/// The module adds the constructor.
macro_rules! parsed_header {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            len: usize,
            next: Next,
        }

        impl $name {
            /// Returns the length of the header in bytes, optional parts included.
            #[must_use]
            pub fn header_len(&self) -> usize {
                self.len
            }

            /// Returns the type of the header or payload that follows this header.
            #[must_use]
            pub fn next(&self) -> Next {
                self.next
            }
        }
    };
}
pub(crate) use parsed_header;

/// Adds port accessors to a header that begins with source and destination port.
macro_rules! ports {
    ($name:ident.$header:tt) => {
        impl $name<'_> {
            /// Returns the source port of the transport header.
            #[inline]
            #[must_use]
            pub fn src_port(&self) -> u16 {
                be16(self.$header[0], self.$header[1])
            }

            /// Returns the destination port of the transport header.
            #[inline]
            #[must_use]
            pub fn dst_port(&self) -> u16 {
                be16(self.$header[2], self.$header[3])
            }
        }
    };
}
pub(crate) use ports;
