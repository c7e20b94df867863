//! Live re-spreading, the thinking part: which queue should each entry of the indirection table name, given what has
//! come by?
//!
//! May import: nothing of the engine. Pure. How the new table takes the old one's place is [`crate::capture::port`]'s; when,
//! is [`crate::capture`]'s.

/// Frames seen over some time, or a sample of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// By entry of the table.
    pub entries: Vec<u64>,
    /// By queue: what reached it by another way than the table, as the catch-all's frames do.
    pub fixed: Vec<u64>,
}

impl Load {
    /// Adds another measurement of the same table; one without any load adds nothing.
    pub fn add(&mut self, other: &Self) {
        let entries = self.entries.iter_mut().zip(&other.entries);
        let fixed = self.fixed.iter_mut().zip(&other.fixed);
        entries.chain(fixed).for_each(|(sum, it)| *sum += it);
    }
}

/// A table that would serve better.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// A queue for each entry.
    pub table: Vec<u16>,
    /// Entries that name another queue than before.
    pub moved: usize,
    /// The busiest queue's load over its share, now and with this table.
    pub skew: (f64, f64),
}

/// A smaller gain is not worth moving flows for.
const GAIN: f64 = 0.95;

/// How a table loads its queues.
struct Books<'a> {
    /// Of all load, what each queue is to have.
    shares: &'a [f64],
    loads: Vec<f64>,
    total: f64,
}

impl<'a> Books<'a> {
    fn of(table: &[u16], load: &Load, shares: &'a [f64]) -> Self {
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

    /// A queue's load over its share: 1 is just right.
    fn strain(&self, queue: usize, more: f64) -> f64 {
        let due = self.total * self.shares[queue];
        let load = self.loads[queue] + more;
        if load <= 0.0 { 0.0 } else { load / due }
    }

    /// The queue with the most strain, or the least among those that have a share at all.
    fn extreme(&self, most: bool) -> Option<usize> {
        (0..self.shares.len())
            .filter(|queue| most || self.shares[*queue] > 0.0)
            .max_by(|a, b| {
                let order = self.strain(*a, 0.0).total_cmp(&self.strain(*b, 0.0));
                if most { order } else { order.reverse() }
            })
    }

    fn skew(&self) -> f64 {
        self.extreme(true)
            .map_or(0.0, |queue| self.strain(queue, 0.0))
    }
}

/// The busiest queue's load over its share; 0 without load.
#[must_use]
pub fn skew(table: &[u16], load: &Load, shares: &[f64]) -> f64 {
    Books::of(table, load, shares).skew()
}

/// Moves entries from the busiest queue to the idlest, the one that evens them out best first, for as long as that
/// helps. `None`: it would not help enough, as where a single flow is the load.
///
/// `shares` has an element per queue and sums up to 1; a queue without a share gets nothing.
#[must_use]
pub fn even_out(table: &[u16], load: &Load, shares: &[f64]) -> Option<Proposal> {
    let mut books = Books::of(table, load, shares);
    let before = books.skew();
    let mut new = table.to_vec();
    // Each round lowers the busiest of a pair; more rounds than entries only push dust around.
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

/// The entry of queue `hot` that leaves the busier of the two least busy once it is `cold`'s, and its load; `None`
/// where every move would make it worse.
fn best_move(
    table: &[u16],
    load: &Load,
    books: &Books<'_>,
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
            // A queue without a share is to have nothing, whatever it has left.
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

    const EVEN: [f64; 4] = [0.25; 4];

    fn in_turn(size: usize) -> Vec<u16> {
        (0..size)
            .map(|i| u16::try_from(i % 4).expect("small"))
            .collect()
    }

    fn load(entries: &[u64]) -> Load {
        Load {
            entries: entries.to_vec(),
            fixed: vec![0; 4],
        }
    }

    #[test]
    fn all_load_on_one_queue_is_dealt_out() {
        // Eight entries of queue 0 carry everything.
        let entries: Vec<u64> = (0..32).map(|i| if i % 4 == 0 { 100 } else { 0 }).collect();
        let proposal = even_out(&in_turn(32), &load(&entries), &EVEN).expect("better");
        assert_eq!(proposal.skew, (4.0, 1.0));
        assert_eq!(proposal.moved, 6);
        assert!((skew(&proposal.table, &load(&entries), &EVEN) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_cannot_be_split_or_is_even_already_stays() {
        let one_flow: Vec<u64> = (0..32).map(|i| u64::from(i == 8) * 1000).collect();
        assert_eq!(even_out(&in_turn(32), &load(&one_flow), &EVEN), None);
        assert_eq!(even_out(&in_turn(32), &load(&[7; 32]), &EVEN), None);
        assert_eq!(even_out(&in_turn(32), &load(&[0; 32]), &EVEN), None);
        assert!(skew(&in_turn(32), &load(&[0; 32]), &EVEN).abs() < 1e-9);
    }

    #[test]
    fn a_queue_with_other_work_gets_less_and_one_without_a_share_nothing() {
        let mut uneven = load(&[10; 32]);
        uneven.fixed[0] = 80;
        let proposal = even_out(&in_turn(32), &uneven, &EVEN).expect("better");
        assert_eq!(proposal.skew.1, 1.0);
        assert_eq!(proposal.table.iter().filter(|q| **q == 0).count(), 2);

        let three = [0.5, 0.25, 0.25, 0.0];
        let proposal = even_out(&in_turn(32), &load(&[10; 32]), &three).expect("better");
        let count = |queue: u16| proposal.table.iter().filter(|q| **q == queue).count();
        assert_eq!([0, 1, 2, 3].map(count), [16, 8, 8, 0]);
    }

    #[test]
    fn any_load_ends_with_every_entry_on_a_queue_and_never_worse() {
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
