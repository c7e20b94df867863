//! libmlx5's direct verbs, which `rdma-sys` lacks. `build.rs` generates their declarations from the
//! system's `infiniband/mlx5dv.h`. The library is loaded when its first function is called.

use crate::library::library;
pub use declared::*;
use std::ffi::{c_int, c_void};

/// Declarations of libmlx5's header `infiniband/mlx5dv.h`, which `build.rs` generates.
#[allow(
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code,
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks
)]
mod declared {
    include!(concat!(env!("OUT_DIR"), "/direct.rs"));
}

/// Returns `true` if libmlx5 is the provider of a device.
///
/// # Safety
/// The device is in a list of libibverbs, or open.
pub(crate) unsafe fn is_mlx5(device: *mut crate::sys::ibv_device) -> bool {
    // SAFETY: guaranteed by the caller. A machine without libmlx5 has no device of it.
    Mlx5::get().is_ok() && unsafe { mlx5dv_is_supported(device.cast()) }
}

library! {
    /// Functions of libmlx5.
    pub(crate) Mlx5 in "libmlx5.so.1", declared in declared;

    fn mlx5dv_create_cq(
        context: *mut ibv_context,
        attr: *mut ibv_cq_init_attr_ex,
        more: *mut mlx5dv_cq_init_attr,
    ) -> *mut ibv_cq_ex;
    fn mlx5dv_create_qp(
        context: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
        more: *mut mlx5dv_qp_init_attr,
    ) -> *mut ibv_qp;
    fn mlx5dv_create_wq(
        context: *mut ibv_context,
        attr: *mut ibv_wq_init_attr,
        more: *mut mlx5dv_wq_init_attr,
    ) -> *mut ibv_wq;
    fn mlx5dv_get_clock_info(context: *mut ibv_context, info: *mut mlx5dv_clock_info) -> c_int;
    fn mlx5dv_init_obj(object: *mut mlx5dv_obj, kind: u64) -> c_int;
    fn mlx5dv_is_supported(device: *mut ibv_device) -> bool;
    fn mlx5dv_query_device(context: *mut ibv_context, attr: *mut mlx5dv_context) -> c_int;
    fn mlx5dv_set_context_attr(
        context: *mut ibv_context,
        kind: mlx5dv_set_ctx_attr_type,
        attr: *mut c_void,
    ) -> c_int;
}
