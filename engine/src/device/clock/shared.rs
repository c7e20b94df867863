//! A conversion for all loops.

use super::{Conversion, Form};
use crate::sync::{
    atomic::{AtomicU64, Ordering, fence},
    hint,
};

/// A conversion that one thread corrects and others read, without a lock: a sequence lock over its words.
#[derive(Debug)]
pub struct SharedConversion {
    form: Form,
    version: AtomicU64,
    words: [AtomicU64; 4],
}

impl SharedConversion {
    /// Shares a conversion.
    #[must_use]
    pub fn new(c: Conversion) -> Self {
        Self {
            form: c.form,
            version: AtomicU64::new(0),
            words: Self::words(&c).map(AtomicU64::new),
        }
    }

    fn words(c: &Conversion) -> [u64; 4] {
        [c.base, c.base_ns, c.slope, c.base_mono_ns]
    }

    /// The conversion of now. Meant to be called once a batch.
    #[inline]
    #[must_use]
    pub fn load(&self) -> Conversion {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let [base, base_ns, slope, base_mono_ns] =
                [0, 1, 2, 3].map(|i: usize| self.words[i].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.version.load(Ordering::Relaxed) == before {
                return Conversion {
                    form: self.form,
                    base,
                    base_ns,
                    slope,
                    base_mono_ns,
                };
            }
            hint::spin_loop();
        }
    }

    /// Replaces the conversion by another of the same form. One thread may call this.
    pub fn store(&self, c: &Conversion) {
        debug_assert_eq!(self.form, c.form);
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(Self::words(c)) {
            word.store(value, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }
}
