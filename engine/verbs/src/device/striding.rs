//! Which striding WQs a device can make.

use super::context::Context;
use crate::mlx5dv as ffi;
use rdma_sys::ibv_qp_type::IBV_QPT_RAW_PACKET;
use serde::Serialize;
use std::ops::RangeInclusive;

/// Bounds of a [`Striding`](crate::Striding), as powers of two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StridingCaps {
    /// log2 of the bytes of a stride.
    pub stride_log: RangeInclusive<u32>,
    /// log2 of the strides of a WR.
    pub strides_log: RangeInclusive<u32>,
}

impl StridingCaps {
    /// Of an mlx5 device whose WQs for RAW_PACKET QPs can stride.
    #[must_use]
    pub fn of(context: &Context) -> Option<Self> {
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
