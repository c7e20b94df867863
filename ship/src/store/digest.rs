//! SHA-256 digests of objects.

use sha2::Sha256;
use std::{
    fmt::{self, Display, Formatter},
    fs::File,
    io,
    os::unix::fs::FileExt,
};

/// Number of bytes that are read from a file at a time to compute its digest.
const STEP: usize = 1 << 20;

/// SHA-256 digest of an object's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the SHA-256 digest of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(<Sha256 as sha2::Digest>::digest(bytes).into())
    }

    /// Computes the SHA-256 digest of a file's first `len` bytes.
    ///
    /// # Errors
    /// The file cannot be read, or is shorter than `len`.
    pub fn from_file(file: &File, len: u64) -> io::Result<Self> {
        let mut hash = <Sha256 as sha2::Digest>::new();
        let mut buffer = vec![0; STEP];
        let mut at = 0;
        while at < len {
            // At most `STEP`.
            let step = &mut buffer[..(len - at).min(STEP as u64) as usize];
            file.read_exact_at(step, at)?;
            sha2::Digest::update(&mut hash, &*step);
            at += step.len() as u64;
        }
        Ok(Self(sha2::Digest::finalize(hash).into()))
    }
}

/// Prints the digest in hexadecimal, as `sha256sum` does.
impl Display for Digest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|it| write!(f, "{it:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn digests_are_those_of_the_standard() {
        // Examples of FIPS 180-4, published by NIST.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let million = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
        assert_eq!(Digest::from_bytes(b"abc").to_string(), abc);
        let letters = vec![b'a'; 1_000_000];
        assert_eq!(Digest::from_bytes(&letters).to_string(), million);
        let mut file = tempfile::tempfile().expect("a file");
        // Longer than one read, and longer than the requested length.
        let bytes: Vec<_> = (0..STEP + 1000).map(|i| i as u8).collect();
        file.write_all(&bytes).expect("written");
        let wanted = bytes.len() - 1;
        let digest = Digest::from_file(&file, wanted as u64).expect("read");
        assert_eq!(digest, Digest::from_bytes(&bytes[..wanted]));
        let short = Digest::from_file(&file, bytes.len() as u64 + 1);
        assert!(short.is_err());
    }
}
