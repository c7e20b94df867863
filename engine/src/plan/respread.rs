//! Computation of live re-spreading: a better queue for each entry of the indirection table, from
//! measured load.
//!
//! May import: nothing of the engine. Pure. [`crate::capture::port`] installs the new table;
//! [`crate::capture`] decides when.

/// Measured load of the queues: frames seen over some time, or a sample of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of frames that passed each entry of the RSS indirection table.
    pub entries: Vec<u64>,
    /// Number of frames of each queue that did not pass the RSS indirection table, such as those of
    /// the catch-all rule.
    pub fixed: Vec<u64>,
}

impl Load {
    /// Adds another load measurement of the same indirection table. A default (empty) measurement
    /// adds nothing.
    pub fn add(&mut self, other: &Self) {
        let entries = self.entries.iter_mut().zip(&other.entries);
        let fixed = self.fixed.iter_mut().zip(&other.fixed);
        entries.chain(fixed).for_each(|(sum, it)| *sum += it);
    }
}

/// Proposed indirection table that spreads the load of the queues more evenly.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// Queue number in each entry of the proposed RSS indirection table.
    pub table: Vec<u16>,
    /// Number of indirection table entries whose queue changes.
    pub moved: usize,
    /// Load of the busiest queue divided by its share, with the present RSS indirection table and
    /// with the proposed one.
    pub skew: (f64, f64),
}

/// Maximum ratio of new to old skew of the queues' load at which moving flows is worthwhile.
const GAIN: f64 = 0.95;

/// Load of each queue under an RSS indirection table.
struct QueueLoads<'a> {
    /// Fraction of the total load that each queue should get.
    shares: &'a [f64],
    /// Number of frames that each queue receives under the RSS indirection table.
    loads: Vec<f64>,
    /// Number of frames that all queues together receive.
    total: f64,
}

impl<'a> QueueLoads<'a> {
    /// Sums the load of each queue under the indirection table `table`.
    fn new(table: &[u16], load: &Load, shares: &'a [f64]) -> Self {
        let mut loads: Vec<f64> = load.fixed.iter().map(|it| *it as f64).collect();
        loads.resize(shares.len(), 0.0);
        for (queue, it) in table.iter().zip(&load.entries) {
            if let Some(sum) = loads.get_mut(usize::from(*queue)) {
                *sum += *it as f64;
            }
        }
        let total = loads.iter().sum();
        Self {
            shares,
            loads,
            total,
        }
    }

    /// Returns a queue's load (with `more` frames added) divided by the load that its share grants:
    /// 1 is ideal.
    fn strain(&self, queue: usize, more: f64) -> f64 {
        let due = self.total * self.shares[queue];
        let load = self.loads[queue] + more;
        if load <= 0.0 { 0.0 } else { load / due }
    }

    /// Returns the queue with the highest strain (load divided by share) or, if `most` is `false`,
    /// with the lowest strain among queues that have a share.
    fn extreme(&self, most: bool) -> Option<usize> {
        (0..self.shares.len())
            .filter(|queue| most || self.shares[*queue] > 0.0)
            .max_by(|a, b| {
                let order = self.strain(*a, 0.0).total_cmp(&self.strain(*b, 0.0));
                if most { order } else { order.reverse() }
            })
    }

    /// Returns the highest strain (load divided by share) of all queues.
    fn skew(&self) -> f64 {
        self.extreme(true)
            .map_or(0.0, |queue| self.strain(queue, 0.0))
    }
}

/// Returns the load of the busiest queue under `table`, divided by the load that its share grants;
/// 0 without load.
#[must_use]
pub fn skew(table: &[u16], load: &Load, shares: &[f64]) -> f64 {
    QueueLoads::new(table, load, shares).skew()
}

/// Proposes an indirection table that moves entries from the busiest queue to the idlest one, while
/// each move helps.
///
/// The entry that evens out the two queues best moves first. Returns `None` if the gain is too
/// small, for example when a single flow is the load. `shares` has one element per queue and sums
/// up to 1; a queue with share 0 gets no entries.
#[must_use]
pub fn even_out(table: &[u16], load: &Load, shares: &[f64]) -> Option<Proposal> {
    let mut books = QueueLoads::new(table, load, shares);
    let before = books.skew();
    let mut new = table.to_vec();
    // Each round lowers the busier queue of a pair. More rounds than entries bring no useful gain.
    for _ in 0..table.len() {
        let (Some(hot), Some(cold)) = (books.extreme(true), books.extreme(false)) else {
            break;
        };
        let Some((entry, weight)) = best_move(&new, load, &books, hot, cold) else {
            break;
        };
        books.loads[hot] -= weight;
        books.loads[cold] += weight;
        new[entry] = u16::try_from(cold).unwrap_or(u16::MAX);
    }
    let after = books.skew();
    let moved = new.iter().zip(table).filter(|(a, b)| a != b).count();
    (moved > 0 && after < before * GAIN).then_some(Proposal {
        table: new,
        moved,
        skew: (before, after),
    })
}

/// Returns the best indirection table entry to move from queue `hot` to queue `cold`, and its load.
///
/// The best entry leaves the lowest strain on the busier of the two queues. Returns `None` if no
/// move lowers the strain of `hot` and `cold` below the present strain of `hot`.
fn best_move(
    table: &[u16],
    load: &Load,
    books: &QueueLoads<'_>,
    hot: usize,
    cold: usize,
) -> Option<(usize, f64)> {
    let now = books.strain(hot, 0.0);
    let weighed = load.entries.iter().map(|it| *it as f64);
    table
        .iter()
        .zip(weighed)
        .enumerate()
        .filter(|(_, (queue, weight))| usize::from(**queue) == hot && *weight > 0.0)
        .map(|(entry, (_, weight))| {
            // A queue without a share should have no load, so its remaining load is not counted.
            let left = if books.shares[hot] > 0.0 {
                books.strain(hot, -weight)
            } else {
                0.0
            };
            (entry, weight, left.max(books.strain(cold, weight)))
        })
        .filter(|(.., worst)| *worst < now)
        .min_by(|a, b| a.2.total_cmp(&b.2))
        .map(|(entry, weight, _)| (entry, weight))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Equal shares of the load for four queues.
    const EVEN: [f64; 4] = [0.25; 4];

    /// Returns an indirection table that assigns `size` entries to four queues round robin.
    fn in_turn(size: usize) -> Vec<u16> {
        (0..size)
            .map(|i| u16::try_from(i % 4).expect("fits u16"))
            .collect()
    }

    /// Returns the load of indirection table entries, without load of other frames.
    fn load(entries: &[u64]) -> Load {
        Load {
            entries: entries.to_vec(),
            fixed: vec![0; 4],
        }
    }

    #[test]
    fn load_of_one_queue_is_spread_over_all() {
        // Eight entries of queue 0 carry all the load.
        let entries: Vec<u64> = (0..32).map(|i| if i % 4 == 0 { 100 } else { 0 }).collect();
        let proposal = even_out(&in_turn(32), &load(&entries), &EVEN).expect("a better table");
        assert_eq!(proposal.skew, (4.0, 1.0));
        assert_eq!(proposal.moved, 6);
        assert!((skew(&proposal.table, &load(&entries), &EVEN) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn load_that_cannot_be_split_or_is_even_stays() {
        let one_flow: Vec<u64> = (0..32).map(|i| u64::from(i == 8) * 1000).collect();
        assert_eq!(even_out(&in_turn(32), &load(&one_flow), &EVEN), None);
        assert_eq!(even_out(&in_turn(32), &load(&[7; 32]), &EVEN), None);
        assert_eq!(even_out(&in_turn(32), &load(&[0; 32]), &EVEN), None);
        assert!(skew(&in_turn(32), &load(&[0; 32]), &EVEN).abs() < 1e-9);
    }

    #[test]
    fn a_queue_with_fixed_load_gets_less_and_a_queue_without_a_share_gets_none() {
        let mut uneven = load(&[10; 32]);
        uneven.fixed[0] = 80;
        let proposal = even_out(&in_turn(32), &uneven, &EVEN).expect("a better table");
        assert_eq!(proposal.skew.1, 1.0);
        assert_eq!(proposal.table.iter().filter(|q| **q == 0).count(), 2);

        let three = [0.5, 0.25, 0.25, 0.0];
        let proposal = even_out(&in_turn(32), &load(&[10; 32]), &three).expect("a better table");
        let count = |queue: u16| proposal.table.iter().filter(|q| **q == queue).count();
        assert_eq!([0, 1, 2, 3].map(count), [16, 8, 8, 0]);
    }

    #[test]
    fn proposals_for_any_load_are_valid_and_better() {
        let mut state = 1u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 33
        };
        for _ in 0..200 {
            let entries: Vec<u64> = (0..64).map(|_| (random() % 100).pow(3)).collect();
            let load = load(&entries);
            if let Some(proposal) = even_out(&in_turn(64), &load, &EVEN) {
                assert!(proposal.skew.1 < proposal.skew.0);
                assert!(proposal.table.iter().all(|queue| *queue < 4));
                let again = skew(&proposal.table, &load, &EVEN);
                assert!((again - proposal.skew.1).abs() < 1e-6);
            }
        }
    }
}
