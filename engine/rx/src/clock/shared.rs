//! Conversion that is shared by all loops.

use super::{Conversion, StampForm};
use crate::sync::{
    atomic::{AtomicU64, Ordering, fence},
    hint,
};

/// Conversion that one thread updates and others read without a lock.
#[derive(Debug)]
pub struct SharedConversion {
    /// Form of the stamps, which does not change.
    form: StampForm,
    /// Fields of the conversion that change.
    words: Words<4>,
}

impl SharedConversion {
    /// Creates a shared conversion.
    #[must_use]
    pub fn new(c: Conversion) -> Self {
        Self {
            form: c.form,
            words: Words::new(Self::words(&c)),
        }
    }

    /// Returns the fields of a conversion that change.
    fn words(c: &Conversion) -> [u64; 4] {
        [c.base, c.base_ns, c.slope, c.base_mono_ns]
    }

    /// Returns the present conversion. Meant to be called once per batch.
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

    /// Replaces the conversion by another of the same form. Only one thread may call this.
    pub fn store(&self, c: &Conversion) {
        debug_assert_eq!(self.form, c.form);
        self.words.store(Self::words(c));
    }
}

/// Sequence lock: words that one thread replaces, and that others read consistently.
#[derive(Debug)]
pub(crate) struct Words<const N: usize> {
    /// Number of the store; odd while a store is in progress.
    version: AtomicU64,
    /// Words protected by the lock.
    words: [AtomicU64; N],
}

impl<const N: usize> Words<N> {
    /// Creates a sequence lock with its first words.
    pub(crate) fn new(words: [u64; N]) -> Self {
        Self {
            version: AtomicU64::new(0),
            words: words.map(AtomicU64::new),
        }
    }

    /// Returns the words of one store, and spins while a store is in progress.
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

    /// Replaces all words of the lock. Only one thread may call this.
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
