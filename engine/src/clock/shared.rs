//! A conversion for all loops.

use super::Conversion;
use crate::sync::{
    atomic::{AtomicU64, Ordering, fence},
    hint,
};

/// A conversion that one thread corrects and others read, without a lock: a sequence lock over three words.
#[derive(Debug)]
pub struct SharedConversion {
    version: AtomicU64,
    words: [AtomicU64; 3],
}

impl SharedConversion {
    /// Shares a conversion.
    #[must_use]
    pub fn new(c: Conversion) -> Self {
        Self {
            version: AtomicU64::new(0),
            words: [c.base_ticks, c.base_ns, c.slope].map(AtomicU64::new),
        }
    }

    /// The conversion of now. Meant to be called once a batch.
    #[inline]
    #[must_use]
    pub fn load(&self) -> Conversion {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let [base_ticks, base_ns, slope] =
                [0, 1, 2].map(|i: usize| self.words[i].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.version.load(Ordering::Relaxed) == before {
                return Conversion {
                    base_ticks,
                    base_ns,
                    slope,
                };
            }
            hint::spin_loop();
        }
    }

    /// Replaces the conversion. One thread may call this.
    pub fn store(&self, c: Conversion) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip([c.base_ticks, c.base_ns, c.slope]) {
            word.store(value, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }
}
