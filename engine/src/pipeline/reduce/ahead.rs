//! What is known of a batch's frames before each is decided on: their headers, and where their flows are.
//!
//! The flows of all are looked for together, so that the caches' misses of one pass while those of others are waited for.

use super::cutoff::Cutoff;
use crate::{
    analysis::flow_table::{FlowPlace, Guess},
    frame::Headers,
};

/// Frames looked at together: as many as a loop takes at once.
pub(super) const MOST: usize = 64;

/// A frame's headers.
pub(super) struct Parsed {
    pub(super) outer: Headers,
    inner: Option<Headers>,
}

impl Parsed {
    #[inline]
    pub(super) fn of(bytes: &[u8]) -> Self {
        let outer = Headers::parse(bytes);
        let inner = outer.descend(bytes);
        Self { outer, inner }
    }

    /// The innermost packet's.
    #[inline]
    pub(super) fn inner(&self) -> &Headers {
        self.inner.as_ref().unwrap_or(&self.outer)
    }
}

/// A frame that was looked at.
pub(super) struct Known {
    /// Where it lies.
    address: usize,
    pub(super) parsed: Parsed,
    /// What its flow is found by, and where that seems to be.
    pub(super) place: FlowPlace,
    pub(super) guess: Guess,
}

/// The frames of a batch.
#[derive(Default)]
pub(super) struct Ahead {
    known: Vec<Known>,
    next: usize,
}

impl Ahead {
    /// Forgets what is of another batch.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.next = 0;
    }

    /// Looks at frames. Those beyond the first [`MOST`] are on their own.
    pub(super) fn look<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>, cutoff: &Cutoff) {
        self.clear();
        for bytes in frames.take(MOST) {
            let parsed = Parsed::of(bytes);
            let place = cutoff.place(bytes, &parsed.outer, parsed.inner());
            cutoff.prefetch(&place);
            self.known.push(Known {
                address: bytes.as_ptr().addr(),
                parsed,
                place,
                guess: Guess::default(),
            });
        }
        for it in &mut self.known {
            it.guess = cutoff.guess(&it.place);
        }
        for it in &self.known {
            cutoff.touch(it.guess);
        }
    }

    /// What is known of a frame. They come in the order in which they were looked at, but some were refused before.
    #[inline]
    pub(super) fn of(&mut self, bytes: &[u8]) -> Option<&Known> {
        let address = bytes.as_ptr().addr();
        let rest = self.known.get(self.next..)?;
        let at = rest.iter().position(|it| it.address == address)?;
        self.next += at + 1;
        self.known.get(self.next - 1)
    }
}
