//! Sharing of a striding receive queue's WQEs by frames (PRM "Striding RQ").
//!
//! Imports the settings. Invariant: the strides that CQEs consume of a WQE add up to all its strides,
//! and no frame crosses from one WQE into the next.

use crate::settings::{NicCaps, WrongCqeField};

/// Division of each WQE's buffer into strides in a striding receive queue.
#[derive(Debug, Clone, Copy, Default)]
pub struct StrideLayout {
    /// Base-2 logarithm of a stride's size in bytes.
    pub log_bytes: u32,
    /// Base-2 logarithm of the number of strides in a receive WQE.
    pub log_strides: u32,
    /// Set when frames begin at byte 2 of their first stride in a striding receive queue.
    pub two_byte_shift: bool,
}

/// Bit of `byte_cnt` in a striding queue's CQE that marks a CQE without a frame
/// (`MLX5_MPRQ_FILLER_MASK` of DPDK's `mlx5_rx.h`, `mpwrq_is_filler_cqe` of Linux's `en.h`).
pub const FILLER: u32 = 1 << 31;
/// Bit position of the number of consumed strides in `byte_cnt` of a CQE
/// (`MLX5_MPRQ_STRIDE_NUM_SHIFT`, `MLX5_MPRQ_STRIDE_NUM_MASK`).
const COUNT_SHIFT: u32 = 16;
const MAX_COUNT: u32 = 0x3fff;
/// Length of the longest frame that `byte_cnt` of a CQE can hold (`MLX5_MPRQ_LEN_MASK`).
const MAX_LEN: usize = 0xffff;

/// Head WQE of a striding receive queue, with its used strides.
#[derive(Debug, Clone, Copy)]
pub struct Strides {
    layout: StrideLayout,
    /// Number of the head WQE's strides that frames have taken, less than all.
    used: u32,
}

impl Strides {
    pub fn new(layout: StrideLayout) -> Self {
        Self { layout, used: 0 }
    }

    pub fn layout(&self) -> StrideLayout {
        self.layout
    }

    /// Marks all strides as free, because the next WQE of a striding receive queue begins.
    pub fn restart(&mut self) {
        self.used = 0;
    }

    #[inline(always)]
    fn total(&self) -> u32 {
        1 << self.layout.log_strides
    }

    /// Returns the number of free strides in a striding receive queue's head WQE.
    #[inline(always)]
    pub fn left(&self) -> u32 {
        self.total() - self.used
    }

    /// Returns the index of the next free stride in a striding receive queue's head WQE.
    #[inline(always)]
    pub fn next(&self) -> u16 {
        self.used as u16
    }

    /// Returns the offset of the next frame in the buffer of a striding receive queue's head WQE.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        ((self.used as usize) << self.layout.log_bytes) + self.shift()
    }

    /// Returns the offset in a WQE's buffer of the stride that is `count` strides behind the next
    /// free one, in the head WQE or in the one after it.
    #[inline(always)]
    pub fn ahead(&self, count: u32) -> usize {
        let stride = self.used.wrapping_add(count) & (self.total() - 1);
        (stride as usize) << self.layout.log_bytes
    }

    #[inline(always)]
    fn shift(&self) -> usize {
        usize::from(self.layout.two_byte_shift) * 2
    }

    /// Returns the number of strides that a frame of `len` bytes takes, including the two bytes of
    /// the shift; `None` if the frame is longer than a whole WQE.
    #[inline(always)]
    pub fn strides_for(&self, len: usize) -> Option<u32> {
        let bytes = (len + self.shift()).max(1);
        let count = (bytes + (1 << self.layout.log_bytes) - 1) >> self.layout.log_bytes;
        (len <= MAX_LEN && count <= self.total() as usize).then_some(count as u32)
    }

    /// Returns the number of WQEs of a striding receive queue that `frames` frames of `count`
    /// strides each take, including the head.
    pub fn wqes(&self, frames: u32, count: u32) -> u32 {
        let beyond = frames.saturating_sub(self.left() / count);
        1 + beyond.div_ceil(self.total() / count)
    }

    /// Takes `count` strides of a striding receive queue's head WQE. Returns `true` if the WQE is
    /// used up; the next one begins then.
    #[inline(always)]
    pub fn take(&mut self, count: u32) -> bool {
        self.used += count;
        let full = self.used >= self.total();
        if full {
            self.used = 0;
        }
        full
    }
}

/// Returns the field `byte_cnt` of a striding queue's CQE that consumes `count` strides for `len`
/// bytes.
#[inline(always)]
pub fn byte_count(count: u32, len: u32) -> u32 {
    count.min(MAX_COUNT) << COUNT_SHIFT | len
}

/// Returns the number by which a CQE with this `byte_cnt` advances the receive queue's counter: its
/// strides, or one WQE.
#[inline(always)]
pub fn consumed(byte_count: u32) -> u16 {
    match byte_count >> COUNT_SHIFT & MAX_COUNT {
        0 => 1,
        count => count as u16,
    }
}

/// Deviations of a striding receive queue's CQEs from those that the capture engine and drivers
/// were written for.
#[derive(Debug, Clone, Copy, Default)]
pub struct StridingCqes {
    /// Set when `wqe_counter` of a striding queue's filler CQE is 0.
    pub filler_counter_zero: bool,
    /// Set when an error CQE of a striding queue consumes the strides of its own frame only.
    pub error_own_strides: bool,
    /// Field that is wrong in the CQEs of frames in a striding queue.
    pub wrong: WrongCqeField,
}

impl StridingCqes {
    /// Returns the deviations of striding CQEs that a device's settings request.
    pub fn new(caps: &NicCaps) -> Self {
        Self {
            filler_counter_zero: caps.filler_counter_zero,
            error_own_strides: caps.error_own_strides,
            wrong: caps.wrong_striding_cqe,
        }
    }

    /// Puts the wrong value that the device's settings request into `wqe_id`, `wqe_counter` or
    /// `byte_cnt` of a frame's CQE.
    #[cold]
    pub fn falsify(&self, wqe_id: &mut u16, counter: &mut u16, byte_cnt: &mut u32) {
        match self.wrong {
            WrongCqeField::None => {}
            WrongCqeField::WqeCounter => *counter = *wqe_id,
            WrongCqeField::Strides => *byte_cnt += 1 << COUNT_SHIFT,
            WrongCqeField::WqeId => *wqe_id = wqe_id.wrapping_add(1),
            WrongCqeField::ByteCount => *byte_cnt += 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strides(two_byte_shift: bool) -> Strides {
        Strides::new(StrideLayout {
            log_bytes: 6,
            log_strides: 3,
            two_byte_shift,
        })
    }

    #[test]
    fn a_frame_takes_whole_strides() {
        for (shift, len, count) in [
            (false, 1, Some(1)),
            (false, 64, Some(1)),
            (false, 65, Some(2)),
            (false, 512, Some(8)),
            (false, 513, None),
            (true, 62, Some(1)),
            (true, 63, Some(2)),
            (true, 510, Some(8)),
            (true, 511, None),
        ] {
            assert_eq!(strides(shift).strides_for(len), count, "{shift} {len}");
        }
        let wide = Strides::new(StrideLayout {
            log_bytes: 13,
            log_strides: 16,
            two_byte_shift: false,
        });
        assert_eq!(
            (wide.strides_for(65535), wide.strides_for(65536)),
            (Some(8), None)
        );
    }

    #[test]
    fn several_frames_take_the_rest_and_then_whole_wqes() {
        let mut head = strides(false);
        assert_eq!(
            (head.wqes(1, 8), head.wqes(2, 8), head.wqes(2, 4)),
            (1, 2, 1)
        );
        assert!(!head.take(5));
        assert_eq!((head.left(), head.next(), head.offset()), (3, 5, 320));
        assert_eq!(
            (head.wqes(1, 3), head.wqes(1, 4), head.wqes(4, 3)),
            (1, 2, 3)
        );
        assert!(head.take(3));
        assert_eq!(head.left(), 8);
    }
}
