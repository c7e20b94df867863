//! How frames share the WQEs of a striding receive queue (PRM "Striding RQ").
//!
//! Imports nothing. Invariant: the strides that CQEs consume of a WQE add up to those it has, and no frame crosses
//! from one WQE into the next.

/// How the buffer of each WQE of a striding queue is divided.
#[derive(Debug, Clone, Copy, Default)]
pub struct StrideLayout {
    /// Base-2 logarithm of a stride's bytes.
    pub log_bytes: u32,
    /// Base-2 logarithm of a WQE's strides.
    pub log_strides: u32,
    /// Frames begin at byte 2 of their first stride.
    pub two_byte_shift: bool,
}

/// The bit of `byte_cnt` that says that there is no frame (`MLX5_MPRQ_FILLER_MASK` of DPDK's `mlx5_rx.h`,
/// `mpwrq_is_filler_cqe` of Linux's `en.h`).
pub const FILLER: u32 = 1 << 31;
/// Where the consumed strides stand in `byte_cnt` (`MLX5_MPRQ_STRIDE_NUM_SHIFT`, `MLX5_MPRQ_STRIDE_NUM_MASK`).
const COUNT_SHIFT: u32 = 16;
const MAX_COUNT: u32 = 0x3fff;
/// The longest frame that `byte_cnt` can tell (`MLX5_MPRQ_LEN_MASK`).
const MAX_LEN: usize = 0xffff;

/// The head WQE of a striding queue.
#[derive(Debug, Clone, Copy)]
pub struct Strides {
    layout: StrideLayout,
    /// Strides that frames have taken of it, fewer than it has.
    used: u32,
}

impl Strides {
    pub fn new(layout: StrideLayout) -> Self {
        Self { layout, used: 0 }
    }

    pub fn layout(&self) -> StrideLayout {
        self.layout
    }

    /// Begins a WQE.
    pub fn restart(&mut self) {
        self.used = 0;
    }

    #[inline(always)]
    fn total(&self) -> u32 {
        1 << self.layout.log_strides
    }

    /// Strides not taken.
    #[inline(always)]
    pub fn left(&self) -> u32 {
        self.total() - self.used
    }

    /// The index of the next stride.
    #[inline(always)]
    pub fn next(&self) -> u16 {
        self.used as u16
    }

    /// Where the next frame begins in the WQE's buffer.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        ((self.used as usize) << self.layout.log_bytes) + self.shift()
    }

    /// Where the stride `count` further on begins, in this WQE or, as if it were the same, in the next.
    #[inline(always)]
    pub fn ahead(&self, count: u32) -> usize {
        let stride = self.used.wrapping_add(count) & (self.total() - 1);
        (stride as usize) << self.layout.log_bytes
    }

    #[inline(always)]
    fn shift(&self) -> usize {
        usize::from(self.layout.two_byte_shift) * 2
    }

    /// The strides that a frame of `len` bytes takes: with the two bytes before it, if there are any. None if it is
    /// longer than a whole WQE.
    #[inline(always)]
    pub fn of_frame(&self, len: usize) -> Option<u32> {
        let bytes = (len + self.shift()).max(1);
        let count = (bytes + (1 << self.layout.log_bytes) - 1) >> self.layout.log_bytes;
        (len <= MAX_LEN && count <= self.total() as usize).then_some(count as u32)
    }

    /// How many WQEs, the head among them, `frames` frames of `count` strides each take.
    pub fn wqes(&self, frames: u32, count: u32) -> u32 {
        let beyond = frames.saturating_sub(self.left() / count);
        1 + beyond.div_ceil(self.total() / count)
    }

    /// Takes strides. Returns whether the WQE is used up, and the next one begins.
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

/// `byte_cnt` of a CQE that consumes `count` strides.
#[inline(always)]
pub fn byte_count(count: u32, len: u32) -> u32 {
    count.min(MAX_COUNT) << COUNT_SHIFT | len
}

/// How far a CQE with this `byte_cnt` moves the queue's counter: by strides, or by one WQE.
#[inline(always)]
pub fn consumed(byte_count: u32) -> u16 {
    match byte_count >> COUNT_SHIFT & MAX_COUNT {
        0 => 1,
        count => count as u16,
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
            assert_eq!(strides(shift).of_frame(len), count, "{shift} {len}");
        }
        let wide = Strides::new(StrideLayout {
            log_bytes: 13,
            log_strides: 16,
            two_byte_shift: false,
        });
        assert_eq!(
            (wide.of_frame(65535), wide.of_frame(65536)),
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
