//! Commands for contexts and completion channels.

use std::cmp::min;
use std::sync::Arc;

use crate::abi::*;
use crate::device::event::EventChannel;
use crate::device::scatter::MAX_WQE;
use crate::device::state::{BFREGS_OF_UAR, DYNAMIC_UARS};
use crate::process::Errno;

use super::{UverbsFile, UverbsRequest};

/// Number of completion vectors of the device, the CPUs that completion events can be steered to.
pub const COMP_VECTORS: u32 = 2;
/// Size of the largest send queue in WQE basic blocks of 64 bytes.
pub const MAX_SEND_WQEBB: u32 = 32768;

pub fn get(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let asked: mlx5_ib_alloc_ucontext_req_v2 = request.driver(8)?;
    if asked.flags & MLX5_IB_ALLOC_UCTX_DEVX != 0 {
        // libmlx5 retries without DEVX.
        return Err(libc::EOPNOTSUPP);
    }
    if asked.total_num_bfregs == 0 || asked.num_low_latency_bfregs > asked.total_num_bfregs {
        return Err(libc::EINVAL);
    }
    if asked.comp_mask != 0 || asked.reserved0 != 0 || asked.reserved1 != 0 || asked.reserved2 != 0
    {
        return Err(libc::EOPNOTSUPP);
    }
    let caps = file.caps();
    let async_fd = file.create_context()?;
    request.reply(&ib_uverbs_get_context_resp {
        async_fd: async_fd as u32,
        num_comp_vectors: COMP_VECTORS,
        ..Default::default()
    })?;
    let realtime = if caps.realtime_clock {
        MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS
    } else {
        0
    };
    request.reply_driver(&mlx5_ib_alloc_ucontext_resp {
        qp_tab_size: 1 << 17,
        bf_reg_size: 512,
        // With fewer registers than requested, libmlx5 would request more by ioctl.
        tot_bfregs: asked.total_num_bfregs,
        cache_line_size: 64,
        max_sq_desc_sz: 1024,
        max_rq_desc_sz: MAX_WQE as u16,
        max_send_wqebb: MAX_SEND_WQEBB,
        max_recv_wr: caps.max_recv_wr,
        max_srq_recv_wr: caps.max_srq_wr,
        num_ports: file.settings().ports.len() as u16,
        comp_mask: MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET | realtime,
        response_length: size_of::<mlx5_ib_alloc_ucontext_resp>() as u32,
        // Version 1: completions name their queue by the program's own index.
        cqe_version: min(asked.max_cqe_version, 1),
        cmds_supp_uhw: (MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH)
            as u8,
        eth_min_inline: MLX5_USER_INLINE_MODE_NONE as u8,
        clock_info_versions: 1 << MLX5_IB_CLOCK_INFO_V1,
        hca_core_clock_offset: 0,
        log_uar_size: 12,
        num_uars_per_page: 1,
        num_dyn_bfregs: DYNAMIC_UARS * BFREGS_OF_UAR,
        ..Default::default()
    })
}

pub fn create_comp_channel(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let channel = EventChannel::completion()?;
    let fd = channel.fd();
    let mut state = file.lock();
    let context = state
        .contexts
        .get_mut(&file.context())
        .ok_or(libc::EINVAL)?;
    context.channels.retain(|channel| !channel.is_closed());
    context.channels.push(Arc::clone(&channel));
    drop(state);
    request.reply(&ib_uverbs_create_comp_channel_resp { fd: fd as u32 })
}
