//! Conversion between uAPI structs and bytes.

#![allow(unsafe_code)]

use std::mem::{MaybeUninit, size_of};

use super::generated;

/// A uAPI struct in which every bit pattern is a valid value and which has no padding.
///
/// # Safety
/// Both properties must hold. The kernel's rule for uAPI structs (explicit padding, no pointers, no
/// bools) ensures them.
pub unsafe trait Plain: Sized {}

macro_rules! plain {
    ($($name:ident),* $(,)?) => {$(
        // SAFETY: a uAPI struct of integers with explicit padding, generated from its header.
        unsafe impl Plain for generated::$name {}
    )*};
}

// SAFETY: every bit pattern is a value of an integer, and integers have no padding.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}

plain! {
    ib_uverbs_cmd_hdr, ib_uverbs_ex_cmd_hdr, ib_uverbs_get_context, ib_uverbs_get_context_resp,
    ib_uverbs_query_device, ib_uverbs_query_device_resp, ib_uverbs_ex_query_device,
    ib_uverbs_ex_query_device_resp, ib_uverbs_query_port, ib_uverbs_query_port_resp, ib_uverbs_alloc_pd,
    ib_uverbs_alloc_pd_resp, ib_uverbs_dealloc_pd, ib_uverbs_open_xrcd, ib_uverbs_open_xrcd_resp,
    ib_uverbs_close_xrcd, ib_uverbs_reg_mr, ib_uverbs_reg_mr_resp, ib_uverbs_rereg_mr,
    ib_uverbs_rereg_mr_resp, ib_uverbs_dereg_mr, ib_uverbs_alloc_mw, ib_uverbs_alloc_mw_resp,
    ib_uverbs_dealloc_mw, ib_uverbs_create_comp_channel, ib_uverbs_create_comp_channel_resp,
    ib_uverbs_create_cq, ib_uverbs_create_cq_resp, ib_uverbs_ex_create_cq, ib_uverbs_ex_create_cq_resp,
    ib_uverbs_ex_modify_cq, ib_uverbs_resize_cq, ib_uverbs_resize_cq_resp, ib_uverbs_destroy_cq,
    ib_uverbs_destroy_cq_resp, ib_uverbs_create_ah, ib_uverbs_create_ah_resp, ib_uverbs_destroy_ah,
    ib_uverbs_attach_mcast, ib_uverbs_create_qp, ib_uverbs_ex_create_qp, ib_uverbs_create_qp_resp,
    ib_uverbs_ex_create_qp_resp, ib_uverbs_query_qp, ib_uverbs_query_qp_resp, ib_uverbs_modify_qp,
    ib_uverbs_ex_modify_qp, ib_uverbs_ex_modify_qp_resp, ib_uverbs_destroy_qp, ib_uverbs_destroy_qp_resp,
    ib_uverbs_create_flow, ib_uverbs_create_flow_resp, ib_uverbs_destroy_flow, ib_uverbs_flow_spec_hdr,
    ib_uverbs_create_srq, ib_uverbs_create_srq_resp, ib_uverbs_modify_srq, ib_uverbs_query_srq,
    ib_uverbs_query_srq_resp, ib_uverbs_destroy_srq, ib_uverbs_destroy_srq_resp, ib_uverbs_ex_create_wq,
    ib_uverbs_ex_create_wq_resp, ib_uverbs_ex_modify_wq, ib_uverbs_ex_destroy_wq,
    ib_uverbs_ex_destroy_wq_resp, ib_uverbs_ex_create_rwq_ind_table, ib_uverbs_ex_create_rwq_ind_table_resp,
    ib_uverbs_ex_destroy_rwq_ind_table, ib_uverbs_ioctl_hdr, ib_uverbs_attr, ib_uverbs_flow_spec_action_count,
    ib_uverbs_comp_event_desc, ib_uverbs_async_event_desc, mlx5_ib_alloc_ucontext_req_v2,
    mlx5_ib_alloc_ucontext_resp, mlx5_ib_alloc_pd_resp, mlx5_ib_query_device_resp, mlx5_ib_create_cq,
    mlx5_ib_create_cq_resp, mlx5_ib_resize_cq, mlx5_ib_create_srq, mlx5_ib_create_srq_resp, mlx5_ib_create_qp,
    mlx5_ib_create_qp_resp, mlx5_ib_create_qp_rss, mlx5_ib_create_wq, mlx5_ib_create_wq_resp,
    mlx5_ib_create_rwq_ind_tbl_resp, mlx5_ib_modify_wq, mlx5_ib_create_ah_resp, mlx5_ib_create_flow,
    mlx5_ib_flow_counters_data, mlx5_ib_flow_counters_desc, mlx5_ib_alloc_mw, mlx5_ib_clock_info,
}

/// Reads the uAPI struct at the start of `bytes`. Missing bytes count as zero, as the kernel
/// extends the shorter structs of older programs.
pub fn read_prefix<T: Plain>(bytes: &[u8]) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    let len = bytes.len().min(size_of::<T>());
    // SAFETY: the source holds `len` bytes and the destination at least as many. `Plain` makes any
    // bytes, including the zeroes behind them, a valid value.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast(), len);
        value.assume_init()
    }
}

/// Reads the uAPI struct at the start of `bytes`; returns `None` if there are too few bytes.
pub fn read_from<T: Plain>(bytes: &[u8]) -> Option<T> {
    (bytes.len() >= size_of::<T>()).then(|| read_prefix(bytes))
}

/// Returns the bytes of a uAPI struct.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` structs have no padding, so each of their bytes is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_structs_are_zero_extended_and_long_ones_cut() {
        let full: generated::ib_uverbs_destroy_cq = read_prefix(&[1; 64]);
        assert_eq!(full.cq_handle, 0x0101_0101);
        let short: generated::ib_uverbs_destroy_cq = read_prefix(&[1; 10]);
        assert_eq!((short.cq_handle, short.reserved), (0x0101, 0));
        assert!(read_from::<generated::ib_uverbs_destroy_cq>(&[0; 15]).is_none());
    }
}
