//! Layouts that `build.rs` generates from the system headers.

#![allow(
    missing_docs,
    dead_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]

include!(concat!(env!("OUT_DIR"), "/abi.rs"));

use std::mem::{offset_of, size_of};

// Layouts that the rings rely on. A wrong field there would corrupt memory instead of failing a
// command.
const _: () = {
    assert!(size_of::<mlx5_cqe64>() == 64 && size_of::<mlx5_err_cqe>() == 64);
    assert!(offset_of!(mlx5_cqe64, op_own) == 63 && offset_of!(mlx5_err_cqe, op_own) == 63);
    assert!(offset_of!(mlx5_err_cqe, vendor_err_synd) == 54);
    assert!(offset_of!(mlx5_err_cqe, syndrome) == 55);
    assert!(size_of::<mlx5_wqe_ctrl_seg>() == 16 && size_of::<mlx5_wqe_data_seg>() == 16);
    assert!(size_of::<mlx5_wqe_srq_next_seg>() == 16);
    assert!(size_of::<ib_uverbs_cmd_hdr>() == 8 && size_of::<ib_uverbs_ex_cmd_hdr>() == 16);
};
