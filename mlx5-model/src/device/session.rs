//! Compressed CQEs: a session of similar completions, written as one title CQE and arrays of mini
//! CQEs (PRM "CQE compression").
//!
//! Imports `cqe`. Invariant: a session takes as many slots of the CQ as it has completions, and
//! writes only the slots that a reader expects: the title to the first, eight mini CQEs each to the
//! second, eighth, sixteenth and so on (`mlx5_rx_poll_len` of DPDK's `mlx5_rx.c`,
//! `mlx5e_decompress_cqes_cont` of Linux's `en_rx.c`).
//!
//! When the device ends a session, beyond the limits of its format, is inferred: here at the end of
//! the burst of frames, which stands for the device's timeout.

use crate::abi;

use super::cqe::NicCqe;
use super::strides::consumed;

/// Maximum number of completions in a CQE compression session (`cqe_compression_max_num`).
pub const MAX_SESSION: u32 = 64;
/// Number of mini CQEs in a slot of the CQ's ring.
const ARRAY: usize = 8;

/// Format of the mini CQEs of a compression session: their field in addition to the byte count
/// (`MLX5_IB_CQE_RES_FORMAT_*`). Without hashes the title's hash applies to all; without stride
/// indexes the counters are consecutive (`mlx5e_decompress_cqe`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MiniCqeFormat {
    Hash,
    /// Mini CQE with the checksum (`check_sum`), which the model leaves at 0 in every CQE.
    Checksum,
    /// Mini CQE with the checksum (`check_sum`) and the index of the first stride.
    ChecksumStride,
}

impl MiniCqeFormat {
    /// Decodes the bit for the mini CQE format that CREATE_CQ passes; `None` unless it is one known
    /// bit.
    pub fn from_bit(bit: u32) -> Option<Self> {
        match bit {
            abi::MLX5_IB_CQE_RES_FORMAT_HASH => Some(Self::Hash),
            abi::MLX5_IB_CQE_RES_FORMAT_CSUM => Some(Self::Checksum),
            abi::MLX5_IB_CQE_RES_FORMAT_CSUM_STRIDX => Some(Self::ChecksumStride),
            _ => None,
        }
    }

    fn mini(self, cqe: &NicCqe) -> u64 {
        let first = match self {
            Self::Hash => cqe.0[1] & 0xffff_ffff,
            Self::Checksum => 0,
            Self::ChecksumStride => u64::from(cqe.wqe_counter()),
        };
        first << 32 | cqe.0[5] & 0xffff_ffff
    }

    /// Returns `true` if a completion can follow another in a compression session: all fields that
    /// a mini CQE does not carry are equal, except the timestamp, which is the title's. So a
    /// session does not continue from one striding WQE to the next (`wqe_id`, which
    /// `mlx5_rx_burst_mprq` asserts of the title).
    fn follows(self, last: &NicCqe, next: &NicCqe) -> bool {
        const COUNTER: u64 = 0xffff << 16;
        let counter = last.wqe_counter().wrapping_add(consumed(last.0[5] as u32));
        let same_hash = self != Self::Hash || last.0[2] == next.0[2];
        let same = |word: usize| last.0[word] == next.0[word];
        [0, 3, 4].into_iter().all(same)
            && same_hash
            && last.0[7] & !COUNTER == next.0[7] & !COUNTER
            && (self == Self::ChecksumStride || next.wqe_counter() == counter)
    }
}

/// CQE compression session of a CQ: similar completions that are not written to the ring yet.
pub struct Session {
    format: MiniCqeFormat,
    /// Maximum number of completions in this compression session.
    max: usize,
    /// Set when a compression session may continue past the end of the CQ's ring. Vectorised
    /// readers do not support that (`rxq_cq_decompress_v` of DPDK's `mlx5_rxtx_vec_*.h`), Linux
    /// does (`mlx5e_cqes_update_owner`).
    wraps: bool,
    title: NicCqe,
    last: NicCqe,
    minis: [u64; MAX_SESSION as usize],
    count: usize,
}

impl Session {
    pub fn new(format: MiniCqeFormat, max: u32, wraps: bool) -> Self {
        Self {
            format,
            max: max.clamp(1, MAX_SESSION) as usize,
            wraps,
            title: NicCqe::default(),
            last: NicCqe::default(),
            minis: [0; MAX_SESSION as usize],
            count: 0,
        }
    }

    /// Returns `true` if the compression session can take this completion; `first_slot` is set if
    /// the completion's slot is the first of the CQ's ring.
    pub fn takes(&self, cqe: &NicCqe, first_slot: bool) -> bool {
        let fits = self.count < self.max && (self.wraps || !first_slot);
        self.count == 0 || fits && self.format.follows(&self.last, cqe)
    }

    pub fn add(&mut self, cqe: &NicCqe) {
        if self.count == 0 {
            self.title = *cqe;
        }
        self.last = *cqe;
        self.minis[self.count] = self.format.mini(cqe);
        self.count += 1;
    }

    pub fn len(&self) -> u32 {
        self.count as u32
    }

    /// Ends the compression session. Returns its first CQE, which is a title if there are several
    /// completions.
    pub fn end(&mut self) -> NicCqe {
        let count = std::mem::take(&mut self.count);
        if count > 1 {
            self.title.titled(count as u32)
        } else {
            self.title
        }
    }

    /// Returns the compression session's arrays of mini CQEs, each with the distance of its slot
    /// from the title's.
    pub fn arrays(&self) -> impl Iterator<Item = (u32, NicCqe)> + use<> {
        let minis = self.minis;
        let count = if self.count > 1 { self.count } else { 0 };
        (0..count).step_by(ARRAY).map(move |at| {
            let mut array = NicCqe::default();
            let end = count.min(at + ARRAY);
            array.0[..end - at].copy_from_slice(&minis[at..end]);
            (at.max(1) as u32, array)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cqe::RxInfo;

    fn cqe(counter: u16, len: u32, hash: u32) -> NicCqe {
        let info = RxInfo {
            hash,
            hash_type: 0x44,
            headers: 0x24,
            byte_count: len,
            ..RxInfo::default()
        };
        NicCqe::received(7, counter, u64::from(counter) * 1000, &info)
    }

    #[test]
    fn fields_of_a_mini_cqe_may_differ() {
        let first = cqe(10, 64, 1);
        let stride = |wqe, counter, strides: u32, len: u32| {
            cqe(counter, 0, 1).in_wqe(wqe, strides << 16 | len)
        };
        let mut tagged = cqe(11, 64, 1);
        tagged.0[7] |= 1 << 32;
        let mut unhashed = cqe(11, 64, 0);
        unhashed.0[2] = 0;
        let mut other_headers = cqe(11, 64, 1);
        other_headers.0[3] ^= 1 << 16;
        let mut other_queue = cqe(11, 64, 1);
        other_queue.0[4] ^= 1 << 32;
        let strided = stride(3, 5, 2, 100);
        for (last, next, [hash, checksum, strides]) in [
            (first, cqe(11, 1500, 2), [true, true, true]),
            (first, cqe(12, 64, 1), [false, false, true]),
            (first, unhashed, [false, true, true]),
            (first, tagged, [false; 3]),
            (first, other_headers, [false; 3]),
            (first, other_queue, [false; 3]),
            (cqe(0xffff, 64, 1), cqe(0, 64, 1), [true; 3]),
            (strided, stride(3, 7, 1, 64), [true; 3]),
            (strided, stride(3, 6, 1, 64), [false, false, true]),
            (strided, stride(4, 0, 1, 64), [false; 3]),
        ] {
            let formats = [
                MiniCqeFormat::Hash,
                MiniCqeFormat::Checksum,
                MiniCqeFormat::ChecksumStride,
            ];
            let found = formats.map(|it| it.follows(&last, &next));
            assert_eq!(found, [hash, checksum, strides], "{last:x?} {next:x?}");
        }
    }

    #[test]
    fn arrays_are_behind_the_title_and_at_every_eighth_slot() {
        for (count, slots) in [
            (1, &[][..]),
            (2, &[1]),
            (8, &[1]),
            (9, &[1, 8]),
            (17, &[1, 8, 16]),
            (64, &[1, 8, 16, 24, 32, 40, 48, 56]),
        ] {
            let mut session = Session::new(MiniCqeFormat::Hash, 64, false);
            for at in 0..count {
                let next = cqe(at, 60 + u32::from(at), u32::from(at));
                assert!(session.takes(&next, false));
                session.add(&next);
            }
            assert_eq!(session.takes(&cqe(count, 60, 0), false), count < 64);
            assert!(!session.takes(&cqe(count, 60, 0), true));
            let arrays: Vec<_> = session.arrays().collect();
            assert_eq!(arrays.iter().map(|it| it.0).collect::<Vec<_>>(), slots);
            for at in 0..u64::from(count) * u64::from(count > 1) {
                let mini = arrays[at as usize / 8].1.0[at as usize % 8];
                assert_eq!(mini, (at << 32) | (60 + at));
            }
            let title = session.end();
            let format = (title.0[7] >> 2 & 3) as u8;
            if count > 1 {
                assert_eq!((format, title.0[5] as u32), (3, u32::from(count)));
            } else {
                assert_eq!((format, title.0[5] as u32), (0, 60));
            }
            assert_eq!(title.0[1], 0);
            assert!(
                session.takes(&cqe(9, 1, 9), true),
                "the next session begins"
            );
        }
    }

    #[test]
    fn sessions_without_hashes_carry_strides_or_nothing() {
        let strided = cqe(5, 0, 77).in_wqe(3, 2 << 16 | 100);
        assert_eq!(
            MiniCqeFormat::ChecksumStride.mini(&strided),
            5 << 32 | 2 << 16 | 100
        );
        assert_eq!(MiniCqeFormat::Checksum.mini(&strided), 2 << 16 | 100);
        assert_eq!(MiniCqeFormat::Hash.mini(&strided), 77 << 32 | 2 << 16 | 100);
    }
}
