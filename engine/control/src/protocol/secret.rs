//! Memory for keys: zeroised when it is dropped, left out of core dumps, and kept out of swap where that is allowed.

use std::io;
use wqcap_verbs::memory::Region;
use zeroize::Zeroize;

/// The bytes of a key, on pages of their own.
pub(super) struct Secret(Region);

impl Secret {
    /// Memory for `len` bytes, which `fill` writes.
    ///
    /// # Errors
    /// There is no memory, or it cannot be left out of core dumps. Memory that may not be locked is a line in the log.
    pub(super) fn new(len: usize, fill: impl FnOnce(&mut [u8])) -> io::Result<Self> {
        let mut parts = Region::several(1, len).map_err(io::Error::other)?;
        let mut region = parts.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        region.leave_out_of_dumps()?;
        if let Err(e) = region.lock() {
            tracing::warn!(
                "keys may be written to swap: mlock of {len} bytes: {e}; raise `ulimit -l` (LimitMEMLOCK=)"
            );
        }
        fill(region.as_mut_slice());
        Ok(Self(region))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_slice(self.0.len())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.as_mut_slice().zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, os::unix::fs::FileExt};

    #[test]
    fn a_dropped_secret_is_zeroised() {
        // The other part keeps the pages mapped, so that they can be read after the drop.
        let mut parts = Region::several(2, 32).unwrap();
        let mut region = parts.remove(0);
        region.as_mut_slice().fill(7);
        let at = region.as_ptr().addr() as u64;
        let bytes = || {
            let mut bytes = [1; 32];
            let memory = File::open("/proc/self/mem").unwrap();
            memory.read_exact_at(&mut bytes, at).unwrap();
            bytes
        };
        let secret = Secret(region);
        assert_eq!(secret.bytes(), bytes());
        drop(secret);
        assert_eq!(bytes(), [0; 32]);
    }
}
