//! Hardware priorities as a ladder: which rank of rules stands on which rung, and how ranks make room for each other
//! while frames flow.
//!
//! May import: nothing. Pure; [`crate::capture::port`] carries the moves out.
//!
//! A rank moves from one rung to another by being installed there once more before the old rules go. Where nothing
//! else stands in between, no frame notices: of two rules that match it the one in front takes it, and both lead to
//! the same place. So every move here goes to a free rung with none but free rungs on the way.

/// Hardware priorities: mlx5 takes 0 to 15.
pub const RUNGS: u16 = 16;
const LAST: u16 = RUNGS - 1;

/// The rank on each rung; ranks never fall from the first rung to the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ladder([Option<u16>; RUNGS as usize]);

/// All rules of one rung go to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Where they stand.
    pub from: u16,
    /// Where they go.
    pub to: u16,
}

impl Ladder {
    /// Of rules, each given as its rank and its rung. Rungs beyond the last are not looked at.
    #[must_use]
    pub fn of(rules: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let mut ladder = Self::default();
        for (rank, rung) in rules {
            if let Some(place) = ladder.0.get_mut(usize::from(rung)) {
                *place = Some(rank);
            }
        }
        ladder
    }

    /// A rung for rules of this rank, and what must move before they can stand there. `None`: the ladder is full.
    pub fn admit(&mut self, rank: u16) -> Option<(Vec<Move>, u16)> {
        if let Some(rung) = Self::rungs().find(|it| self.at(*it) == Some(rank)) {
            return Some((Vec::new(), rung));
        }
        let front = Self::rungs().rfind(|it| self.at(*it).is_some_and(|other| other < rank));
        let behind = Self::rungs().find(|it| self.at(*it).is_some_and(|other| other > rank));
        let (first, end) = (front.map_or(0, |it| it + 1), behind.unwrap_or(RUNGS));
        let (moves, rung) = if first < end {
            // Behind everything a free rung is left; in between, on both sides if there is room.
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

    /// Moves that leave no rung's rules where they are. Ladders that are not disturbed in between go there and back.
    pub fn shift(&mut self) -> Vec<Move> {
        if self.at(LAST).is_none() {
            return self.carry_out(Self::rungs().rev(), 1);
        }
        if self.at(0).is_none() {
            return self.carry_out(Self::rungs(), -1);
        }
        // Both ends are taken: what stands before the last end goes forward, to a hole in the middle.
        let hole = Self::rungs().rfind(|it| self.at(*it).is_none());
        let mut moves = hole.map_or(Vec::new(), |hole| self.carry_out(hole + 1..RUNGS, -1));
        if hole.is_some() {
            moves.extend(self.carry_out(Self::rungs().rev(), 1));
        }
        moves
    }

    /// Frees rung `at`, or the one in front of it, for something that stands between both.
    fn push_apart(&mut self, at: u16) -> Option<(Vec<Move>, u16)> {
        if let Some(hole) = (at..RUNGS).find(|it| self.at(*it).is_none()) {
            return Some((self.carry_out((at..hole).rev(), 1), at));
        }
        let hole = (0..at).rfind(|it| self.at(*it).is_none())?;
        Some((self.carry_out(hole + 1..at, -1), at - 1))
    }

    /// Moves what stands on these rungs, one after the other, by one.
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

    fn at(&self, rung: u16) -> Option<u16> {
        self.0[usize::from(rung)]
    }

    fn rungs() -> std::ops::Range<u16> {
        0..RUNGS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladder(rungs: &[(u16, u16)]) -> Ladder {
        Ladder::of(rungs.iter().copied())
    }

    /// Carries moves out on a copy, and holds each to the rule that nothing may stand in its way.
    fn check(before: &Ladder, moves: &[Move], after: &Ladder, admitted: Option<u16>) {
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
    fn a_shift_goes_there_and_back() {
        let mut it = ladder(&[(8, 8), (10, 10), (12, 12)]);
        let start = it.clone();
        let there = it.shift();
        check(&start, &there, &it, None);
        assert_eq!(it, ladder(&[(8, 9), (10, 11), (12, 13)]));
        assert_eq!(there[0], Move { from: 12, to: 13 });
    }

    #[test]
    fn every_rank_can_be_shifted_as_long_as_one_rung_is_free() {
        for hole in 0..RUNGS {
            let mut it = Ladder::of(
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
        let mut full = Ladder::of((0..RUNGS).map(|rung| (rung, rung)));
        assert!(full.shift().is_empty());
        assert_eq!(full.admit(99), None);
    }

    #[test]
    fn a_rank_is_admitted_between_its_neighbours_whatever_order_they_come_in() {
        let mut state = 1u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            u16::try_from((state >> 33) % 15).expect("small")
        };
        for _ in 0..500 {
            let mut it = Ladder::default();
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
