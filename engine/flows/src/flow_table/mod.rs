//! Table of the flows of one queue in bounded memory, for flow records or for the cutoff.
//!
//! Flows are stored in one array without order. An index of cells (hash and position) leads to them
//! by linear probing, which starts at the first cell of a cache line. The index is at most half
//! full, so nearly every flow has its cell on the line that its hash selects, where all cells are
//! compared at once. A removal closes the gap it leaves, so the index never needs rebuilding, and
//! no single frame pays for many.
//!
//! A search for many flows has four steps: prefetch the cells; guess the positions from them, which
//! prefetches the flows; touch the flows, since some prefetches are ignored; then search. A guess
//! may be wrong; the result of [`Table::search`] is always right.
//!
//! Each flow has an entry, which every frame touches, and a cold part on other cache lines
//! ([`Entry::Apart`]).
//!
//! Invariant: each flow has exactly one cell, and no free cell lies between a cell and the first
//! cell of the line that its hash selects.

mod key;

#[cfg(any(test, feature = "records"))]
pub use key::ShortKey;
pub use key::{FlowPlace, HashSeed, Key, hash_seed};

use std::io;
use wqcap_core::error::ResourceError;
use wqcap_memory::{prefer_huge_pages, prefetch, touch};

/// Entry of a flow table: the part of a flow that each of its frames accesses.
pub trait Entry: Copy {
    /// Type of the cold part of a flow in the table: data that is needed at the flow's end, or for
    /// few flows or frames. Its first cache line may be needed to find the flow.
    type Apart: Copy;
    /// Returns `true` if this entry belongs to the flow with `key`.
    fn is_of<'a>(&self, key: &Key, apart: impl FnOnce() -> &'a Self::Apart) -> bool
    where
        Self: 'a;
    /// Returns the 32-bit hash of the flow's key, computed with [`hash_seed`].
    fn hash(&self, apart: &Self::Apart) -> u32;
    /// Returns `true` if the first cache line of the flow's cold part is needed to find the flow
    /// with this key.
    fn needs_apart(_key: &Key) -> bool {
        false
    }
}

/// Guessed position of a flow in a flow table; by default no position.
#[derive(Clone, Copy, Debug)]
pub struct Guess(u32);

impl Default for Guess {
    fn default() -> Self {
        Self(NOTHING)
    }
}

/// Returns the number of flows of `flow_bytes` bytes each that fit into `memory` bytes of a flow
/// table, at least 1.
pub fn capacity(memory: u64, flow_bytes: u64) -> usize {
    usize::try_from(memory / flow_bytes)
        .unwrap_or(usize::MAX)
        .max(1)
}

/// Checks that the system grants the memory of `tables` flow tables with `capacity` flows of
/// `flow_bytes` bytes each: reserves this memory and returns it. Threads create their tables later,
/// where a refusal would abort the process.
///
/// # Errors
/// The system refuses the memory, for example because of `ulimit -v`.
pub fn check_memory(tables: usize, capacity: usize, flow_bytes: u64) -> Result<(), ResourceError> {
    let flow_bytes = usize::try_from(flow_bytes).unwrap_or(usize::MAX);
    let bytes = tables.saturating_mul(capacity).saturating_mul(flow_bytes);
    let reserved = Vec::<u8>::new().try_reserve_exact(bytes);
    reserved.map_err(|_| ResourceError::System {
        what: format!("cannot allocate {bytes} bytes of memory for {tables} flow tables"),
        source: io::ErrorKind::OutOfMemory.into(),
    })
}

/// Cell of a flow table's hash index: a hash and the position of its flow.
#[derive(Clone, Copy)]
struct Cell {
    hash: u32,
    /// Position of the cell's flow in the flow table; [`NOTHING`]: the cell is free.
    at: u32,
}

const NOTHING: u32 = u32::MAX;
const FREE: Cell = Cell {
    hash: 0,
    at: NOTHING,
};

/// Number of flow table entries that fit into the private caches of a core: about 1 MB.
const IN_CACHES: usize = 8192;

/// Number of hash index cells on a cache line.
const CELLS: usize = 8;

/// Hash index cells of one cache line. Their hashes are stored together, so that few instructions
/// compare them.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine {
    hashes: [u32; CELLS],
    places: [u32; CELLS],
}

impl CacheLine {
    const FREE: Self = Self {
        hashes: [FREE.hash; CELLS],
        places: [FREE.at; CELLS],
    };

    /// Returns the position of the flow whose index cell in this line has `hash`; an arbitrary
    /// position if no cell or several cells have the hash. All cells are read, since the matching
    /// one is unpredictable.
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

/// Flow table: the entries and cold parts of flows, with a hash index.
pub struct Table<E: Entry> {
    index: Box<[CacheLine]>,
    flows: Vec<E>,
    apart: Vec<E::Apart>,
    capacity: usize,
}

impl<E: Entry> Table<E> {
    /// Bytes of memory for each flow of a flow table; the sparsest hash index has four cells for
    /// each flow.
    pub const FLOW_BYTES: usize = size_of::<E>() + size_of::<E::Apart>() + 4 * size_of::<Cell>();
    /// Maximum number of flows in a flow table: index cells could not address more.
    const MOST: usize = 1 << 30;

    /// Creates an empty flow table for `capacity` flows.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, Self::MOST);
        let lines = (2 * capacity).next_power_of_two().div_ceil(CELLS);
        let mut index = Vec::with_capacity(lines);
        prefer_huge_pages(index.spare_capacity_mut());
        index.resize(lines, CacheLine::FREE);
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

    /// Returns the number of flows in the flow table.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns `true` if the flow table has no flow.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Returns the number of flows that fit into the flow table, including the present ones.
    #[cfg(feature = "records")]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns `true` if the flow table has no room for another flow.
    pub fn is_full(&self) -> bool {
        self.flows.len() == self.capacity
    }

    /// Returns the bit mask for cell numbers of the hash index.
    #[inline]
    fn mask(&self) -> usize {
        CELLS * self.index.len() - 1
    }

    /// Returns the number of the first index cell of the cache line at which the search for `hash`
    /// starts.
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

    /// Returns `true` if the flow table has a flow at position `at` and the flow's key is `key`.
    #[inline]
    fn is_of(&self, at: usize, key: &Key) -> bool {
        (self.flows.get(at)).is_some_and(|it| it.is_of(key, || &self.apart[at]))
    }

    /// Returns the position in the flow table of the flow with the key `key`, whose hash is `hash`;
    /// `None`: there is no such flow.
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

    /// Returns the flow at position `at` of the flow table.
    ///
    /// # Panics
    /// `at` is not below [`Table::len`].
    #[inline]
    pub fn get(&self, at: usize) -> &E {
        &self.flows[at]
    }

    /// Returns the flow at position `at` of the flow table for changes.
    ///
    /// # Panics
    /// `at` is not below [`Table::len`].
    #[inline]
    pub fn get_mut(&mut self, at: usize) -> &mut E {
        &mut self.flows[at]
    }

    /// Returns the cold part (rarely used data) of the flow at position `at` of the table.
    #[cfg(feature = "records")]
    pub fn apart(&self, at: usize) -> &E::Apart {
        &self.apart[at]
    }

    /// Returns the flow at position `at` of the table and its cold part (rarely used data) for
    /// changes.
    #[cfg(feature = "records")]
    #[inline]
    pub fn both_mut(&mut self, at: usize) -> (&mut E, &mut E::Apart) {
        (&mut self.flows[at], &mut self.apart[at])
    }

    /// Inserts a flow that is not in the flow table. The table must not be full.
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

    /// Removes a flow from the flow table and returns it. The table's last flow moves to its
    /// position.
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

    /// Returns the number of the hash index cell of the flow at position `at` of the table.
    fn cell_of(&self, at: usize) -> usize {
        let mut i = self.home(self.flows[at].hash(&self.apart[at]));
        while self.cell(i).at != place(at) {
            i = (i + 1) & self.mask();
        }
        i
    }

    /// Frees a cell of the hash index, and moves back later cells that could not be found
    /// otherwise.
    fn close(&mut self, mut gap: usize) {
        let mut i = gap;
        loop {
            i = (i + 1) & self.mask();
            let cell = self.cell(i);
            if cell.at == NOTHING {
                break;
            }
            let home = self.home(cell.hash);
            // Distances of the cell from its home and from the gap.
            let (far, back) = (i.wrapping_sub(home), i.wrapping_sub(gap));
            if far & self.mask() >= back & self.mask() {
                self.set(gap, cell);
                gap = i;
            }
        }
        self.set(gap, FREE);
    }
}

/// Steps of a search for many flows in a flow table: prefetch, guess, touch, find.
impl<E: Entry> Table<E> {
    /// Returns `true` if the flow table is larger than a core's caches; only then does prefetching
    /// help.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.flows.len() > IN_CACHES
    }

    /// Prefetches the hash index cells in which the search for `hash` starts.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        prefetch(&self.index, self.home(hash) / CELLS, 1);
    }

    /// Returns the guessed position of a flow by the hash of its key alone: nearly every flow has
    /// its cell on the first line. Prefetches the data that the flow key is compared with.
    #[inline]
    pub fn guess(&self, hash: u32, key: &Key) -> Guess {
        let at = self.index[self.home(hash) / CELLS].guess(hash);
        prefetch(&self.flows, at as usize, usize::MAX);
        if E::needs_apart(key) {
            prefetch(&self.apart, at as usize, 1);
        }
        Guess(at)
    }

    /// Reads the data that the flow key is compared with at the guessed position. Call it for many
    /// flows in a row, after all guesses.
    #[inline]
    pub fn touch(&self, guess: Guess, key: &Key) {
        touch(&self.flows, guess.0 as usize, usize::MAX);
        if E::needs_apart(key) {
            touch(&self.apart, guess.0 as usize, 1);
        }
    }

    /// Returns the flow with the key `key` if it is at the guessed position of the flow table;
    /// otherwise it must be searched for.
    #[inline]
    pub fn guessed_mut(&mut self, guess: Guess, key: &Key) -> Option<&mut E> {
        let at = guess.0 as usize;
        let is_of = self.is_of(at, key);
        self.flows.get_mut(at).filter(|_| is_of)
    }

    /// Returns the position of the flow with the key `key` in the flow table, from the guess or by
    /// a search.
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

// A table has at most 2^30 flows.
fn place(at: usize) -> u32 {
    at as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use wqcap_frame::FiveTuple;

    /// Flow table entry that only has a key and a hash.
    #[derive(Clone, Copy)]
    struct Bare(Key, u32);

    impl Entry for Bare {
        type Apart = u16;

        /// Compares the key, and also the cold part, which holds the VLAN of the key.
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

    /// Returns flow number `n`, which is also its VLAN. Its hash collides with those of others, and
    /// the flows fill more than one line around the index's end.
    fn flow(n: u16) -> Bare {
        Bare(Key::new(&FiveTuple::default(), [n, 0], None), hash(n))
    }

    fn hash(n: u16) -> u32 {
        u32::from(n % 5) + 54
    }

    proptest! {
        #[test]
        fn table_acts_as_a_map(steps in prop::collection::vec((0_u16..40, any::<bool>()), 0..400)) {
            let mut table = Table::<Bare>::new(20);
            let mut map = HashMap::new();
            // Guesses of any age, so that many are outdated.
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
