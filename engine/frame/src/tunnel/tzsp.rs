//! TZSP headers: frames that access points and routers send to a sniffer.

use crate::{field::parsed_header, malformed::Malformed, next::Next};

parsed_header! {
    /// Parsed TZSP header, with its tagged fields. Its layout is that of tshark's packet-tzsp.c.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0 | version, 1 |
    /// | 1 | type: 0 for a received frame, 1 for a frame to send |
    /// | 2..4 | encapsulated protocol: 1 for Ethernet, 18 for 802.11 |
    /// | 4.. | tagged fields: 0 is padding and 1 the end; others have length and content |
    Tzsp
}

impl Tzsp {
    /// Maximum number of tagged fields that are parsed; real headers have about ten.
    const MOST_FIELDS: usize = 64;

    /// Parses a TZSP header.
    ///
    /// # Errors
    /// `bytes` ends within the header.
    pub fn new(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut len = 4;
        let next = match bytes {
            [1, 0 | 1, 0, 1, ..] => Next::Ethernet,
            [1, 0 | 1, 0, 18, ..] => Next::Wlan,
            [_, _, _, _, ..] => {
                let next = Next::Payload;
                return Ok(Self { len, next });
            }
            _ => return Err(Malformed::TunnelShort),
        };
        for _ in 0..Self::MOST_FIELDS {
            let rest = bytes.get(len..).unwrap_or_default();
            len += match *rest {
                [1, ..] => {
                    len += 1;
                    return Ok(Self { len, next });
                }
                [0, ..] => 1,
                [_, content, ..] => 2 + usize::from(content),
                _ => return Err(Malformed::TunnelShort),
            };
        }
        let next = Next::Payload;
        Ok(Self { len, next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<(usize, Next), Malformed> {
        Tzsp::new(bytes).map(|it| (it.header_len(), it.next()))
    }

    #[test]
    fn tagged_fields_are_skipped() {
        assert_eq!(parse(&[1, 0, 0, 1, 1, 9]), Ok((5, Next::Ethernet)));
        let tagged = [1, 0, 0, 18, 0, 10, 1, 0xc4, 41, 2, 1, 1, 1];
        assert_eq!(parse(&tagged), Ok((13, Next::Wlan)));
        for len in 0..tagged.len() {
            assert_eq!(parse(&tagged[..len]), Err(Malformed::TunnelShort), "{len}");
        }
        // A keep-alive, another protocol, another version, endless fields.
        for other in [[1, 4, 0, 1], [1, 0, 0, 119], [2, 0, 0, 1]] {
            assert_eq!(parse(&other).unwrap().1, Next::Payload);
        }
        let endless = [&[1, 0, 0, 1][..], &[0; 100]].concat();
        assert_eq!(parse(&endless).unwrap().1, Next::Payload);
    }
}
