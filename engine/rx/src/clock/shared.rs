//! A conversion for all loops.

use super::{Conversion, Form};
use crate::sync::{
    atomic::{AtomicU64, Ordering, fence},
    hint,
};

/// A conversion that one thread corrects and others read, without a lock.
#[derive(Debug)]
pub struct SharedConversion {
    form: Form,
    words: Words<4>,
}

impl SharedConversion {
    /// Shares a conversion.
    #[must_use]
    pub fn new(c: Conversion) -> Self {
        Self {
            form: c.form,
            words: Words::new(Self::words(&c)),
        }
    }

    fn words(c: &Conversion) -> [u64; 4] {
        [c.base, c.base_ns, c.slope, c.base_mono_ns]
    }

    /// The conversion of now. Meant to be called once a batch.
    #[inline]
    #[must_use]
    pub fn load(&self) -> Conversion {
        let [base, base_ns, slope, base_mono_ns] = self.words.load();
        Conversion {
            form: self.form,
            base,
            base_ns,
            slope,
            base_mono_ns,
        }
    }

    /// Replaces the conversion by another of the same form. One thread may call this.
    pub fn store(&self, c: &Conversion) {
        debug_assert_eq!(self.form, c.form);
        self.words.store(Self::words(c));
    }
}

/// Words that one thread replaces and others read, all of one store: a sequence lock.
#[derive(Debug)]
pub(crate) struct Words<const N: usize> {
    version: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Words<N> {
    pub(crate) fn new(words: [u64; N]) -> Self {
        Self {
            version: AtomicU64::new(0),
            words: words.map(AtomicU64::new),
        }
    }

    #[inline]
    pub(crate) fn load(&self) -> [u64; N] {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let words = std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.version.load(Ordering::Relaxed) == before {
                return words;
            }
            hint::spin_loop();
        }
    }

    /// One thread may call this.
    pub(crate) fn store(&self, words: [u64; N]) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }
}
