//! Bindings of libibverbs and librdmacm. The structures and inline functions are those of
//! `rdma-sys`; the functions are those that this workspace calls.
//!
//! A program does not need the libraries to start: each is loaded when its first function is
//! called. Each function has the type that `rdma-sys` declares for it.
#![allow(missing_docs)]

use crate::{error::VerbsError, library::library};
use libc::sockaddr;
use rdma_sys::ibv_wc_status::Type as WcStatus;
use rdma_sys::rdma_cm_event_type::Type as CmEventType;
use rdma_sys::rdma_port_space::Type as PortSpace;
pub use rdma_sys::*;
use std::ffi::{c_char, c_int, c_uint, c_void};

library! {
    /// Functions of libibverbs.
    pub(crate) Verbs in "libibverbs.so.1", declared in rdma_sys;

    fn ibv_ack_async_event(event: *mut ibv_async_event);
    fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint);
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_create_cq(
        context: *mut ibv_context,
        entries: c_int,
        user: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        user: *mut *mut c_void,
    ) -> c_int;
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    fn ibv_query_port(
        context: *mut ibv_context,
        port: u8,
        attr: *mut _compat_ibv_port_attr,
    ) -> c_int;
    fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
    fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        start: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr;
    fn ibv_wc_status_str(status: WcStatus) -> *const c_char;
}

library! {
    /// Functions of librdmacm.
    pub(crate) ConnectionManager in "librdmacm.so.1", declared in rdma_sys;

    fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        user: *mut c_void,
        space: PortSpace,
    ) -> c_int;
    fn rdma_create_qp(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        attr: *mut ibv_qp_init_attr,
    ) -> c_int;
    fn rdma_create_srq(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        attr: *mut ibv_srq_init_attr,
    ) -> c_int;
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    fn rdma_destroy_qp(id: *mut rdma_cm_id);
    fn rdma_destroy_srq(id: *mut rdma_cm_id);
    fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    fn rdma_event_str(event: CmEventType) -> *const c_char;
    fn rdma_get_cm_event(
        channel: *mut rdma_event_channel,
        event: *mut *mut rdma_cm_event,
    ) -> c_int;
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int;
    fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        from: *mut sockaddr,
        to: *mut sockaddr,
        timeout_ms: c_int,
    ) -> c_int;
    fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
}

/// Loads librdmacm now, as a process must whose sandbox later forbids executable mappings.
///
/// # Errors
/// The library is not installed, or lacks a function.
pub fn load_connection_manager() -> Result<(), VerbsError> {
    ConnectionManager::get()?;
    Ok(())
}
