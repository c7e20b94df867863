//! Memory for keys: zeroised on drop, excluded from core dumps, and locked against swap if allowed.

use std::io;
use wqcap_verbs::memory::Region;
use zeroize::Zeroize;

/// Bytes of an authentication key, on memory pages that hold nothing else.
pub(super) struct Secret(Region);

impl Secret {
    /// Allocates memory for an authentication key of `len` bytes, which `fill` writes.
    ///
    /// # Errors
    /// The memory is not available, or cannot be excluded from core dumps. If it cannot be locked,
    /// only a warning is logged.
    pub(super) fn new(len: usize, fill: impl FnOnce(&mut [u8])) -> io::Result<Self> {
        let mut parts = Region::allocate_many(1, len).map_err(io::Error::other)?;
        let mut region = parts.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        region.exclude_from_core_dumps()?;
        if let Err(e) = region.lock() {
            tracing::warn!(
                "cannot lock the {len} bytes of a control key in memory: {e}; the key may be written to swap; raise `ulimit -l` (LimitMEMLOCK=)"
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
        let mut parts = Region::allocate_many(2, 32).unwrap();
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
