//! What is known of a batch's frames before each is decided on: their headers, and where their flows are.
//!
//! The flows of all are looked for together, so that the caches' misses of one pass while those of others are waited for.

use crate::{
    analysis::flow_table::{Entry, FlowPlace, Guess, HashSeed, Table, hash_seed},
    frame::Headers,
};

/// Frames looked at together: as many as a loop takes at once.
pub(super) const MOST: usize = 64;

/// A frame's headers.
#[derive(Default)]
pub(super) struct Parsed {
    pub(super) outer: Headers,
    inner: Option<Headers>,
}

impl Parsed {
    /// Parses a frame. In place, since a copy would wait for what has just been written.
    #[inline]
    pub(super) fn set(&mut self, bytes: &[u8]) {
        self.outer = Headers::parse(bytes);
        self.inner = self.outer.descend(bytes);
    }

    /// The innermost packet's.
    #[inline]
    pub(super) fn inner(&self) -> &Headers {
        self.inner.as_ref().unwrap_or(&self.outer)
    }
}

/// A frame that was looked at.
#[derive(Default)]
pub(super) struct Known {
    /// Where it lies.
    address: usize,
    pub(super) parsed: Parsed,
    /// What its flow is found by, and where that seems to be.
    pub(super) place: FlowPlace,
    pub(super) guess: Guess,
}

/// The frames of a batch.
pub(super) struct Ahead {
    seed: HashSeed,
    /// Those of the batch, the first `len`.
    known: Box<[Known]>,
    len: usize,
    next: usize,
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            seed: hash_seed(),
            known: std::iter::repeat_with(Known::default).take(MOST).collect(),
            len: 0,
            next: 0,
        }
    }
}

impl Ahead {
    /// By which flows are spread.
    #[inline]
    pub(super) fn seed(&self) -> HashSeed {
        self.seed
    }

    /// Forgets what is of another batch.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.next = 0;
    }

    /// Looks at frames, whose flows are in `table`. Those beyond the first [`MOST`] are on their own.
    pub(super) fn look<'a, E: Entry>(
        &mut self,
        frames: impl Iterator<Item = &'a [u8]>,
        table: &Table<E>,
    ) {
        self.clear();
        for (it, bytes) in self.known.iter_mut().zip(frames) {
            it.address = bytes.as_ptr().addr();
            it.parsed.set(bytes);
            let (outer, inner) = (&it.parsed.outer, it.parsed.inner());
            it.place.set(bytes, outer, inner, self.seed);
            table.prefetch(it.place.hash);
            self.len += 1;
        }
        let known = &mut self.known[..self.len];
        for it in known.iter_mut() {
            it.guess = table.guess(it.place.hash, &it.place.key);
        }
        for it in known {
            table.touch(it.guess, &it.place.key);
        }
    }

    /// What is known of a frame. They come in the order in which they were looked at, but some were refused before.
    #[inline]
    pub(super) fn of(&mut self, bytes: &[u8]) -> Option<&Known> {
        let address = bytes.as_ptr().addr();
        let rest = self.known[..self.len].get(self.next..)?;
        let at = rest.iter().position(|it| it.address == address)?;
        self.next += at + 1;
        self.known.get(self.next - 1)
    }
}
