//! The header, and the sealing of chunks.

use super::key::SecretKey;
use aes_gcm::{Aes256Gcm, Nonce, aead::AeadInOut};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io;
use zeroize::Zeroizing;

const MAGIC: &[u8; 8] = b"wqcapENC";
const VERSION: u8 = 1;
/// log2 of [`CHUNK`].
const CHUNK_BITS: u8 = 16;
/// Bytes of content in each chunk but the last.
pub(super) const CHUNK: usize = 1 << CHUNK_BITS;
/// Bytes behind the content of a chunk.
pub(super) const TAG: usize = 16;
/// Bytes before the first chunk.
pub(super) const HEADER: usize = 64;
/// Of these, the ones that each chunk authenticates: those that a key is made from, and what says how to read.
const BOUND: usize = 48;
const SALT: std::ops::Range<usize> = 16..BOUND;

/// Whether a file that begins so is sealed.
pub(super) fn is_sealed(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// The chunks of one file.
pub(super) struct Chunks {
    cipher: Aes256Gcm,
    pub(super) header: [u8; HEADER],
}

impl Chunks {
    /// Of a new file.
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

    /// Of a file that begins with this header. The error says why they cannot be opened.
    pub(super) fn of(header: [u8; HEADER], key: &SecretKey) -> Result<Self, String> {
        let form = (header[8], header[9]);
        if form != (VERSION, CHUNK_BITS) {
            return Err(format!(
                "is encrypted in form {}.{}, and this version of wqcap knows {VERSION}.{CHUNK_BITS}",
                form.0, form.1
            ));
        }
        let own = own_key(key, &header);
        if header[BOUND..] != check(&own) {
            return Err("is encrypted with another key".into());
        }
        Ok(Self {
            cipher: cipher(&own),
            header,
        })
    }

    /// Encrypts a chunk in place, and puts its tag behind it.
    pub(super) fn seal(&self, number: u64, last: bool, chunk: &mut Vec<u8>) -> io::Result<()> {
        let nonce = nonce(number, last);
        self.cipher
            .encrypt_in_place(&nonce, &self.header[..BOUND], chunk)
            .map_err(|e| io::Error::other(e.to_string()))
    }

    /// Decrypts a chunk in place, without its tag; `false`: it is not the one that was sealed.
    pub(super) fn open(&self, number: u64, last: bool, chunk: &mut Vec<u8>) -> bool {
        let nonce = nonce(number, last);
        self.cipher
            .decrypt_in_place(&nonce, &self.header[..BOUND], chunk)
            .is_ok()
    }
}

/// Three zeros, the chunk's number, and whether it is the last.
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

/// What tells that the key is the right one, and nothing of it.
fn check(own: &[u8; 32]) -> [u8; HEADER - BOUND] {
    let mut check = [0; HEADER - BOUND];
    check.copy_from_slice(&mac(own, &[b"wqcap sealed file: check"])[..HEADER - BOUND]);
    check
}

fn mac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mac = Hmac::<Sha256>::new_from_slice(key);
    let mut mac = mac.unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}
