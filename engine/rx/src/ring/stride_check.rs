//! Check of a striding queue's first completions against the layout that this crate expects of them.
//!
//! No physical card has confirmed that layout yet. So each queue of `capture.receive = "auto"` checks
//! the frames of its first buffers: their order, their strides, and whether the device wrote to the
//! bytes that the completion names. These buffers are marked before they are posted. A completion
//! that does not fit makes the queue fall back to a WQE per frame ([`super::fallback`]).

use super::pool::SlotMemory;
use crate::error::StrideMismatch;
use wqcap_verbs::{FrameStrides, Striding};

/// Number of a striding queue's buffers whose completions are checked.
pub(super) const CHECKED_BUFFERS: u16 = 2;
/// Number of a frame's first bytes of which at least one must differ from the mark in its buffer.
const HEAD: u32 = 8;
/// Number of a frame's last bytes of which at least one must differ from the mark in its buffer.
const TAIL: u32 = 4;

/// Position in a striding queue's ring at which the next completion is expected.
pub(super) struct ExpectedStrides {
    pub shape: Striding,
    pub buffer: u32,
    /// Number of strides used up in the buffer.
    pub used: u32,
    /// Ring index of the WQE that names the buffer.
    pub wqe: u32,
}

impl ExpectedStrides {
    /// Checks the completion of a frame or filler: its position, its number of strides, and that
    /// the device wrote the frame. `wqe` is the ring index of the WQE that the CQE names; `None`
    /// for mini CQEs, which name no WQE.
    pub(super) fn check(
        &self,
        it: FrameStrides,
        wqe: Option<u32>,
        memory: &SlotMemory,
    ) -> Result<(), StrideMismatch> {
        let Striding { stride, strides } = self.shape;
        let (found, len) = (it.count, it.len);
        if found == 0 || found > strides - self.used {
            return Err(StrideMismatch::NotFree { found });
        }
        // Linux and DPDK read neither the stride index nor the WQE of a filler
        // (`mlx5e_handle_rx_cqe_mpwrq` of drivers/net/ethernet/mellanox/mlx5/core/en_rx.c,
        // `mlx5_rx_burst_mprq` of drivers/net/mlx5/mlx5_rx.c).
        let Some(len) = len else { return Ok(()) };
        if it.first != self.used {
            return Err(StrideMismatch::First {
                expected: self.used,
                found: it.first,
            });
        }
        if found != len.div_ceil(stride) {
            return Err(StrideMismatch::Count { found, len });
        }
        if let Some(found) = wqe.filter(|found| *found != self.wqe) {
            return Err(StrideMismatch::Wqe {
                expected: self.wqe,
                found,
            });
        }
        let at = it.first * stride;
        let (head, tail) = (len.min(HEAD), len.min(TAIL));
        let is_marked = |at, len| memory.is_marked(self.buffer, at, len);
        if is_marked(at, head) || is_marked(at + len - tail, tail) {
            return Err(StrideMismatch::Unwritten {
                len,
                first: it.first,
            });
        }
        Ok(())
    }
}
