//! Headers and flow positions of a batch's frames, computed before the decision on each frame.
//!
//! The flows of all frames are looked up together, so that the cache misses of several lookups
//! overlap.

use crate::{
    analysis::flow_table::{Entry, FlowPlace, Guess, HashSeed, Table, hash_seed},
    frame::Headers,
};

/// Maximum number of frames of a batch whose headers are parsed in advance: the default batch of a
/// receive loop.
pub(super) const MOST: usize = 64;

/// Parsed headers of a frame: of the outer packet and of the innermost one.
#[derive(Default)]
pub(super) struct ParsedHeaders {
    /// Parsed headers of a frame's outer packet.
    pub(super) outer: Headers,
    /// Parsed headers of a frame's innermost packet; `None` without a tunnel.
    inner: Option<Headers>,
}

impl ParsedHeaders {
    /// Parses the headers of the frame `bytes`, and writes them directly into this value. To return
    /// them and copy them here would be slower: the CPU would read words that it has just written.
    #[inline]
    pub(super) fn set(&mut self, bytes: &[u8]) {
        self.outer = Headers::parse(bytes);
        self.inner = self.outer.descend(bytes);
    }

    /// Returns the parsed headers of the frame's innermost packet.
    #[inline]
    pub(super) fn inner(&self) -> &Headers {
        self.inner.as_ref().unwrap_or(&self.outer)
    }
}

/// Frame whose headers were parsed in advance.
#[derive(Default)]
pub(super) struct ParsedAhead {
    /// Memory address of the parsed frame's bytes, by which the frame is recognised.
    address: usize,
    /// Parsed headers of the frame.
    pub(super) parsed: ParsedHeaders,
    /// Flow key and hash of the frame.
    pub(super) place: FlowPlace,
    /// Probable position of the frame's flow in the flow table.
    pub(super) guess: Guess,
}

/// Frames of a batch whose headers were parsed in advance.
pub(super) struct ParsedBatch {
    /// Seed of the hash of a flow's key.
    seed: HashSeed,
    /// Frames parsed in advance; the first `len` are valid.
    known: Box<[ParsedAhead]>,
    /// Number of frames of the present batch that were parsed in advance.
    len: usize,
    /// Index from which the next frame is searched among those parsed in advance.
    next: usize,
}

impl Default for ParsedBatch {
    fn default() -> Self {
        Self {
            seed: hash_seed(),
            known: std::iter::repeat_with(ParsedAhead::default)
                .take(MOST)
                .collect(),
            len: 0,
            next: 0,
        }
    }
}

impl ParsedBatch {
    /// Returns the seed of the hash of a flow's key.
    #[inline]
    pub(super) fn seed(&self) -> HashSeed {
        self.seed
    }

    /// Removes the parsed frames of the previous batch.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.next = 0;
    }

    /// Parses the headers of the first [`MOST`] frames and prefetches the entries of their flows in
    /// `table`. Further frames are parsed when they are decided on.
    pub(super) fn prepare<'a, E: Entry>(
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

    /// Returns the parsed headers and flow of a frame, or `None` if it was not parsed in advance.
    ///
    /// Frames must be requested in the order of [`ParsedBatch::prepare`]. Frames refused by an
    /// earlier step may be missing.
    #[inline]
    pub(super) fn find(&mut self, bytes: &[u8]) -> Option<&ParsedAhead> {
        let address = bytes.as_ptr().addr();
        let rest = self.known[..self.len].get(self.next..)?;
        let at = rest.iter().position(|it| it.address == address)?;
        self.next += at + 1;
        self.known.get(self.next - 1)
    }
}
