//! Keeping one in N.

/// One in N frames, or one in N flows.
#[derive(Clone, Copy, Debug)]
pub(super) enum FrameSampler {
    /// Everything.
    All,
    /// The first frame of each N, counted by queue.
    Frames {
        /// N
        every: u32,
        /// Frames to leave out before the next is kept.
        skip: u32,
    },
    /// Flows whose hash is below this: for N, the first N-th part of all hashes, so that the flows of a larger N are
    /// among those of a smaller one, and other captures of the same traffic keep the same flows.
    Flows {
        /// The first hash that is left out.
        below: u64,
    },
}

impl FrameSampler {
    pub(super) fn frames(every: u32) -> Self {
        match every {
            0 | 1 => Self::All,
            every => Self::Frames { every, skip: 0 },
        }
    }

    pub(super) fn flows(every: u32) -> Self {
        match every {
            0 | 1 => Self::All,
            every => Self::Flows {
                below: u64::MAX / u64::from(every),
            },
        }
    }

    /// Whether a frame is kept; `hash` is asked for its flow's only where flows are sampled.
    #[inline]
    pub(super) fn keeps(&mut self, hash: impl FnOnce() -> u64) -> bool {
        match self {
            Self::All => true,
            Self::Frames { every, skip } => {
                let keeps = *skip == 0;
                *skip = if keeps { *every } else { *skip } - 1;
                keeps
            }
            Self::Flows { below } => hash() < *below,
        }
    }

    /// Whether it wants a flow's hash.
    pub(super) fn wants_flows(&self) -> bool {
        matches!(self, Self::Flows { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_each_n() {
        let mut sampler = FrameSampler::frames(3);
        let kept: Vec<_> = (0..7).map(|_| sampler.keeps(|| 0)).collect();
        assert_eq!(kept, [true, false, false, true, false, false, true]);
        assert!((0..9).all(|_| FrameSampler::frames(1).keeps(|| u64::MAX)));
        assert!(FrameSampler::flows(1).keeps(|| u64::MAX));
    }

    #[test]
    fn flows_of_a_larger_n_are_among_those_of_a_smaller_one() {
        let hashes = || (0..10_000_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let kept = |every| -> Vec<u64> {
            let mut sampler = FrameSampler::flows(every);
            hashes().filter(|hash| sampler.keeps(|| *hash)).collect()
        };
        let (ten, hundred) = (kept(10), kept(100));
        assert!((900..1100).contains(&ten.len()), "{}", ten.len());
        assert!((80..120).contains(&hundred.len()), "{}", hundred.len());
        assert!(hundred.iter().all(|hash| ten.contains(hash)));
    }
}
