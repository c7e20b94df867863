//! Parser of QUIC Initial packets (versions 1 and 2) that carry the client's hello: RFC 9000, RFC
//! 9001 section 5.2, RFC 9369.
//!
//! The keys of Initial packets are derived from a connection ID that the first packet contains in
//! clear text, so any observer can decrypt them. The hello may be split into many pieces, in any
//! order, over several packets.

use aes::{
    Aes128Enc,
    cipher::{Block, BlockCipherEncrypt},
};
use aes_gcm::{Aes128Gcm, KeyInit, aead::AeadInOut};
use hkdf::Hkdf;
use sha2::Sha256;

/// Maximum length of a QUIC client's hello in bytes.
const MOST_HELLO: usize = 8192;
/// Maximum number of pieces in which a QUIC client's hello is accepted.
const MOST_PIECES: usize = 128;
/// Length in bytes of a QUIC authentication tag, and of the ciphertext sample for header
/// protection.
const TAG: usize = 16;
/// Maximum length of a QUIC connection ID in bytes: RFC 9000 section 17.2.
const MOST_ID: usize = 20;

/// Constants of a QUIC version that are needed to decrypt Initial packets.
struct Version {
    /// Version number of QUIC as the packet header has it.
    number: u32,
    /// Salt of a QUIC version's initial secret.
    salt: [u8; 20],
    /// Long packet type (2 bits) of an Initial packet in a QUIC version.
    initial: u8,
    /// HKDF label of the packet protection key of a QUIC version.
    key: &'static [u8],
    /// HKDF label of the initialisation vector of a QUIC version.
    iv: &'static [u8],
    /// HKDF label of the header protection key of a QUIC version.
    hp: &'static [u8],
}

/// QUIC versions whose Initial packets can be parsed: 1 and 2.
const VERSIONS: [Version; 2] = [
    // RFC 9001 section 5.2.
    Version {
        number: 1,
        salt: [
            0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8,
            0x0c, 0xad, 0xcc, 0xbb, 0x7f, 0x0a,
        ],
        initial: 0,
        key: b"quic key",
        iv: b"quic iv",
        hp: b"quic hp",
    },
    // RFC 9369 section 3.
    Version {
        number: 0x6b33_43cf,
        salt: [
            0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26,
            0x9d, 0xcb, 0xf9, 0xbd, 0x2e, 0xd9,
        ],
        initial: 1,
        key: b"quicv2 key",
        iv: b"quicv2 iv",
        hp: b"quicv2 hp",
    },
];

/// Returns the QUIC version of an Initial packet; `None` if the first bytes (long header, fixed
/// bit, type, version) are not those of an Initial packet.
fn version(bytes: &[u8]) -> Option<&'static Version> {
    let [first, a, b, c, d, ..] = *bytes else {
        return None;
    };
    let number = u32::from_be_bytes([a, b, c, d]);
    let version = VERSIONS.iter().find(|it| it.number == number)?;
    (first & 0xf0 == 0xc0 | version.initial << 4).then_some(version)
}

/// Returns `true` if a UDP datagram begins with a QUIC Initial packet.
#[inline]
pub(crate) fn is_initial(bytes: &[u8]) -> bool {
    version(bytes).is_some()
}

/// Encrypted QUIC Initial packet in a datagram.
struct Initial<'a> {
    /// QUIC version of the Initial packet.
    version: &'static Version,
    /// Destination connection ID of the Initial packet.
    id: &'a [u8],
    /// All bytes of the Initial packet, headers included.
    bytes: &'a [u8],
    /// Offset of the packet number field in the Initial packet.
    number: usize,
}

impl<'a> Initial<'a> {
    /// Parses the first Initial packet of a datagram: RFC 9000 section 17.2.2.
    fn first(datagram: &'a [u8]) -> Option<Self> {
        let version = version(datagram)?;
        let mut rest = datagram.get(5..)?;
        let id = connection_id(&mut rest)?;
        let _sender = connection_id(&mut rest)?;
        let token = varint(&mut rest)?;
        let _token = take(&mut rest, token)?;
        let len = varint(&mut rest)?;
        let number = datagram.len() - rest.len();
        let _protected = take(&mut rest, len)?;
        Some(Self {
            version,
            id,
            bytes: &datagram[..datagram.len() - rest.len()],
            number,
        })
    }
}

/// Returns the next `len` bytes of a QUIC packet, and advances `rest`; `None` if it is shorter.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    Some(head)
}

/// Returns the next byte of a QUIC packet, and advances `rest`; `None` at its end.
fn byte(rest: &mut &[u8]) -> Option<u8> {
    take(rest, 1).map(|it| it[0])
}

/// Returns the next QUIC connection ID, which is preceded by its length.
fn connection_id<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::from(byte(rest)?);
    (len <= MOST_ID).then(|| take(rest, len))?
}

/// Returns the next QUIC variable-length integer: RFC 9000 section 16. `None` if it exceeds
/// `usize`.
fn varint(rest: &mut &[u8]) -> Option<usize> {
    let first = byte(rest)?;
    let more = take(rest, (1 << (first >> 6)) - 1)?;
    let value = more.iter().fold(u64::from(first & 0x3f), |value, it| {
        value << 8 | u64::from(*it)
    });
    usize::try_from(value).ok()
}

/// Keys of a QUIC client's Initial packets.
struct InitialKeys {
    /// Cipher of the QUIC packet protection.
    aead: Aes128Gcm,
    /// Initialisation vector of the QUIC packet protection.
    iv: [u8; 12],
    /// Cipher of the QUIC header protection.
    hp: Aes128Enc,
}

impl InitialKeys {
    /// Derives the keys of Initial packets from the client's first destination connection ID: RFC
    /// 9001 section 5.2.
    fn derive(version: &Version, id: &[u8]) -> Option<Self> {
        let initial = Hkdf::<Sha256>::new(Some(&version.salt), id);
        let client: [u8; 32] = expand(&initial, b"client in")?;
        let client = Hkdf::<Sha256>::from_prk(&client).ok()?;
        let (key, hp): ([u8; 16], [u8; 16]) =
            (expand(&client, version.key)?, expand(&client, version.hp)?);
        Some(Self {
            aead: Aes128Gcm::new(&key.into()),
            iv: expand(&client, version.iv)?,
            hp: Aes128Enc::new(&hp.into()),
        })
    }

    /// Decrypts a QUIC Initial packet and returns its QUIC frames: RFC 9001 sections 5.3 and 5.4.
    /// `None` if the packet is protected with other keys or damaged.
    fn open(&self, packet: &Initial<'_>) -> Option<Vec<u8>> {
        let protected = packet.bytes.get(packet.number..)?;
        // The sample begins 4 bytes after the start of the packet number, which is its maximum
        // length.
        let sample: [u8; TAG] = *protected.get(4..)?.first_chunk()?;
        let mut mask = Block::<Aes128Enc>::from(sample);
        self.hp.encrypt_block(&mut mask);
        let mut header = packet.bytes.get(..packet.number + 4)?.to_vec();
        header[0] ^= mask[0] & 0x0f;
        let len = usize::from(header[0] & 3) + 1;
        let mut nonce = self.iv;
        for at in 0..len {
            let masked = &mut header[packet.number + at];
            *masked ^= mask[1 + at];
            nonce[12 - len + at] ^= *masked;
        }
        header.truncate(packet.number + len);
        let (frames, tag) = protected.get(len..)?.split_last_chunk::<TAG>()?;
        let mut frames = frames.to_vec();
        self.aead
            .decrypt_inout_detached(
                &nonce.into(),
                &header,
                frames.as_mut_slice().into(),
                &(*tag).into(),
            )
            .ok()?;
        Some(frames)
    }
}

/// Derives a QUIC key by HKDF-Expand-Label with an empty context: RFC 8446 section 7.1.
fn expand<const N: usize>(secret: &Hkdf<Sha256>, label: &[u8]) -> Option<[u8; N]> {
    let len = u16::try_from(N).ok()?.to_be_bytes();
    let label_len = [u8::try_from(b"tls13 ".len() + label.len()).ok()?];
    let mut out = [0; N];
    secret
        .expand_multi_info(&[&len, &label_len, b"tls13 ", label, &[0]], &mut out)
        .ok()?;
    Some(out)
}

/// Received pieces of a QUIC client's hello.
pub(crate) struct HelloPieces {
    /// Keys of the Initial packets that carry the QUIC client's hello.
    keys: InitialKeys,
    /// Received pieces of the TLS ClientHello: the offset of each in the hello, and its bytes.
    pieces: Vec<(usize, Vec<u8>)>,
    /// Total length of all received pieces of the QUIC client's hello in bytes.
    held: usize,
}

impl HelloPieces {
    /// Collects the pieces of the hello in a QUIC client's first datagram, and derives the keys
    /// from its connection ID. Returns `None` if the datagram cannot be decrypted.
    pub(crate) fn begin(datagram: &[u8]) -> Option<Self> {
        let first = Initial::first(datagram)?;
        let mut pieces = Self {
            keys: InitialKeys::derive(first.version, first.id)?,
            pieces: Vec::new(),
            held: 0,
        };
        pieces.add(datagram)?;
        Some(pieces)
    }

    /// Adds the pieces of the hello in the Initial packets of a datagram. Returns `None` if a
    /// packet cannot be decrypted or a limit is exceeded.
    pub(crate) fn add(&mut self, mut datagram: &[u8]) -> Option<()> {
        // Packets of other types or padding follow the Initial packets.
        while let Some(packet) = Initial::first(datagram) {
            let frames = self.keys.open(&packet)?;
            self.frames(&frames)?;
            datagram = &datagram[packet.bytes.len()..];
        }
        Some(())
    }

    /// Parses the QUIC frames of a client's Initial packet: RFC 9000 sections 17.2.2 and 19.
    fn frames(&mut self, mut rest: &[u8]) -> Option<()> {
        while !rest.is_empty() {
            match byte(&mut rest)? {
                // PADDING, PING.
                0 | 1 => {}
                // ACK, with or without ECN counts.
                kind @ (2 | 3) => {
                    let [_largest, _delay, ranges, _first] = varints(&mut rest)?;
                    for _ in 0..ranges {
                        let [_gap, _len] = varints(&mut rest)?;
                    }
                    if kind == 3 {
                        let [_ect0, _ect1, _ce] = varints(&mut rest)?;
                    }
                }
                // CRYPTO.
                6 => {
                    let [at, len] = varints(&mut rest)?;
                    let piece = take(&mut rest, len)?;
                    self.held += len;
                    let fits = at <= MOST_HELLO && self.held <= MOST_HELLO;
                    if !fits || self.pieces.len() == MOST_PIECES {
                        return None;
                    }
                    self.pieces.push((at, piece.to_vec()));
                }
                // CONNECTION_CLOSE; later frames are not needed.
                0x1c => return Some(()),
                _ => return None,
            }
        }
        Some(())
    }

    /// Returns the TLS handshake message of the QUIC client's hello if all its pieces have been
    /// received.
    pub(crate) fn hello(&mut self) -> Option<Vec<u8>> {
        self.pieces.sort_by_key(|(at, _)| *at);
        let mut hello = Vec::with_capacity(self.held);
        for (at, piece) in &self.pieces {
            // Skip bytes that an earlier piece contains (retransmission).
            let known = hello.len().checked_sub(*at)?;
            hello.extend_from_slice(piece.get(known..).unwrap_or_default());
        }
        let [_, a, b, c, ..] = *hello.as_slice() else {
            return None;
        };
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        (hello.len() >= 4 + len).then_some(hello)
    }

    /// Returns the memory in bytes that the received pieces of the QUIC client's hello occupy.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.held + self.pieces.capacity() * size_of::<(usize, Vec<u8>)>()
    }
}

/// Returns the next `N` QUIC variable-length integers of a packet, and advances `rest`.
fn varints<const N: usize>(rest: &mut &[u8]) -> Option<[usize; N]> {
    let mut values = [0; N];
    for value in &mut values {
        *value = varint(rest)?;
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{self, Carrier, Hello};

    /// Sample QUIC packets of appendix A.2 of RFC 9001 and RFC 9369, each preceded by the selection
    /// byte of the fuzz target.
    const SAMPLES: [&[u8]; 2] = [
        include_bytes!("../../../fuzz/corpus/names/quic-v1"),
        include_bytes!("../../../fuzz/corpus/names/quic-v2"),
    ];

    fn sample(at: usize) -> &'static [u8] {
        &SAMPLES[at][1..]
    }

    #[test]
    fn keys_of_the_rfc() {
        // RFC 9001 appendix A.1.
        let [one, _] = &VERSIONS;
        let id = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];
        let keys = InitialKeys::derive(one, &id).unwrap();
        let iv = [
            0xfa, 0x04, 0x4b, 0x2f, 0x42, 0xa3, 0xfd, 0x3b, 0x46, 0xfb, 0x25, 0x5c,
        ];
        assert_eq!(keys.iv, iv);
    }

    #[test]
    fn packets_of_the_rfcs() {
        for at in [0, 1] {
            assert_eq!(sample(at).len(), 1200);
            assert!(is_initial(sample(at)));
            let mut pieces = HelloPieces::begin(sample(at)).expect("the sample decrypts");
            let hello = pieces.hello().expect("the hello is complete");
            assert_eq!(hello.len(), 241);
            let hello = tls::message(&hello, Carrier::Quic);
            let Some(Hello::Client { sni, alpn, .. }) = hello else {
                panic!("{hello:?}")
            };
            assert_eq!(sni.as_deref(), Some("example.com"));
            assert_eq!(alpn.as_deref(), Some("alpn"));
        }
    }

    #[test]
    fn damaged_or_foreign_packets_cannot_be_decrypted() {
        let mut damaged = sample(0).to_vec();
        damaged[700] ^= 1;
        assert!(HelloPieces::begin(&damaged).is_none());
        // The packet type of version 2 in a packet of version 1.
        let mut other = sample(0).to_vec();
        other[0] |= 0x10;
        assert!(!is_initial(&other));
        let mut pieces = HelloPieces::begin(sample(0)).unwrap();
        assert!(pieces.add(sample(1)).is_none());
        for len in 0..1200 {
            assert!(HelloPieces::begin(&sample(0)[..len]).is_none(), "{len}");
        }
    }

    fn pieces() -> HelloPieces {
        let mut pieces = HelloPieces::begin(sample(0)).unwrap();
        (pieces.pieces, pieces.held) = (Vec::new(), 0);
        pieces
    }

    #[test]
    fn a_hello_in_pieces() {
        let mut pieces = pieces();
        // The last piece, a PING, a piece that is sent twice, ACKs. The middle piece is missing.
        let frames = [6, 5, 2, 8, 9, 1, 6, 0, 3, 1, 0, 0, 6, 0, 3, 1, 0, 0, 0, 0];
        assert_eq!(pieces.frames(&frames), Some(()));
        assert_eq!(pieces.frames(&[2, 1, 0, 1, 0, 0, 0]), Some(()));
        assert_eq!(pieces.frames(&[3, 1, 0, 0, 0, 7, 7, 7]), Some(()));
        assert_eq!(pieces.hello(), None);
        assert_eq!(pieces.frames(&[6, 2, 3, 0, 3, 7, 0x1c, 9]), Some(()));
        assert_eq!(pieces.hello(), Some(vec![1, 0, 0, 3, 7, 8, 9]));
        // STREAM is not allowed, and the CRYPTO frame is truncated.
        assert_eq!(pieces.frames(&[8, 0]), None);
        assert_eq!(pieces.frames(&[6, 7, 9, 0]), None);
    }

    #[test]
    fn memory_is_bounded() {
        // A large offset, many empty pieces, many long pieces.
        assert_eq!(pieces().frames(&[6, 0x80, 0, 0xff, 0xff, 0]), None);
        assert_eq!(pieces().frames(&[6, 0, 0].repeat(MOST_PIECES + 1)), None);
        let long = [&[6, 0, 0x44, 0][..], &[0; 1024]].concat();
        let mut pieces = pieces();
        for _ in 0..8 {
            assert_eq!(pieces.frames(&long), Some(()));
        }
        assert_eq!(pieces.frames(&long), None);
        assert!(pieces.bytes() < 3 * MOST_HELLO);
    }
}
