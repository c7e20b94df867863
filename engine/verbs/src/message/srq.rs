//! Shared receive queues: one queue of receives for any number of QPs.

use super::memory::{BorrowerId, MessageMemory, MessageSlot};
use crate::sys as ffi;
use crate::{device::CmId, error::check_ret};
use crate::{
    device::ContextInner,
    error::{VerbsError, check_created, check_errno, log_destroy_error},
    mr::MrInner,
    pd::{Pd, PdInner},
};
use std::{io, mem, ptr, sync::Arc};

/// Capability of a device to resize SRQs, a flag of `ibv_device_attr::device_cap_flags`.
pub const SRQ_RESIZE: u32 = ffi::ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0;

/// SRQ with one poster: not `Clone`, and methods that change it take `&mut`. Attached QPs hold it,
/// so `ibv_destroy_srq` is never called with QPs attached (it would fail with EBUSY).
pub struct Srq {
    pub(crate) inner: Arc<SrqInner>,
}

pub(crate) struct SrqInner {
    pub(crate) raw: *mut ffi::ibv_srq,
    /// Connection manager identifier on which the SRQ was created; `None` if it was created without
    /// one.
    id: Option<Arc<CmId>>,
    pub(crate) context: Arc<ContextInner>,
    // The device writes into `memory` as long as the SRQ exists.
    pub(crate) memory: Arc<MrInner>,
    lender: BorrowerId,
    _pd: Arc<PdInner>,
}

// SAFETY: only the owner of the one `Srq` posts or modifies; QPs hold the Arc only to keep the SRQ
// alive.
unsafe impl Send for SrqInner {}
// SAFETY: shared references only read the pointer, and destroy the SRQ on the last drop.
unsafe impl Sync for SrqInner {}

impl Drop for SrqInner {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            let _locked = id.lock();
            // SAFETY: created on this live identifier by `create_on`, destroyed only here; QPs hold
            // an Arc of self.
            unsafe { ffi::rdma_destroy_srq(id.raw) }
            return;
        }
        // SAFETY: created by `create`, destroyed only here; QPs hold an Arc of self.
        log_destroy_error("ibv_destroy_srq", unsafe { ffi::ibv_destroy_srq(self.raw) });
    }
}

impl Srq {
    /// Creates an SRQ of at least `max_wr` WRs with one scatter entry each, which receives into the
    /// slots of `messages`.
    ///
    /// # Errors
    /// EINVAL above the device's limits and for memory of another context, ENOMEM, EOPNOTSUPP if
    /// the device has no SRQs.
    pub fn create(pd: &Pd, messages: &MessageMemory, max_wr: u32) -> Result<Self, VerbsError> {
        Self::require_one_context(pd, messages, "ibv_create_srq", max_wr)?;
        let mut init = init(max_wr);
        // SAFETY: a live PD, held by the new object; `init` begins with what the call reads, and
        // outlives it.
        let raw = unsafe { ffi::ibv_create_srq(pd.0.raw, (&raw mut init).cast()) };
        let raw = check_created(raw, "ibv_create_srq", object(&pd.0.context, max_wr))?;
        Ok(Self::new(SrqInner {
            raw,
            id: None,
            context: Arc::clone(&pd.0.context),
            memory: messages.memory(),
            lender: BorrowerId::next(),
            _pd: Arc::clone(&pd.0),
        }))
    }

    fn require_one_context(
        pd: &Pd,
        messages: &MessageMemory,
        verb: &'static str,
        max_wr: u32,
    ) -> Result<(), VerbsError> {
        let (context, memory) = (&pd.0.context, messages.memory());
        context.refuse_others([&memory.pd.context], verb, || object(context, max_wr))
    }

    /// Creates the SRQ of a connection manager identifier that is bound to `pd`'s device. An
    /// identifier has one SRQ at a time.
    pub(crate) fn create_on(
        id: &Arc<CmId>,
        pd: &Pd,
        messages: &MessageMemory,
        max_wr: u32,
    ) -> Result<Self, VerbsError> {
        Self::require_one_context(pd, messages, "rdma_create_srq", max_wr)?;
        let mut init = init(max_wr);
        let _locked = id.lock();
        // SAFETY: a live identifier, whose fields change only under the lock.
        if unsafe { !(*id.raw).srq.is_null() } {
            // librdmacm would lose the first SRQ, and destroy the second one twice.
            let object = format!("{}, a second SRQ", object(&pd.0.context, max_wr));
            return Err(VerbsError::from_errno(
                "rdma_create_srq",
                object,
                libc::EBUSY,
            ));
        }
        // SAFETY: a live identifier and PD, both held by the new object; `init` begins with what
        // the call reads, and outlives it.
        let ret = unsafe { ffi::rdma_create_srq(id.raw, pd.0.raw, (&raw mut init).cast()) };
        check_ret(ret, "rdma_create_srq", object(&pd.0.context, max_wr))?;
        // SAFETY: a live identifier whose `srq` the call has set.
        let raw = unsafe { (*id.raw).srq };
        Ok(Self::new(SrqInner {
            raw,
            id: Some(Arc::clone(id)),
            context: Arc::clone(&pd.0.context),
            memory: messages.memory(),
            lender: BorrowerId::next(),
            _pd: Arc::clone(&pd.0),
        }))
    }

    fn new(inner: SrqInner) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Returns the number that identifies this SRQ in asynchronous events, unique in this process.
    #[must_use]
    pub fn id(&self) -> usize {
        self.inner.raw as usize
    }

    /// Returns the number of QPs that are attached to the SRQ.
    #[must_use]
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Returns the current attributes of the SRQ: `max_wr` is at least the requested size,
    /// `srq_limit` the armed low watermark, 0 if none is armed.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn query(&self) -> Result<ffi::ibv_srq_attr, VerbsError> {
        // SAFETY: plain old data, filled by the call on a live SRQ.
        let (ret, attr) = unsafe {
            let mut attr: ffi::ibv_srq_attr = mem::zeroed();
            (ffi::ibv_query_srq(self.inner.raw, &raw mut attr), attr)
        };
        check_errno(ret, "ibv_query_srq", || self.inner.context.name().into())?;
        Ok(attr)
    }

    /// Arms the low watermark of the SRQ: one event is raised when fewer than `limit` WRs are
    /// posted, and no other until it is armed again.
    ///
    /// # Errors
    /// EINVAL for a limit above the size of the SRQ.
    pub fn arm(&mut self, limit: u32) -> Result<(), VerbsError> {
        let what = format!("srq_limit {limit}");
        self.modify(0, limit, ffi::ibv_srq_attr_mask::IBV_SRQ_LIMIT, &what)
    }

    /// Resizes the SRQ to at least `max_wr` WRs.
    ///
    /// # Errors
    /// EINVAL below the number of posted WRs or the armed limit, above the device's limit, and if
    /// the device cannot resize SRQs (no `IBV_DEVICE_SRQ_RESIZE`). The SRQ is then unchanged.
    pub fn resize(&mut self, max_wr: u32) -> Result<(), VerbsError> {
        let what = format!("max_wr {max_wr}");
        self.modify(max_wr, 0, ffi::ibv_srq_attr_mask::IBV_SRQ_MAX_WR, &what)
    }

    fn modify(
        &mut self,
        max_wr: u32,
        srq_limit: u32,
        mask: ffi::ibv_srq_attr_mask,
        what: &str,
    ) -> Result<(), VerbsError> {
        let mut attr = ffi::ibv_srq_attr {
            max_wr,
            max_sge: 0,
            srq_limit,
        };
        let mask = i32::try_from(mask.0).unwrap_or(0);
        // SAFETY: a live SRQ; `&mut self` is the only modifier.
        let errno = unsafe { ffi::ibv_modify_srq(self.inner.raw, &raw mut attr, mask) };
        check_errno(errno, "ibv_modify_srq", || {
            format!("{}, {what}", self.inner.context.name())
        })
    }

    /// Posts a receive WR for the message slot `slot` to the SRQ.
    ///
    /// # Errors
    /// The slot, with ENOMEM if the queue is full, EINVAL if the SRQ was created for other
    /// messages, or the errno of a device that rejects the WR.
    ///
    /// # Panics
    /// Panics if the slot belongs to another [`MessageMemory`] than `messages`.
    pub fn post(
        &mut self,
        messages: &mut MessageMemory,
        slot: MessageSlot,
    ) -> Result<(), (MessageSlot, io::Error)> {
        if !messages.is_over(&self.inner.memory) {
            return Err((slot, io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let (length, lender) = (messages.slot_len(), self.inner.lender);
        let (wr_id, mut sge) = messages.lend(slot, length, lender);
        let mut wr = ffi::ibv_recv_wr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the WR and its scatter entry outlive the call; the entry lies in memory this SRQ
        // holds, in a slot that is lent to the device until its completion.
        match unsafe { ffi::ibv_post_srq_recv(self.inner.raw, &raw mut wr, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(messages.refused(wr_id, lender, errno)),
        }
    }
}

/// Returns the creation attributes of an SRQ in the extended structure. `ibv_srq_init_attr` ends in
/// padding where this one has `comp_mask`, and libibverbs reads `comp_mask` in either structure
/// (`ibv_cmd_create_srq` of rdma-core, libibverbs/cmd_srq.c).
fn init(max_wr: u32) -> ffi::ibv_srq_init_attr_ex {
    // SAFETY: plain old data; all zero is the documented start.
    let mut init: ffi::ibv_srq_init_attr_ex = unsafe { mem::zeroed() };
    init.attr.max_wr = max_wr;
    init.attr.max_sge = 1;
    init
}

fn object(context: &ContextInner, max_wr: u32) -> String {
    format!("{}, {max_wr} WRs", context.name())
}
