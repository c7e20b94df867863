//! Assignment of rule ranks to hardware priorities, and the moves that make room while frames flow.
//!
//! May import: nothing. Pure; [`crate::capture::port`] applies the moves.
//!
//! The hardware priorities form a ladder whose rungs hold ranks of rules. To move a rank, its rules
//! are installed on the new rung before the old rules are removed. If all rungs in between are
//! free, no frame is affected: of two rules that match a frame the one in front takes it, and both
//! lead to the same destination. So every move here goes to a free rung across free rungs only.

/// Number of hardware priorities of flow rules: mlx5 has 0 to 15.
pub const RUNGS: u16 = 16;
/// Last rung of the ladder: the hardware priority that matches last.
const LAST: u16 = RUNGS - 1;

/// Ladder of hardware priorities ("rungs"), with the rank of the flow rules on each. Ranks never
/// decrease from the first rung to the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityLadder([Option<u16>; RUNGS as usize]);

/// Move of all flow rules of one rung (hardware priority) to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Rung (hardware priority) that the flow rules leave.
    pub from: u16,
    /// Rung (hardware priority) that the flow rules move to.
    pub to: u16,
}

impl PriorityLadder {
    /// Creates the priority ladder of flow rules, each given as rank and rung (hardware priority).
    /// Rungs beyond the last are ignored.
    #[must_use]
    pub fn from_rules(rules: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let mut ladder = Self::default();
        for (rank, rung) in rules {
            if let Some(place) = ladder.0.get_mut(usize::from(rung)) {
                *place = Some(rank);
            }
        }
        ladder
    }

    /// Assigns a rung (hardware priority) to flow rules of this rank.
    ///
    /// Returns the rung and the moves that must be made first, or `None` if the ladder is full.
    pub fn admit(&mut self, rank: u16) -> Option<(Vec<Move>, u16)> {
        if let Some(rung) = Self::rungs().find(|it| self.at(*it) == Some(rank)) {
            return Some((Vec::new(), rung));
        }
        let front = Self::rungs().rfind(|it| self.at(*it).is_some_and(|other| other < rank));
        let behind = Self::rungs().find(|it| self.at(*it).is_some_and(|other| other > rank));
        let (first, end) = (front.map_or(0, |it| it + 1), behind.unwrap_or(RUNGS));
        let (moves, rung) = if first < end {
            // A rank at the end leaves a free rung before itself. A rank in between goes to the
            // middle of the gap.
            let rung = if behind.is_none() {
                (first + u16::from(front.is_some())).min(LAST)
            } else {
                first + (end - first) / 2
            };
            (Vec::new(), rung)
        } else {
            self.push_apart(first)?
        };
        self.0[usize::from(rung)] = Some(rank);
        Some((moves, rung))
    }

    /// Moves the flow rules of every rung (hardware priority) to another one. Repeated calls
    /// alternate between two positions if the ladder is otherwise unchanged.
    pub fn shift(&mut self) -> Vec<Move> {
        if self.at(LAST).is_none() {
            return self.carry_out(Self::rungs().rev(), 1);
        }
        if self.at(0).is_none() {
            return self.carry_out(Self::rungs(), -1);
        }
        // Both ends are taken: the ranks behind the last hole move one rung forward into it.
        let hole = Self::rungs().rfind(|it| self.at(*it).is_none());
        let mut moves = hole.map_or(Vec::new(), |hole| self.carry_out(hole + 1..RUNGS, -1));
        if hole.is_some() {
            moves.extend(self.carry_out(Self::rungs().rev(), 1));
        }
        moves
    }

    /// Frees the rung (hardware priority) `at`, or the one in front of it, for a rank that belongs
    /// between the two.
    fn push_apart(&mut self, at: u16) -> Option<(Vec<Move>, u16)> {
        if let Some(hole) = (at..RUNGS).find(|it| self.at(*it).is_none()) {
            return Some((self.carry_out((at..hole).rev(), 1), at));
        }
        let hole = (0..at).rfind(|it| self.at(*it).is_none())?;
        Some((self.carry_out(hole + 1..at, -1), at - 1))
    }

    /// Moves the flow rules on these rungs (hardware priorities), in this order, each by `by`
    /// rungs.
    fn carry_out(&mut self, rungs: impl Iterator<Item = u16>, by: i16) -> Vec<Move> {
        let mut moves = Vec::new();
        for from in rungs {
            let to = from.saturating_add_signed(by);
            if let Some(rank) = self.0[usize::from(from)].take() {
                self.0[usize::from(to)] = Some(rank);
                moves.push(Move { from, to });
            }
        }
        moves
    }

    /// Returns the rank of the flow rules on a rung (hardware priority).
    fn at(&self, rung: u16) -> Option<u16> {
        self.0[usize::from(rung)]
    }

    /// Returns all rungs (hardware priorities), from the first matched to the last.
    fn rungs() -> std::ops::Range<u16> {
        0..RUNGS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a priority ladder from pairs of rank and rung.
    fn ladder(rungs: &[(u16, u16)]) -> PriorityLadder {
        PriorityLadder::from_rules(rungs.iter().copied())
    }

    /// Applies moves to a copy of the priority ladder, and asserts that every rung on the way of
    /// each move is free.
    fn check(
        before: &PriorityLadder,
        moves: &[Move],
        after: &PriorityLadder,
        admitted: Option<u16>,
    ) {
        let mut now = before.clone();
        for it in moves {
            let way = it.from.min(it.to)..=it.from.max(it.to);
            for rung in way.filter(|rung| *rung != it.from) {
                assert_eq!(now.at(rung), None, "{it:?} of {moves:?} on {before:?}");
            }
            let rank = now.0[usize::from(it.from)].take();
            assert!(rank.is_some(), "{it:?} moves nothing");
            now.0[usize::from(it.to)] = rank;
        }
        if let Some(rung) = admitted {
            assert_eq!(now.at(rung), None);
            now.0[usize::from(rung)] = after.at(rung);
        }
        assert_eq!(now, *after);
        let ranks: Vec<_> = after.0.iter().flatten().collect();
        assert!(ranks.is_sorted(), "{after:?}");
    }

    #[test]
    fn a_shift_moves_every_rank_by_one_rung() {
        let mut it = ladder(&[(8, 8), (10, 10), (12, 12)]);
        let start = it.clone();
        let moves = it.shift();
        check(&start, &moves, &it, None);
        assert_eq!(it, ladder(&[(8, 9), (10, 11), (12, 13)]));
        assert_eq!(moves[0], Move { from: 12, to: 13 });
    }

    #[test]
    fn every_rank_can_be_shifted_as_long_as_one_rung_is_free() {
        for hole in 0..RUNGS {
            let mut it = PriorityLadder::from_rules(
                (0..RUNGS)
                    .filter(|rung| *rung != hole)
                    .map(|rung| (rung, rung)),
            );
            for _ in 0..4 {
                let before = it.clone();
                let moves = it.shift();
                check(&before, &moves, &it, None);
                for rung in (0..RUNGS).filter(|rung| before.at(*rung).is_some()) {
                    assert!(moves.iter().any(|m| m.from == rung), "{before:?}");
                }
            }
        }
        let mut full = PriorityLadder::from_rules((0..RUNGS).map(|rung| (rung, rung)));
        assert!(full.shift().is_empty());
        assert_eq!(full.admit(99), None);
    }

    #[test]
    fn a_rank_is_admitted_between_its_neighbours_in_any_order() {
        let mut state = 1u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            u16::try_from((state >> 33) % 15).expect("fits u16")
        };
        for _ in 0..500 {
            let mut it = PriorityLadder::default();
            for _ in 0..40 {
                let before = it.clone();
                let rank = random();
                let (moves, rung) = it.admit(rank).expect("15 ranks have room");
                let new = before.0.iter().all(|other| *other != Some(rank));
                assert!(new || moves.is_empty());
                check(&before, &moves, &it, new.then_some(rung));
                if random() == 0 {
                    let before = it.clone();
                    let moves = it.shift();
                    check(&before, &moves, &it, None);
                }
            }
        }
    }
}
