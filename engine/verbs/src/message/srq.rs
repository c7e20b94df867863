//! Shared receive queues: one queue of receives for however many QPs.

use super::memory::{LenderId, MessageSlot, Messages};
use crate::{
    device::{CmId, ContextInner},
    error::{VerbsError, answered, called, destroyed, made},
    mr::MrInner,
    pd::{Pd, PdInner},
};
use rdma_sys as ffi;
use std::{io, mem, ptr, sync::Arc};

/// The capability to resize SRQs, in `ibv_device_attr::device_cap_flags`.
pub const SRQ_RESIZE: u32 = ffi::ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0;

/// An SRQ with one poster: not `Clone`, and what changes it takes `&mut`. QPs attached to it hold it, so
/// `ibv_destroy_srq` never meets one (it would fail with EBUSY).
pub struct Srq {
    pub(crate) inner: Arc<SrqInner>,
}

pub(crate) struct SrqInner {
    pub(crate) raw: *mut ffi::ibv_srq,
    /// The CM identifier it was made on, whose `srq` it is; `None`: it is of no identifier.
    id: Option<Arc<CmId>>,
    pub(crate) context: Arc<ContextInner>,
    // The device writes into `memory` as long as the SRQ exists.
    pub(crate) memory: Arc<MrInner>,
    lender: LenderId,
    _pd: Arc<PdInner>,
}

// SAFETY: only the owner of the one `Srq` posts or modifies; QPs hold the Arc for its lifetime alone.
unsafe impl Send for SrqInner {}
// SAFETY: through a shared reference nothing is done but reading the pointer and destroy on the last drop.
unsafe impl Sync for SrqInner {}

impl Drop for SrqInner {
    fn drop(&mut self) {
        match &self.id {
            Some(id) => {
                let _locked = id.lock();
                // SAFETY: made on this live identifier by `create_on`, destroyed only here; QPs hold an Arc of self.
                unsafe { ffi::rdma_destroy_srq(id.raw) }
            }
            // SAFETY: made by `create`, destroyed only here; QPs hold an Arc of self.
            None => destroyed("ibv_destroy_srq", unsafe { ffi::ibv_destroy_srq(self.raw) }),
        }
    }
}

impl Srq {
    /// Creates an SRQ of at least `max_wr` WRs of one scatter entry, whose receives go into `messages`.
    ///
    /// # Errors
    /// EINVAL above the device's limits and for memory of another context, ENOMEM, EOPNOTSUPP where the device has none.
    pub fn create(pd: &Pd, messages: &Messages, max_wr: u32) -> Result<Self, VerbsError> {
        Self::of_one_context(pd, messages, "ibv_create_srq", max_wr)?;
        let mut init = init(max_wr);
        // SAFETY: a live PD, held by the new object; `init` begins with what the call reads, and outlives it.
        let raw = unsafe { ffi::ibv_create_srq(pd.0.raw, (&raw mut init).cast()) };
        let raw = made(raw, "ibv_create_srq", object(&pd.0.context, max_wr))?;
        Ok(Self::of(raw, None, pd, messages))
    }

    fn of_one_context(
        pd: &Pd,
        messages: &Messages,
        verb: &'static str,
        max_wr: u32,
    ) -> Result<(), VerbsError> {
        let (context, memory) = (&pd.0.context, messages.memory());
        context.refuse_others([&memory.pd.context], verb, || object(context, max_wr))
    }

    /// Creates an SRQ as that of a CM identifier that is bound to `pd`'s device. An identifier has one SRQ at a time.
    pub(crate) fn create_on(
        id: &Arc<CmId>,
        pd: &Pd,
        messages: &Messages,
        max_wr: u32,
    ) -> Result<Self, VerbsError> {
        Self::of_one_context(pd, messages, "rdma_create_srq", max_wr)?;
        let mut init = init(max_wr);
        let _locked = id.lock();
        // SAFETY: a live identifier, whose fields change only under the lock.
        if unsafe { !(*id.raw).srq.is_null() } {
            // librdmacm would forget the first one, and destroy the second one twice.
            let object = format!("{}, a second one", object(&pd.0.context, max_wr));
            return Err(VerbsError::from_errno(
                "rdma_create_srq",
                object,
                libc::EBUSY,
            ));
        }
        // SAFETY: a live identifier and PD, both held by the new object; `init` begins with what the call reads, and
        // outlives it.
        let ret = unsafe { ffi::rdma_create_srq(id.raw, pd.0.raw, (&raw mut init).cast()) };
        called(ret, "rdma_create_srq", object(&pd.0.context, max_wr))?;
        // SAFETY: a live identifier whose `srq` the call has set.
        let raw = unsafe { (*id.raw).srq };
        Ok(Self::of(raw, Some(Arc::clone(id)), pd, messages))
    }

    fn of(raw: *mut ffi::ibv_srq, id: Option<Arc<CmId>>, pd: &Pd, messages: &Messages) -> Self {
        Self {
            inner: Arc::new(SrqInner {
                raw,
                id,
                context: Arc::clone(&pd.0.context),
                memory: messages.memory(),
                lender: LenderId::next(),
                _pd: Arc::clone(&pd.0),
            }),
        }
    }

    /// A number that is this SRQ's alone in this process, as asynchronous events name it.
    #[must_use]
    pub fn id(&self) -> usize {
        self.inner.raw as usize
    }

    /// QPs that hold it.
    #[must_use]
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// What it has now: `max_wr` is at least what was asked for, `srq_limit` the low watermark that is armed, 0 for none.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn query(&self) -> Result<ffi::ibv_srq_attr, VerbsError> {
        // SAFETY: plain old data, filled by the call on a live SRQ.
        let (ret, attr) = unsafe {
            let mut attr: ffi::ibv_srq_attr = mem::zeroed();
            (ffi::ibv_query_srq(self.inner.raw, &raw mut attr), attr)
        };
        answered(ret, "ibv_query_srq", || self.inner.context.name().into())?;
        Ok(attr)
    }

    /// Arms the low watermark: one event when fewer than `limit` WRs are posted, and no other until it is armed again.
    ///
    /// # Errors
    /// EINVAL above what the SRQ holds.
    pub fn arm(&mut self, limit: u32) -> Result<(), VerbsError> {
        let what = format!("srq_limit {limit}");
        self.modify(0, limit, ffi::ibv_srq_attr_mask::IBV_SRQ_LIMIT, &what)
    }

    /// Makes it hold at least `max_wr` WRs.
    ///
    /// # Errors
    /// EINVAL below what is posted or armed, above the device's limit, and where the device resizes none
    /// (no `IBV_DEVICE_SRQ_RESIZE`); nothing has changed then.
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
        // SAFETY: a live SRQ; `&mut self` is the one who modifies it.
        let errno = unsafe { ffi::ibv_modify_srq(self.inner.raw, &raw mut attr, mask) };
        answered(errno, "ibv_modify_srq", || {
            format!("{}, {what}", self.inner.context.name())
        })
    }

    /// Posts a receive into `slot`.
    ///
    /// # Errors
    /// The queue is full (ENOMEM), the device refuses it, or the SRQ was created for other messages (EINVAL): the slot comes
    /// back.
    ///
    /// # Panics
    /// The slot is of another set than `messages`.
    pub fn post(
        &mut self,
        messages: &mut Messages,
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
        // SAFETY: the WR and its scatter entry outlive the call; the entry lies in memory this SRQ holds, in a slot
        // that is lent to the device until its completion.
        match unsafe { ffi::ibv_post_srq_recv(self.inner.raw, &raw mut wr, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(messages.refused(wr_id, lender, errno)),
        }
    }
}

/// Attributes of an SRQ, in the longer structure: where `ibv_srq_init_attr` ends in padding, this one has its `comp_mask`,
/// and libibverbs reads it there in either (`ibv_cmd_create_srq` of rdma-core, libibverbs/cmd_srq.c).
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
