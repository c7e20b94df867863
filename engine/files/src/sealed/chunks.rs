//! Header of a sealed (encrypted) capture file, and encryption of its chunks.

use super::key::{SecretKey, mac};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce, aead::AeadInOut};
use std::io;
use zeroize::Zeroizing;

const MAGIC: &[u8; 8] = b"wqcapENC";
const VERSION: u8 = 1;
/// Binary logarithm of [`CHUNK`], the length of a sealed (encrypted) file's chunks.
const CHUNK_BITS: u8 = 16;
/// Number of bytes of content in each chunk of a sealed (encrypted) file except the last.
pub(super) const CHUNK: usize = 1 << CHUNK_BITS;
/// Length of the authentication tag after the content of a sealed file's chunk, in bytes.
pub(super) const TAG: usize = 16;
/// Length of a sealed file's header before the first chunk, in bytes.
pub(super) const HEADER: usize = 64;
/// Number of leading bytes of a sealed file's header that each chunk authenticates: the format and
/// the salt, without the key check.
const BOUND: usize = 48;
const SALT: std::ops::Range<usize> = 16..BOUND;

/// Reason why a sealed (encrypted) file cannot be opened; the source of an [`io::Error`] of kind
/// `PermissionDenied`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnsealError {
    /// The file is sealed (encrypted), and the caller has no key.
    #[error("the file is encrypted, and no key is set; use --key FILE or --key-command COMMAND")]
    NoKey,
    /// The file is sealed (encrypted) with another key than the caller's.
    #[error("the file is encrypted with another key")]
    OtherKey,
    /// The file is sealed (encrypted) in a format that this version cannot read.
    #[error(
        "the file is encrypted in format {version}.{chunk_bits}; this version of wqcap reads {VERSION}.{CHUNK_BITS}"
    )]
    Format {
        /// Format version in the header of the sealed file.
        version: u8,
        /// Binary logarithm of the length in bytes of the sealed file's chunks.
        chunk_bits: u8,
    },
}

/// Returns `true` if a file that begins with the bytes `head` is sealed (encrypted).
pub(super) fn is_sealed(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// Cipher and header of one sealed (encrypted) file.
pub(super) struct Chunks {
    cipher: Aes256Gcm,
    pub(super) header: [u8; HEADER],
}

impl Chunks {
    /// Creates the header of a new sealed (encrypted) file, with a random salt.
    pub(super) fn begin(key: &SecretKey) -> io::Result<Self> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        (header[8], header[9]) = (VERSION, CHUNK_BITS);
        getrandom::fill(&mut header[SALT]).map_err(io::Error::other)?;
        let own = own_key(key, &header);
        header[BOUND..].copy_from_slice(&check(&own));
        Ok(Self {
            cipher: cipher(&own),
            header,
        })
    }

    /// Checks the header of a sealed (encrypted) file, and that `key` opens the file.
    pub(super) fn from_header(
        header: [u8; HEADER],
        key: Option<&SecretKey>,
    ) -> Result<Self, UnsealError> {
        let key = key.ok_or(UnsealError::NoKey)?;
        let (version, chunk_bits) = (header[8], header[9]);
        if (version, chunk_bits) != (VERSION, CHUNK_BITS) {
            return Err(UnsealError::Format {
                version,
                chunk_bits,
            });
        }
        let own = own_key(key, &header);
        if header[BOUND..] != check(&own) {
            return Err(UnsealError::OtherKey);
        }
        Ok(Self {
            cipher: cipher(&own),
            header,
        })
    }

    /// Encrypts a chunk of a sealed file in place and appends its tag.
    pub(super) fn seal(&self, number: u64, last: bool, chunk: &mut Vec<u8>) -> io::Result<()> {
        let nonce = nonce(number, last);
        self.cipher
            .encrypt_in_place(&nonce, &self.header[..BOUND], chunk)
            .map_err(|e| io::Error::other(e.to_string()))
    }

    /// Decrypts a chunk of a sealed file in place and removes its tag. Returns `false` if the chunk
    /// is not authentic.
    pub(super) fn open(&self, number: u64, last: bool, chunk: &mut Vec<u8>) -> bool {
        let nonce = nonce(number, last);
        self.cipher
            .decrypt_in_place(&nonce, &self.header[..BOUND], chunk)
            .is_ok()
    }
}

/// Returns the nonce of a sealed file's chunk: three zeros, the chunk's number, and 1 if it is the
/// last.
fn nonce(number: u64, last: bool) -> Nonce<aes_gcm::aead::consts::U12> {
    let mut nonce = [0; 12];
    nonce[3..11].copy_from_slice(&number.to_be_bytes());
    nonce[11] = last.into();
    nonce.into()
}

fn cipher(own: &[u8; 32]) -> Aes256Gcm {
    Aes256Gcm::new(&(*own).into())
}

fn own_key(key: &SecretKey, header: &[u8; HEADER]) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(mac(
        key.bytes(),
        &[b"wqcap sealed file: key", &header[SALT]],
    ))
}

/// Returns the key check of a sealed file's header, which identifies the right key without
/// revealing it.
fn check(own: &[u8; 32]) -> [u8; HEADER - BOUND] {
    let mut check = [0; HEADER - BOUND];
    check.copy_from_slice(&mac(own, &[b"wqcap sealed file: check"])[..HEADER - BOUND]);
    check
}
