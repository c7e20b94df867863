//! Receive work queues.

use crate::{
    cq::{Cq, CqInner},
    device::{ContextInner, operation},
    error::{VerbsError, answered, destroyed, made},
    mlx5dv as dv,
    mr::{Mr, MrInner},
    pd::{Pd, PdInner},
};
use rdma_sys as ffi;
use serde::Serialize;
use std::{ptr, sync::Arc};

/// `IBV_WQ_FLAGS_CVLAN_STRIPPING`: the NIC takes the customer VLAN tag off.
pub const CVLAN_STRIPPING: u32 = 1 << 0;
/// `IBV_WQ_FLAGS_SCATTER_FCS`: the FCS stands behind each frame.
pub const SCATTER_FCS: u32 = 1 << 1;
/// `IBV_WQ_FLAGS_DELAY_DROP`: the NIC holds the wire for a while before it drops.
pub const DELAY_DROP: u32 = 1 << 2;
/// `IBV_WQ_FLAGS_PCI_WRITE_END_PADDING`: writes are padded to whole cache lines.
pub const PCI_WRITE_END_PADDING: u32 = 1 << 3;

/// What a WQ is created with.
#[derive(Clone, Copy, Debug)]
pub struct WqAttr {
    /// WRs it must hold.
    pub max_wr: u32,
    /// Scatter entries of a WR.
    pub max_sge: u32,
    /// `ibv_wq_flags`.
    pub flags: u32,
    /// Buffers of many frames each; `None`: a WR takes one frame. Such a WQ cannot be posted to by the verbs: only
    /// [`DirectWq`](crate::DirectWq) knows its WQEs.
    pub striding: Option<Striding>,
}

/// How frames lie in the buffer of a striding WQ's WR: each begins at a stride, takes as many as it needs, and never
/// crosses into the next WR's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Striding {
    /// Bytes of a stride, a power of two.
    pub stride: u32,
    /// Strides of a WR, a power of two.
    pub strides: u32,
}

impl Striding {
    /// Bytes of a WR's buffer.
    #[must_use]
    pub fn buffer(self) -> u32 {
        self.stride * self.strides
    }
}

/// States of a WQ (`ibv_wq_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WqState {
    /// Holds nothing; WRs posted now are lost at the change to ready.
    Reset,
    /// Receives.
    Ready,
    /// Flushes what is posted.
    Error,
}

impl WqState {
    /// As the verbs number it.
    fn number(self) -> u32 {
        match self {
            Self::Reset => ffi::ibv_wq_state::IBV_WQS_RESET,
            Self::Ready => ffi::ibv_wq_state::IBV_WQS_RDY,
            Self::Error => ffi::ibv_wq_state::IBV_WQS_ERR,
        }
    }
}

/// A receive WQ with one poster: not `Clone`, and posting takes `&mut`.
pub struct Wq {
    pub(crate) inner: Arc<WqInner>,
    attr: WqAttr,
    state: WqState,
}

/// A WQ as a table needs it, while its owner, perhaps another thread, posts to it.
#[derive(Clone)]
pub struct WqHandle(pub(crate) Arc<WqInner>);

pub(crate) struct WqInner {
    pub(crate) raw: *mut ffi::ibv_wq,
    pub(crate) context: Arc<ContextInner>,
    // The device writes into `memory` as long as the WQ exists, so the WQ holds it.
    _memory: Arc<MrInner>,
    _cq: Arc<CqInner>,
    _pd: Arc<PdInner>,
}

// SAFETY: only the owner of the one `Wq` posts or modifies; tables hold the Arc for its lifetime alone.
unsafe impl Send for WqInner {}
// SAFETY: through a shared reference nothing is done but reading the pointer and destroy on the last drop.
unsafe impl Sync for WqInner {}

impl Drop for WqInner {
    fn drop(&mut self) {
        if let Some(destroy) = operation!(self.context, destroy_wq) {
            // SAFETY: created by `Wq::create`, destroyed only here; tables that name it hold an Arc of self.
            destroyed("ibv_destroy_wq", unsafe { destroy(self.raw) });
        }
    }
}

impl Wq {
    /// Creates a WQ, in the reset state, that completes to `cq` and receives into `memory`.
    ///
    /// # Errors
    /// EINVAL above the device's limits and for a CQ or memory of another context, EOPNOTSUPP for a flag that the device
    /// lacks, EPERM for delay drop without CAP_SYS_RAWIO.
    pub fn create(pd: &Pd, cq: &Cq, memory: &Mr, attr: WqAttr) -> Result<Self, VerbsError> {
        let context = &pd.0.context;
        let object = || {
            format!(
                "{}, {} WRs of {} scatter entries, flags {:#x}",
                context.name(),
                attr.max_wr,
                attr.max_sge,
                attr.flags
            )
        };
        let others = [&cq.inner.context, &memory.0.pd.context];
        context.refuse_others(others, "ibv_create_wq", object)?;
        let mut init = ffi::ibv_wq_init_attr {
            wq_context: ptr::null_mut(),
            wq_type: ffi::ibv_wq_type::IBV_WQT_RQ,
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            pd: pd.0.raw,
            cq: cq.inner.raw.cast(),
            comp_mask: if attr.flags == 0 {
                0
            } else {
                ffi::ibv_wq_init_attr_mask::IBV_WQ_INIT_ATTR_FLAGS.0
            },
            create_flags: attr.flags,
        };
        let raw = if let Some(striding) = attr.striding {
            let mut more = dv::mlx5dv_wq_init_attr {
                comp_mask: dv::MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ.into(),
                striding_rq_attrs: dv::mlx5dv_striding_rq_init_attr {
                    single_stride_log_num_of_bytes: striding.stride.trailing_zeros(),
                    single_wqe_log_num_of_strides: striding.strides.trailing_zeros(),
                    two_byte_shift_en: 0,
                },
            };
            // SAFETY: live parents, held by the new object; the library asks the provider first. Its header and
            // rdma-sys describe the same structures.
            let raw = unsafe {
                dv::mlx5dv_create_wq(context.raw.cast(), (&raw mut init).cast(), &raw mut more)
            };
            made(
                raw.cast(),
                "mlx5dv_create_wq",
                format!("{}, {striding:?}", object()),
            )?
        } else {
            let create = operation!(context, create_wq, "ibv_create_wq", object)?;
            // SAFETY: live parents, held by the new object.
            let raw = unsafe { create(context.raw, &raw mut init) };
            made(raw, "ibv_create_wq", object())?
        };
        // SAFETY: a new WQ nobody else knows yet. `ibv_create_wq` in verbs.h does the same after the provider
        // returns: ibv_destroy_wq and event acknowledgement use these.
        unsafe {
            (*raw).events_completed = 0;
            libc::pthread_mutex_init((&raw mut (*raw).mutex).cast(), ptr::null());
            libc::pthread_cond_init((&raw mut (*raw).cond).cast(), ptr::null());
        }
        Ok(Self {
            inner: Arc::new(WqInner {
                raw,
                context: Arc::clone(context),
                _memory: Arc::clone(&memory.0),
                _cq: Arc::clone(&cq.inner),
                _pd: Arc::clone(&pd.0),
            }),
            attr: WqAttr {
                max_wr: init.max_wr,
                max_sge: init.max_sge,
                ..attr
            },
            state: WqState::Reset,
        })
    }

    /// The right to stand in tables, and nothing more.
    #[must_use]
    pub fn handle(&self) -> WqHandle {
        WqHandle(Arc::clone(&self.inner))
    }

    /// What the WQ really has: at least what was asked for.
    #[must_use]
    pub fn attr(&self) -> WqAttr {
        self.attr
    }

    /// A number that is this WQ's alone in this process, as asynchronous events name it.
    #[must_use]
    pub fn id(&self) -> usize {
        self.inner.raw as usize
    }

    /// Returns the state that the WQ was last put in; the device may have put it in error since.
    #[must_use]
    pub fn state(&self) -> WqState {
        self.state
    }

    /// Changes the state. `from` is the state that the device is in, where the caller knows better than the kernel: it
    /// keeps a record of its own, which still says ready after the device has put the WQ in error, and sends that to the
    /// firmware unless the caller names a state (`mlx5_ib_modify_wq` of drivers/infiniband/hw/mlx5/qp.c).
    ///
    /// # Errors
    /// EINVAL for a change that does not exist; ERROR leads only to RESET.
    pub fn set_state(&mut self, from: Option<WqState>, state: WqState) -> Result<(), VerbsError> {
        let mut mask = ffi::ibv_wq_attr_mask::IBV_WQ_ATTR_STATE.0;
        if from.is_some() {
            mask |= ffi::ibv_wq_attr_mask::IBV_WQ_ATTR_CURR_STATE.0;
        }
        let attr = ffi::ibv_wq_attr {
            attr_mask: mask,
            wq_state: state.number(),
            curr_wq_state: from.map_or(0, WqState::number),
            flags: 0,
            flags_mask: 0,
        };
        self.modify(attr, || match from {
            None => format!("state {state:?}"),
            Some(from) => format!("state {from:?} to {state:?}"),
        })?;
        self.state = state;
        Ok(())
    }

    /// Turns CVLAN stripping on or off; frames on the way meet either.
    ///
    /// # Errors
    /// EOPNOTSUPP where the device cannot strip.
    pub fn set_cvlan_stripping(&mut self, on: bool) -> Result<(), VerbsError> {
        let attr = ffi::ibv_wq_attr {
            attr_mask: ffi::ibv_wq_attr_mask::IBV_WQ_ATTR_FLAGS.0,
            wq_state: ffi::ibv_wq_state::IBV_WQS_RDY,
            curr_wq_state: 0,
            flags: if on { CVLAN_STRIPPING } else { 0 },
            flags_mask: CVLAN_STRIPPING,
        };
        self.modify(attr, || format!("CVLAN_STRIPPING {on}"))?;
        self.attr.flags = self.attr.flags & !CVLAN_STRIPPING | attr.flags;
        Ok(())
    }

    fn modify(
        &mut self,
        mut attr: ffi::ibv_wq_attr,
        object: impl Fn() -> String,
    ) -> Result<(), VerbsError> {
        let modify = operation!(self.inner.context, modify_wq, "ibv_modify_wq", object)?;
        // SAFETY: a live WQ; `&mut self` is the one who modifies it.
        let errno = unsafe { modify(self.inner.raw, &raw mut attr) };
        answered(errno, "ibv_modify_wq", object)
    }

    /// Posts a list of WRs, linked by `next`; one doorbell for all.
    ///
    /// # Safety
    /// Every WR of the list and its scatter list are valid for the call, and every scatter entry lies in the memory
    /// this WQ was created with and is not read or written by anyone until its completion.
    ///
    /// # Errors
    /// The errno, ENOMEM when the queue is full: WRs before the failing one were posted.
    #[inline]
    pub unsafe fn post(&mut self, list: *mut ffi::ibv_recv_wr) -> Result<(), i32> {
        let mut bad = ptr::null_mut();
        // SAFETY: the caller vouches for the list; `&mut self` is the one poster.
        match unsafe { ffi::ibv_post_wq_recv(self.inner.raw, list, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }
}
