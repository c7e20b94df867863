//! Conversion of device stamps that all receive loops share.

use super::{Conversion, StampForm};
use crate::sync::{
    atomic::{AtomicU64, Ordering, fence},
    hint,
};

/// Stamp conversion that one thread updates and other threads read without a lock.
#[derive(Debug)]
pub struct SharedConversion {
    /// Form of the device stamps that were requested.
    form: StampForm,
    /// 1 after a receive loop has found that the device stamps in UTC instead; else 0.
    in_utc: AtomicU64,
    /// Fields of the stamp conversion that change, protected by a sequence lock.
    words: Words<4>,
}

impl SharedConversion {
    /// Creates a shared stamp conversion.
    #[must_use]
    pub fn new(c: Conversion) -> Self {
        Self {
            form: c.form,
            in_utc: AtomicU64::new(0),
            words: Words::new(Self::words(&c)),
        }
    }

    /// Returns the fields of a stamp conversion that change.
    fn words(c: &Conversion) -> [u64; 4] {
        [c.base, c.base_ns, c.slope, c.base_mono_ns]
    }

    /// Returns the present stamp conversion. Meant to be called once per frame batch.
    #[inline]
    #[must_use]
    pub fn load(&self) -> Conversion {
        let [base, base_ns, slope, base_mono_ns] = self.words.load();
        if self.is_in_utc() {
            return Conversion::utc(base_ns);
        }
        Conversion {
            form: self.form,
            base,
            base_ns,
            slope,
            base_mono_ns,
        }
    }

    /// Replaces the stamp conversion by another one for the same stamp form. Only one thread may
    /// call this.
    pub fn store(&self, c: &Conversion) {
        debug_assert!(self.form == c.form || self.is_in_utc());
        self.words.store(Self::words(c));
    }

    /// Returns `true` if the device stamps in UTC instead of the requested ticks.
    #[inline]
    #[must_use]
    pub fn is_in_utc(&self) -> bool {
        self.in_utc.load(Ordering::Relaxed) != 0
    }

    /// Converts device stamps as UTC from now on. Returns `true` for the first call.
    pub fn switch_to_utc(&self) -> bool {
        self.in_utc.swap(1, Ordering::Relaxed) == 0
    }
}

/// Sequence lock: one thread replaces its words, and other threads read them consistently.
#[derive(Debug)]
pub(crate) struct Words<const N: usize> {
    /// Version of the sequence lock's words, incremented before and after each store; odd while a
    /// store is in progress.
    version: AtomicU64,
    /// Words protected by the sequence lock.
    words: [AtomicU64; N],
}

impl<const N: usize> Words<N> {
    /// Creates a sequence lock with its initial words.
    pub(crate) fn new(words: [u64; N]) -> Self {
        Self {
            version: AtomicU64::new(0),
            words: words.map(AtomicU64::new),
        }
    }

    /// Returns the sequence lock's words as one store wrote them; spins while a store is in
    /// progress.
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

    /// Replaces all words of the sequence lock. Only one thread may call this.
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
