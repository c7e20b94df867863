//! Capabilities of a device for striding WQs.

use super::context::Context;
use crate::mlx5dv as ffi;
use crate::sys::ibv_qp_type::IBV_QPT_RAW_PACKET;
use serde::Serialize;
use std::ops::RangeInclusive;

/// Bounds of the device for the strides of a [`Striding`](crate::Striding) WQ, as powers of two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StridingCaps {
    /// Range of log2 of a stride's size in bytes.
    pub stride_log: RangeInclusive<u32>,
    /// Range of log2 of the number of strides per WR.
    pub strides_log: RangeInclusive<u32>,
}

impl StridingCaps {
    /// Returns the striding capabilities of an mlx5 device; `None` if its WQs for RAW_PACKET QPs
    /// cannot stride.
    #[must_use]
    pub fn query(context: &Context) -> Option<Self> {
        let mask = ffi::MLX5DV_CONTEXT_MASK_STRIDING_RQ;
        let attr = context.mlx5_attributes(mask)?;
        let caps = attr.striding_rq_caps;
        let has = attr.comp_mask & u64::from(mask) != 0
            && caps.supported_qpts & (1 << IBV_QPT_RAW_PACKET) != 0;
        has.then_some(Self {
            stride_log: caps.min_single_stride_log_num_of_bytes
                ..=caps.max_single_stride_log_num_of_bytes,
            strides_log: caps.min_single_wqe_log_num_of_strides
                ..=caps.max_single_wqe_log_num_of_strides,
        })
    }
}
