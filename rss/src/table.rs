//! RWQ indirection table: maps the low bits of a hash to a queue.
//!
//! **May import** `core`/`std` and `thiserror` only.
//!
//! **Invariant**: the number of entries is a power of two from 1 to [`IndirectionTable::MAX_SIZE`].
//! Every queue that is to receive hashed frames has at least one entry, and no other queue has any.

/// RSS indirection table over the queues `0..queues`; the caller replaces queue numbers by WQ
/// handles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndirectionTable {
    /// Queue number of each table entry; the number of entries is a power of two.
    entries: Box<[u16]>,
}

impl IndirectionTable {
    /// Maximum number of indirection table entries that the verbs interface can name:
    /// `IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE` (13) in `rdma/ib_user_verbs.h`. A device may allow
    /// fewer (`max_rwq_indirection_table_size`); the code that creates the table on a device checks
    /// that limit.
    pub const MAX_SIZE: u32 = 1 << 13;

    /// Creates an indirection table of `size` entries over `queues` queues, shared out by
    /// `weights`, one per queue. Only the ratios of weights matter; a weight of 0 keeps hashed
    /// frames off a queue. An empty slice gives all queues equal weights.
    ///
    /// Entries are distributed by largest remainder, with at least one for each queue that has a
    /// weight. The entries of a queue are spaced as evenly as its share allows, so that flows with
    /// neighbouring hashes go to different queues.
    ///
    /// # Errors
    /// [`TableError`] if `size` is not a power of two in `1..=MAX_SIZE`, `queues` is 0, the number
    /// of weights is neither 0 nor `queues`, all weights are 0, or more queues have a weight than
    /// the table has entries.
    pub fn new(size: u32, queues: u16, weights: &[u32]) -> Result<Self, TableError> {
        if !size.is_power_of_two() || size > Self::MAX_SIZE {
            return Err(TableError::Size { size });
        }
        if queues == 0 {
            return Err(TableError::NoQueues);
        }
        if !weights.is_empty() && weights.len() != usize::from(queues) {
            return Err(TableError::WeightCount {
                weights: weights.len(),
                queues,
            });
        }
        let shares: Vec<Share> = (0..queues)
            .map(|queue| Share::new(queue, weights.get(usize::from(queue)).copied().unwrap_or(1)))
            .filter(|share| share.weight > 0)
            .collect();
        if shares.is_empty() {
            return Err(TableError::NoWeight { queues });
        }
        if shares.len() > size as usize {
            return Err(TableError::TooManyQueues {
                queues: shares.len(),
                size,
            });
        }
        let first = shares.first().map_or(0, |share| share.weight);
        let entries = if shares.iter().all(|share| share.weight == first) {
            let turns = shares.iter().map(|share| share.queue).cycle();
            turns.take(size as usize).collect()
        } else {
            interleave(size, apportion(size, shares))
        };
        Ok(Self { entries })
    }

    /// Returns an indirection table with the queue shares of `self` that differs from `table` in as
    /// few entries as possible. Flows whose entries stay keep their queues. A queue gives up
    /// entries that are evenly spaced among its own.
    ///
    /// If `table` has another size, returns a copy of `self`.
    #[must_use]
    pub fn with_fewest_moves_from(&self, table: &[u16]) -> Self {
        if table.len() != self.entries.len() {
            return self.clone();
        }
        let queues = table.iter().chain(&*self.entries).max();
        let queues = queues.map_or(0, |queue| usize::from(*queue) + 1);
        let current = counts(table, queues);
        let target = counts(&self.entries, queues);
        let mut missing: Vec<_> = target
            .iter()
            .zip(&current)
            .map(|(t, c)| t.saturating_sub(*c))
            .collect();
        let mut seen = vec![0; queues];
        let mut entries = table.to_vec();
        for entry in &mut entries {
            let queue = usize::from(*entry);
            let surplus = current[queue].saturating_sub(target[queue]);
            // Entries given up among the queue's first `n`: their part of the surplus, rounded
            // down.
            let given = |n: usize| n * surplus / current[queue];
            let is_given_up = given(seen[queue] + 1) > given(seen[queue]);
            seen[queue] += 1;
            let receiver = (0..queues).rev().max_by_key(|it| missing[*it]);
            if let Some(receiver) = receiver.filter(|_| is_given_up) {
                missing[receiver] -= 1;
                *entry = u16::try_from(receiver).unwrap_or(*entry);
            }
        }
        Self {
            entries: entries.into(),
        }
    }

    /// Creates the indirection table of the catch-all: one entry, queue 0. mlx5 accepts an RSS QP
    /// without hash fields only over a table of this size.
    #[must_use]
    pub fn catch_all() -> Self {
        Self {
            entries: Box::new([0]),
        }
    }

    /// Returns the queue number of each indirection table entry, in the order in which `ind_tbl`
    /// takes the WQs.
    #[inline]
    #[must_use]
    pub fn entries(&self) -> &[u16] {
        &self.entries
    }

    /// Returns the queue in the indirection table entry that the low bits of `hash` select.
    #[inline]
    #[must_use]
    pub fn queue_of(&self, hash: u32) -> u16 {
        let mask = self.entries.len().wrapping_sub(1);
        // The mask keeps the index in bounds, so the fallback is never used; it replaces a panic
        // branch.
        self.entries.get(hash as usize & mask).copied().unwrap_or(0)
    }
}

/// Counts the indirection table entries of each queue.
fn counts(entries: &[u16], queues: usize) -> Vec<usize> {
    let mut counts = vec![0; queues];
    for entry in entries {
        counts[usize::from(*entry)] += 1;
    }
    counts
}

/// Queue with its weight, and the indirection table entries assigned to it so far.
struct Share {
    queue: u16,
    weight: u32,
    entries: i64,
    /// Number of the queue's entries that already have a position in the indirection table.
    placed: i64,
}

impl Share {
    fn new(queue: u16, weight: u32) -> Self {
        Self {
            queue,
            weight,
            entries: 0,
            placed: 0,
        }
    }

    /// Returns the last position in the indirection table, counted from 1, at which the queue's
    /// next entry keeps the spacing even.
    fn last_place(&self, size: i64) -> i64 {
        let wanted = (self.placed + 1) * size;
        (wanted + self.entries - 1) / self.entries
    }

    /// Returns the queue's deficit of entries against its exact share, in entries times `total`
    /// weight; negative for a surplus. With 2^13 entries, as many queues and 32-bit weights, both
    /// products are below 2^59.
    fn deficit(&self, size: i64, total: i64) -> i64 {
        i64::from(self.weight) * size - self.entries * total
    }
}

/// Assigns indirection table entries to each queue: the integer part of its exact share, but at
/// least one, then the remaining entries by largest remainder. If the minimum assigned too many,
/// takes entries back where the surplus is largest. Ties go to the lower queue.
fn apportion(size: u32, mut shares: Vec<Share>) -> Vec<Share> {
    let size = i64::from(size);
    let total: i64 = shares.iter().map(|share| i64::from(share.weight)).sum();
    for share in &mut shares {
        share.entries = (i64::from(share.weight) * size / total).max(1);
    }
    let mut left = size - shares.iter().map(|share| share.entries).sum::<i64>();
    while left != 0 {
        let step = left.signum();
        // `min_by_key` returns the first of equal elements, so the key is negated instead of using
        // `max_by_key`.
        let next = shares
            .iter_mut()
            .filter(|share| step > 0 || share.entries > 1)
            .min_by_key(|share| -step * share.deficit(size, total));
        let Some(next) = next else { break };
        next.entries += step;
        left -= step;
    }
    shares
}

/// Orders the indirection table entries so that, for every `n`, each queue has its exact part of
/// the first `n` positions, rounded down or up.
///
/// This gives each entry of a queue a first and a last position. The entry with the earliest last
/// position is placed next, which finds an order whenever one exists. Ties go to the queue with
/// fewer entries, whose entries then separate those of the others, and then to the lower queue.
fn interleave(size: u32, mut shares: Vec<Share>) -> Box<[u16]> {
    let size = i64::from(size);
    (0..size)
        .map(|place| {
            let next = shares
                .iter_mut()
                .filter(|share| share.placed < share.entries)
                .filter(|share| share.placed * size / share.entries <= place)
                .min_by_key(|share| (share.last_place(size), share.entries));
            next.map_or(0, |share| {
                share.placed += 1;
                share.queue
            })
        })
        .collect()
}

/// Error from creating an indirection table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Indirection table size that is not a power of two, or is too large.
    #[error(
        "the indirection table has {size} entries; the number must be a power of two from 1 to 8192"
    )]
    Size {
        /// Requested number of indirection table entries.
        size: u32,
    },
    /// Indirection table over zero queues.
    #[error("the indirection table has no queues; at least 1 queue is needed")]
    NoQueues,
    /// Number of queue weights that differs from the number of queues.
    #[error(
        "{weights} weights for {queues} queues: there must be one per queue, \
         or none for equal weights"
    )]
    WeightCount {
        /// Number of queue weights that were given.
        weights: usize,
        /// Number of queues of the indirection table.
        queues: u16,
    },
    /// Queue weights that are all 0.
    #[error("the weights of all {queues} queues are 0; at least 1 weight must be above 0")]
    NoWeight {
        /// Number of queues of the indirection table.
        queues: u16,
    },
    /// Number of queues with a weight that exceeds the number of indirection table entries.
    #[error(
        "{queues} queues with a weight over an indirection table of {size} entries: \
         there can be at most {size}, one entry each"
    )]
    TooManyQueues {
        /// Number of queues with a weight above 0.
        queues: usize,
        /// Number of entries in the indirection table.
        size: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn counts(table: &IndirectionTable, queues: usize) -> Vec<usize> {
        super::counts(table.entries(), queues)
    }

    fn moved(table: &IndirectionTable, from: &IndirectionTable) -> usize {
        let pairs = table.entries().iter().zip(from.entries());
        pairs.filter(|(a, b)| a != b).count()
    }

    #[test]
    fn new_shares_move_as_few_entries_as_possible() {
        let table = |weights: &[u32]| IndirectionTable::new(128, 2, weights).unwrap();
        let (even, uneven) = (table(&[1, 1]), table(&[3, 1]));
        let reached = uneven.with_fewest_moves_from(even.entries());
        assert_eq!(counts(&reached, 2), [96, 32]);
        assert_eq!(moved(&reached, &even), 32);
        // Moved entries are evenly spaced: the first half has half of them.
        let first = &reached.entries()[..64];
        assert_eq!(super::counts(first, 2), [48, 16]);
        assert_eq!(
            even.with_fewest_moves_from(reached.entries()).entries(),
            even.entries()
        );
        let all = table(&[1, 0]).with_fewest_moves_from(reached.entries());
        assert_eq!((counts(&all, 2), moved(&all, &reached)), (vec![128, 0], 32));
        let other = IndirectionTable::new(4, 2, &[]).unwrap();
        assert_eq!(other.with_fewest_moves_from(even.entries()), other);
    }

    #[test]
    fn equal_weights_alternate_queues() {
        let table = IndirectionTable::new(8, 3, &[]).unwrap();
        assert_eq!(table.entries(), [0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(table, IndirectionTable::new(8, 3, &[7, 7, 7]).unwrap());
        let table = IndirectionTable::new(8, 4, &[5, 0, 5, 0]).unwrap();
        assert_eq!(table.entries(), [0, 2, 0, 2, 0, 2, 0, 2]);
    }

    #[test]
    fn exact_shares_are_kept() {
        let table = IndirectionTable::new(8, 2, &[3, 1]).unwrap();
        assert_eq!(table.entries(), [0, 0, 1, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn entries_go_to_the_largest_remainder() {
        // Exact shares of 16: 8.8, 4.0, 3.2.
        let table = IndirectionTable::new(16, 3, &[55, 25, 20]).unwrap();
        assert_eq!(counts(&table, 3), [9, 4, 3]);
        // Equal remainders (10.67 twice): the lower queue first.
        let table = IndirectionTable::new(32, 3, &[2, 2, 2]).unwrap();
        assert_eq!(counts(&table, 3), [11, 11, 10]);
    }

    #[test]
    fn a_small_weight_still_gets_an_entry() {
        let table = IndirectionTable::new(4, 3, &[1_000_000, 1, 1]).unwrap();
        assert_eq!(counts(&table, 3), [2, 1, 1]);
        let table = IndirectionTable::new(4, 4, &[u32::MAX, 1, 1, 1]).unwrap();
        assert_eq!(counts(&table, 4), [1, 1, 1, 1]);
    }

    #[test]
    fn catch_all_is_queue_0() {
        let table = IndirectionTable::catch_all();
        assert_eq!(table.entries(), [0]);
        assert_eq!(table.queue_of(u32::MAX), 0);
        assert_eq!(table, IndirectionTable::new(1, 1, &[]).unwrap());
    }

    #[test]
    fn low_bits_select_the_entry() {
        let table = IndirectionTable::new(128, 128, &[]).unwrap();
        assert_eq!(table.queue_of(0xdead_be00 | 0x45), 0x45);
        assert_eq!(table.queue_of(0xffff_ff80), 0);
    }

    #[test]
    fn the_largest_table_is_built() {
        let weights: Vec<u32> = (0..1000).map(|queue| u32::MAX - queue).collect();
        let table = IndirectionTable::new(8192, 1000, &weights).unwrap();
        assert!(
            counts(&table, 1000)
                .iter()
                .all(|&count| count == 8 || count == 9)
        );
    }

    #[test]
    fn errors_name_value_and_limit() {
        let cases = [
            (IndirectionTable::new(0, 1, &[]), "0 entries", "8192"),
            (IndirectionTable::new(96, 1, &[]), "96 entries", "8192"),
            (
                IndirectionTable::new(16384, 1, &[]),
                "16384 entries",
                "8192",
            ),
            (IndirectionTable::new(8, 0, &[]), "no queues", "at least 1"),
            (IndirectionTable::new(8, 2, &[1]), "1 weights", "2 queues"),
            (
                IndirectionTable::new(8, 2, &[0, 0]),
                "all 2 queues",
                "above 0",
            ),
            (IndirectionTable::new(4, 5, &[]), "5 queues", "at most 4"),
            (
                IndirectionTable::new(2, 4, &[1, 9, 0, 1]),
                "3 queues",
                "at most 2",
            ),
        ];
        for (result, value, limit) in cases {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(value) && text.contains(limit), "{text}");
        }
        // Queues without weight need no entry.
        assert!(IndirectionTable::new(2, 4, &[1, 9, 0, 0]).is_ok());
    }

    proptest! {
        #[test]
        fn shares_are_reached_with_the_fewest_moves(
            from in vec(0..9_u32, 1..9),
            to in vec(0..9_u32, 1..9),
            log in 4..8_u32,
        ) {
            let table = |weights: &[u32]| {
                let queues = u16::try_from(weights.len()).unwrap();
                IndirectionTable::new(1 << log, queues, weights)
            };
            let (Ok(from), Ok(to)) = (table(&from), table(&to)) else {
                return Ok(());
            };
            let reached = to.with_fewest_moves_from(from.entries());
            let [had, wanted, has] = [&from, &to, &reached].map(|it| counts(it, 9));
            prop_assert_eq!(&has, &wanted);
            let least: usize = had.iter().zip(&wanted).map(|(h, w)| h.saturating_sub(*w)).sum();
            prop_assert_eq!(moved(&reached, &from), least);
        }

        #[test]
        fn shares_follow_the_weights(
            log in 4u32..=10,
            weights in vec(prop_oneof![Just(0), 1u32..100, any::<u32>()], 1..=16),
        ) {
            prop_assume!(weights.iter().any(|&weight| weight > 0));
            let size = 1 << log;
            let table = IndirectionTable::new(size, weights.len() as u16, &weights).unwrap();
            prop_assert_eq!(table.entries().len(), size as usize);
            let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
            let counts = counts(&table, weights.len());
            let starved = weights
                .iter()
                .filter(|&&weight| f64::from(weight) * f64::from(size) < total)
                .count();
            for (&count, &weight) in counts.iter().zip(&weights) {
                prop_assert_eq!(count > 0, weight > 0);
                // Beyond rounding, only the minimum of one entry can make a queue differ from its
                // exact share.
                let exact = f64::from(weight) * f64::from(size) / total;
                prop_assert!((count as f64 - exact).abs() <= 1.0 + starved as f64, "{:?}", counts);
            }
        }

        #[test]
        fn every_prefix_is_shared_by_weight(
            log in 4u32..=10,
            weights in prop_oneof![
                4 => vec(prop_oneof![1u32..=8, 1..=u32::MAX], 1..=16),
                1 => (1..=16usize).prop_map(|queues| vec![1; queues]),
            ],
        ) {
            let size = 1 << log;
            let table = IndirectionTable::new(size, weights.len() as u16, &weights).unwrap();
            for (queue, count) in counts(&table, weights.len()).into_iter().enumerate() {
                let mut placed = 0;
                for (place, &entry) in table.entries().iter().enumerate() {
                    placed += usize::from(usize::from(entry) == queue);
                    let exact = (place + 1) * count;
                    let bounds = exact / size as usize..=exact.div_ceil(size as usize);
                    prop_assert!(bounds.contains(&placed), "queue {} of {:?}", queue, table);
                }
            }
        }

        #[test]
        fn every_hash_has_a_queue(log in 4u32..=13, queues in 1u16..=16, hash in any::<u32>()) {
            let table = IndirectionTable::new(1 << log, queues, &[]).unwrap();
            prop_assert!(table.queue_of(hash) < queues);
        }
    }
}
