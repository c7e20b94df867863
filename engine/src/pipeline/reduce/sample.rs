//! Sampling: one in N frames or flows is kept.

/// Sampler that keeps one in N frames or flows of a reduction stage.
#[derive(Clone, Copy, Debug)]
pub(super) enum FrameSampler {
    /// Sampler that keeps all frames.
    All,
    /// Sampler that keeps the first of every N frames of its reduction stage.
    Frames {
        /// Number N of frames from which the sampler keeps one.
        every: u32,
        /// Number of frames that the sampler leaves out before the next kept one.
        skip: u32,
    },
    /// Sampler that keeps the flows whose hash is below a bound: the first Nth of all hashes.
    ///
    /// The flows of a larger N are thus a subset of those of a smaller N, and other captures of the
    /// same traffic keep the same flows.
    Flows {
        /// Smallest flow hash whose flow the sampler leaves out.
        below: u64,
    },
}

impl FrameSampler {
    /// Creates a sampler that keeps one in `every` frames.
    pub(super) fn frames(every: u32) -> Self {
        match every {
            0 | 1 => Self::All,
            every => Self::Frames { every, skip: 0 },
        }
    }

    /// Creates a sampler that keeps one in `every` flows.
    pub(super) fn flows(every: u32) -> Self {
        match every {
            0 | 1 => Self::All,
            every => Self::Flows {
                below: u64::MAX / u64::from(every),
            },
        }
    }

    /// Returns `true` if the sampler keeps a frame. `hash` returns the hash of the frame's flow; it
    /// is called only if flows are sampled.
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

    /// Returns `true` if the sampler keeps or leaves out whole flows.
    pub(super) fn wants_flows(&self) -> bool {
        matches!(self, Self::Flows { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_every_n_frames_is_kept() {
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
