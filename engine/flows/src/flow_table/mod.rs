//! The flows of one queue in bounded memory: those of which records are kept, or those that are cut off.
//!
//! Flows lie side by side in one array, in no order; an index of cells (hash and place) leads to them by linear probing
//! from the first cell of a cache line. The index is at most half full, so nearly every flow has its cell on the line that
//! its hash names, where all cells are compared at once. A removal closes the gap it leaves, so that nothing ever needs
//! rebuilding: there is no moment at which one frame pays for many.
//!
//! Who has many flows to find first has their cells fetched, then guesses from these where the flows are, which has the
//! flows fetched, then touches them, since not every prefetch is heeded, and only then looks. A guess may be wrong; [`Table::search`] never is.
//!
//! Of a flow there is an entry, which each frame touches, and what is kept apart from it, on other cache lines
//! ([`Entry::Apart`]).
//!
//! Invariant: each flow has exactly one cell, and no empty cell lies between a cell and the first one of the line that its
//! hash names.

mod key;

#[cfg(any(test, feature = "records"))]
pub use key::ShortKey;
pub use key::{FlowPlace, HashSeed, Key, hash_seed};

use wqcap_memory::{prefer_huge_pages, prefetch, touch};

/// What a table keeps of a flow, as far as each of its frames touches it.
pub trait Entry: Copy {
    /// What is of no use before the flow's end, or is for few flows or frames. Its first cache line may help to find the flow.
    type Apart: Copy;
    /// Whether it is the flow that this key tells from others.
    fn is_of<'a>(&self, key: &Key, apart: impl FnOnce() -> &'a Self::Apart) -> bool
    where
        Self: 'a;
    /// Hash of the flow's key, by [`hash_seed`].
    fn hash(&self, apart: &Self::Apart) -> u32;
    /// Whether what is apart, on its first cache line, is needed to find the flow of this key.
    fn needs_apart(_key: &Key) -> bool {
        false
    }
}

/// Where in a table a flow seems to be; by default nowhere.
#[derive(Clone, Copy, Debug)]
pub struct Guess(u32);

impl Default for Guess {
    fn default() -> Self {
        Self(NOTHING)
    }
}

/// Flows of so many bytes each that fit a table's memory.
pub fn capacity(memory: u64, flow_bytes: u64) -> usize {
    usize::try_from(memory / flow_bytes)
        .unwrap_or(usize::MAX)
        .max(1)
}

/// One place in the index.
#[derive(Clone, Copy)]
struct Cell {
    hash: u32,
    /// Which flow; [`NOTHING`]: the cell is free.
    at: u32,
}

const NOTHING: u32 = u32::MAX;
const FREE: Cell = Cell {
    hash: 0,
    at: NOTHING,
};

/// Flows that lie in the caches of a core: a megabyte, which most have of their own.
const IN_CACHES: usize = 8192;

/// Cells of a line.
const CELLS: usize = 8;

/// The cells of one cache line, hashes first, so that they are compared with few instructions.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    hashes: [u32; CELLS],
    places: [u32; CELLS],
}

impl Line {
    const FREE: Self = Self {
        hashes: [FREE.hash; CELLS],
        places: [FREE.at; CELLS],
    };

    /// Where the cell with a hash leads to; anywhere if there is none, or more than one. All are looked at, since which one
    /// it is is chance.
    #[inline]
    fn guess(&self, hash: u32) -> u32 {
        let of_equal: [u32; CELLS] = std::array::from_fn(|i| {
            if self.hashes[i] == hash {
                self.places[i]
            } else {
                0
            }
        });
        of_equal.iter().fold(0, |places, place| places | place)
    }
}

/// A table of entries, and of what is kept apart from each.
pub struct Table<E: Entry> {
    index: Box<[Line]>,
    flows: Vec<E>,
    apart: Vec<E::Apart>,
    capacity: usize,
}

impl<E: Entry> Table<E> {
    /// Bytes of memory for each flow: at its sparsest, the index has four cells for each.
    pub const FLOW_BYTES: usize = size_of::<E>() + size_of::<E::Apart>() + 4 * size_of::<Cell>();
    /// More would not be told apart by the cells.
    const MOST: usize = 1 << 30;

    /// For `capacity` flows.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, Self::MOST);
        let lines = (2 * capacity).next_power_of_two().div_ceil(CELLS);
        let mut index = Vec::with_capacity(lines);
        prefer_huge_pages(index.spare_capacity_mut());
        index.resize(lines, Line::FREE);
        let mut flows = Vec::with_capacity(capacity);
        prefer_huge_pages(flows.spare_capacity_mut());
        let mut apart = Vec::with_capacity(capacity);
        prefer_huge_pages(apart.spare_capacity_mut());
        Self {
            index: index.into(),
            flows,
            apart,
            capacity,
        }
    }

    /// Number of flows in the table.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// `true` if the table has no flow.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Flows for which there is room, those that are there among them.
    #[cfg(feature = "records")]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// `true` if there is no room for another flow.
    pub fn is_full(&self) -> bool {
        self.flows.len() == self.capacity
    }

    /// Of a cell's number.
    #[inline]
    fn mask(&self) -> usize {
        CELLS * self.index.len() - 1
    }

    /// Where the search for a hash begins.
    #[inline]
    fn home(&self, hash: u32) -> usize {
        hash as usize & self.mask() & !(CELLS - 1)
    }

    #[inline]
    fn cell(&self, i: usize) -> Cell {
        let line = &self.index[i / CELLS];
        Cell {
            hash: line.hashes[i % CELLS],
            at: line.places[i % CELLS],
        }
    }

    fn set(&mut self, i: usize, cell: Cell) {
        let line = &mut self.index[i / CELLS];
        line.hashes[i % CELLS] = cell.hash;
        line.places[i % CELLS] = cell.at;
    }

    /// Whether it is a key's flow that lies at a place, if any does.
    #[inline]
    fn is_of(&self, at: usize, key: &Key) -> bool {
        (self.flows.get(at)).is_some_and(|it| it.is_of(key, || &self.apart[at]))
    }

    /// The place of a flow.
    #[inline]
    pub fn search(&self, hash: u32, key: &Key) -> Option<usize> {
        let mut i = self.home(hash);
        loop {
            let cell = self.cell(i);
            if cell.at == NOTHING {
                return None;
            }
            if cell.hash == hash && self.is_of(cell.at as usize, key) {
                return Some(cell.at as usize);
            }
            i = (i + 1) & self.mask();
        }
    }

    /// Returns the flow at index `at`.
    ///
    /// # Panics
    /// `at` is not below [`Table::len`].
    #[inline]
    pub fn get(&self, at: usize) -> &E {
        &self.flows[at]
    }

    /// Returns the flow at index `at` for changes.
    ///
    /// # Panics
    /// `at` is not below [`Table::len`].
    #[inline]
    pub fn get_mut(&mut self, at: usize) -> &mut E {
        &mut self.flows[at]
    }

    /// What is kept apart from a flow.
    #[cfg(feature = "records")]
    pub fn apart(&self, at: usize) -> &E::Apart {
        &self.apart[at]
    }

    /// A flow, and what is kept apart from it.
    #[cfg(feature = "records")]
    #[inline]
    pub fn both_mut(&mut self, at: usize) -> (&mut E, &mut E::Apart) {
        (&mut self.flows[at], &mut self.apart[at])
    }

    /// Enters a flow that is not there yet. The table must not be full.
    pub fn insert(&mut self, flow: E, apart: E::Apart) {
        debug_assert!(!self.is_full());
        let hash = flow.hash(&apart);
        let mut i = self.home(hash);
        while self.cell(i).at != NOTHING {
            i = (i + 1) & self.mask();
        }
        let cell = Cell {
            hash,
            at: place(self.flows.len()),
        };
        self.set(i, cell);
        self.flows.push(flow);
        self.apart.push(apart);
    }

    /// Takes a flow out, as it was entered. The last one moves to its place.
    pub fn remove(&mut self, at: usize) -> (E, E::Apart) {
        let gap = self.cell_of(at);
        self.close(gap);
        let last = self.flows.len() - 1;
        if at != last {
            let moved = self.cell_of(last);
            let hash = self.cell(moved).hash;
            self.set(
                moved,
                Cell {
                    hash,
                    at: place(at),
                },
            );
        }
        (self.flows.swap_remove(at), self.apart.swap_remove(at))
    }

    /// The cell that leads to a place.
    fn cell_of(&self, at: usize) -> usize {
        let mut i = self.home(self.flows[at].hash(&self.apart[at]));
        while self.cell(i).at != place(at) {
            i = (i + 1) & self.mask();
        }
        i
    }

    /// Frees a cell and moves back those behind it that would no longer be found.
    fn close(&mut self, mut gap: usize) {
        let mut i = gap;
        loop {
            i = (i + 1) & self.mask();
            let cell = self.cell(i);
            if cell.at == NOTHING {
                break;
            }
            let home = self.home(cell.hash);
            // How far it is from home, and from the gap.
            let (far, back) = (i.wrapping_sub(home), i.wrapping_sub(gap));
            if far & self.mask() >= back & self.mask() {
                self.set(gap, cell);
                gap = i;
            }
        }
        self.set(gap, FREE);
    }
}

/// For those who have many flows to find.
impl<E: Entry> Table<E> {
    /// Whether there are so many flows that what is looked for is seldom in a core's caches: only then is it of use to have
    /// it fetched.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.flows.len() > IN_CACHES
    }

    /// Has the cells that a hash leads to fetched.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        prefetch(&self.index, self.home(hash) / CELLS, 1);
    }

    /// Where a flow seems to be, by its hash alone: nearly every flow has its cell on its first line. What its key is
    /// compared with there is fetched.
    #[inline]
    pub fn guess(&self, hash: u32, key: &Key) -> Guess {
        let at = self.index[self.home(hash) / CELLS].guess(hash);
        prefetch(&self.flows, at as usize, usize::MAX);
        if E::needs_apart(key) {
            prefetch(&self.apart, at as usize, 1);
        }
        Guess(at)
    }

    /// Has what a key is compared with read, where its flow seems to be. To be called for many in a row, once all are
    /// guessed.
    #[inline]
    pub fn touch(&self, guess: Guess, key: &Key) {
        touch(&self.flows, guess.0 as usize, usize::MAX);
        if E::needs_apart(key) {
            touch(&self.apart, guess.0 as usize, 1);
        }
    }

    /// A flow, if it is where it seems to be. Otherwise it is to be looked for.
    #[inline]
    pub fn guessed_mut(&mut self, guess: Guess, key: &Key) -> Option<&mut E> {
        let at = guess.0 as usize;
        let is_of = self.is_of(at, key);
        self.flows.get_mut(at).filter(|_| is_of)
    }

    /// The place of a flow.
    #[cfg(any(test, feature = "records"))]
    #[inline]
    pub fn find(&self, guess: Guess, hash: u32, key: &Key) -> Option<usize> {
        let at = guess.0 as usize;
        if self.is_of(at, key) {
            return Some(at);
        }
        self.search(hash, key)
    }
}

// There are at most 2^30 flows.
fn place(at: usize) -> u32 {
    at as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use wqcap_frame::FiveTuple;

    /// Nothing but what is looked for.
    #[derive(Clone, Copy)]
    struct Bare(Key, u32);

    impl Entry for Bare {
        type Apart = u16;

        /// It has the number of its VLAN apart, too.
        fn is_of<'a>(&self, key: &Key, apart: impl FnOnce() -> &'a u16) -> bool {
            self.0 == *key && *apart() == key.vlans()[0]
        }

        fn hash(&self, _apart: &u16) -> u32 {
            self.1
        }

        fn needs_apart(_key: &Key) -> bool {
            true
        }
    }

    impl Bare {
        fn key(&self) -> &Key {
            &self.0
        }
    }

    /// Flow number `n`, told by its VLAN, with a hash that collides and fills more than a line around the index's end.
    fn flow(n: u16) -> Bare {
        Bare(Key::new(&FiveTuple::default(), [n, 0], None), hash(n))
    }

    fn hash(n: u16) -> u32 {
        u32::from(n % 5) + 54
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0_u16..40, any::<bool>()), 0..400)) {
            let mut table = Table::<Bare>::new(20);
            let mut map = HashMap::new();
            // Guesses of any age.
            let mut guesses = [Guess::default(); 40];
            for (n, insert) in steps {
                let wanted = flow(n);
                table.prefetch(hash(n));
                let old = guesses[usize::from(n)];
                let found = table.find(old, hash(n), wanted.key());
                guesses[usize::from(n)] = table.guess(hash(n), wanted.key());
                prop_assert_eq!(found, table.find(guesses[usize::from(n)], hash(n), wanted.key()));
                prop_assert_eq!(found, table.search(hash(n), wanted.key()));
                for guess in [old, guesses[usize::from(n)], Guess::default()] {
                    if let Some(flow) = table.guessed_mut(guess, wanted.key()) {
                        prop_assert!(found.is_some() && flow.key() == wanted.key());
                    }
                }
                prop_assert_eq!(found.is_some(), map.contains_key(&n));
                match (found, insert) {
                    (None, true) if !table.is_full() => {
                        table.insert(wanted, n);
                        map.insert(n, ());
                    }
                    (Some(at), false) => {
                        let (flow, apart) = table.remove(at);
                        prop_assert_eq!((flow.key(), apart), (wanted.key(), n));
                        map.remove(&n);
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), map.len());
                for n in map.keys() {
                    let at = table.search(hash(*n), flow(*n).key()).unwrap();
                    prop_assert_eq!(table.get(at).key().vlans()[0], *n);
                }
            }
        }
    }
}
