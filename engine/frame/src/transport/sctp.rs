//! View of SCTP common headers.

use crate::{
    field::{be16, fixed_header, ports},
    malformed::Malformed,
};

fixed_header! {
    /// View of an SCTP common header: RFC 9260 section 3.1.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0..2 | source port |
    /// | 2..4 | destination port |
    /// | 4..8 | verification tag |
    /// | 8..12 | checksum |
    Sctp: 12, SctpShort
}

ports!(Sctp.0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let bytes = [0x0b, 0x59, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0];
        let sctp = Sctp::new(&bytes).unwrap();
        assert_eq!((sctp.src_port(), sctp.dst_port()), (2905, 1));
        assert_eq!(Sctp::new(&bytes[..11]).unwrap_err(), Malformed::SctpShort);
    }
}
