//! Receive work queues.

use crate::sys as ffi;
use crate::{
    cq::{Cq, CqInner},
    device::{ContextInner, operation},
    error::{VerbsError, check_created, check_errno, log_destroy_error},
    mlx5dv as dv,
    mr::{Mr, MrInner},
    pd::{Pd, PdInner},
};
use serde::Serialize;
use std::{ptr, sync::Arc};

/// WQ flag `IBV_WQ_FLAGS_CVLAN_STRIPPING`: the NIC strips the customer VLAN tag.
pub const CVLAN_STRIPPING: u32 = 1 << 0;
/// WQ flag `IBV_WQ_FLAGS_SCATTER_FCS`: the FCS follows each frame.
pub const SCATTER_FCS: u32 = 1 << 1;
/// WQ flag `IBV_WQ_FLAGS_DELAY_DROP`: the NIC holds frames back for a time before it drops them.
pub const DELAY_DROP: u32 = 1 << 2;
/// WQ flag `IBV_WQ_FLAGS_PCI_WRITE_END_PADDING`: the NIC pads its writes to whole cache lines.
pub const PCI_WRITE_END_PADDING: u32 = 1 << 3;

/// Attributes of a new WQ.
#[derive(Clone, Copy, Debug)]
pub struct WqAttr {
    /// Number of WRs that the WQ must hold.
    pub max_wr: u32,
    /// Number of scatter entries per WR of the WQ.
    pub max_sge: u32,
    /// Flags of the WQ (`ibv_wq_flags`).
    pub flags: u32,
    /// Layout of the WQ's buffers that take many frames each; `None`: a WR takes one frame. A
    /// striding WQ cannot be posted to by the verbs, only by [`DirectWq`](crate::DirectWq), which
    /// writes its WQEs.
    pub striding: Option<Striding>,
}

/// Layout of frames in the buffer of a striding WQ's WR. Each frame begins at a stride, takes as
/// many strides as it needs, and never crosses into the buffer of the next WR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Striding {
    /// Size in bytes of a stride of the WQ's buffers, a power of two.
    pub stride: u32,
    /// Number of strides per WR, a power of two.
    pub strides: u32,
}

impl Striding {
    /// Returns the size in bytes of the buffer of a striding WQ's WR.
    #[must_use]
    pub fn buffer(self) -> u32 {
        self.stride * self.strides
    }
}

/// States of a WQ (`ibv_wq_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WqState {
    /// The WQ holds no WRs; WRs posted in this state are lost at the change to ready.
    Reset,
    /// The WQ is ready and receives frames.
    Ready,
    /// The WQ is in error and flushes its posted WRs.
    Error,
}

impl WqState {
    /// Returns the `ibv_wq_state` number of the WQ state.
    fn number(self) -> u32 {
        match self {
            Self::Reset => ffi::ibv_wq_state::IBV_WQS_RESET,
            Self::Ready => ffi::ibv_wq_state::IBV_WQS_RDY,
            Self::Error => ffi::ibv_wq_state::IBV_WQS_ERR,
        }
    }
}

/// Receive WQ with one poster: not `Clone`, and posting takes `&mut`.
pub struct Wq {
    pub(crate) inner: Arc<WqInner>,
    attr: WqAttr,
    state: WqState,
}

/// Handle of a WQ for use in an indirection table, while the WQ's owner, possibly another thread,
/// posts to the WQ.
#[derive(Clone)]
pub struct WqHandle(pub(crate) Arc<WqInner>);

impl WqHandle {
    /// Returns the number that identifies the WQ in asynchronous events, unique in this process.
    #[must_use]
    pub fn id(&self) -> usize {
        self.0.raw as usize
    }
}

pub(crate) struct WqInner {
    pub(crate) raw: *mut ffi::ibv_wq,
    pub(crate) context: Arc<ContextInner>,
    // The device writes into `memory` as long as the WQ exists, so the WQ holds it.
    _memory: Arc<MrInner>,
    _cq: Arc<CqInner>,
    _pd: Arc<PdInner>,
}

// SAFETY: only the owner of the one `Wq` posts or modifies; tables hold the Arc only to keep the WQ
// alive.
unsafe impl Send for WqInner {}
// SAFETY: shared references only read the pointer, and destroy the WQ on the last drop.
unsafe impl Sync for WqInner {}

impl Drop for WqInner {
    fn drop(&mut self) {
        if let Some(destroy) = operation!(self.context, destroy_wq) {
            // SAFETY: created by `Wq::create`, destroyed only here; tables that name it hold an Arc
            // of self.
            log_destroy_error("ibv_destroy_wq", unsafe { destroy(self.raw) });
        }
    }
}

impl Wq {
    /// Creates a WQ, in the reset state, that completes to `cq` and receives into `memory`.
    ///
    /// # Errors
    /// EINVAL above the device's limits and for a CQ or memory of another context, EOPNOTSUPP for a
    /// flag that the device lacks, EPERM for delay drop without CAP_SYS_RAWIO.
    pub fn create(pd: &Pd, cq: &Cq, memory: &Mr, attr: WqAttr) -> Result<Self, VerbsError> {
        let context = &pd.0.context;
        let object = || {
            format!(
                "a WQ of device {} with {} WRs of {} scatter entries and the flags {:#x}",
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
            context.require_mlx5("mlx5dv_create_wq", object)?;
            let mut more = dv::mlx5dv_wq_init_attr {
                comp_mask: dv::MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ.into(),
                striding_rq_attrs: dv::mlx5dv_striding_rq_init_attr {
                    single_stride_log_num_of_bytes: striding.stride.trailing_zeros(),
                    single_wqe_log_num_of_strides: striding.strides.trailing_zeros(),
                    two_byte_shift_en: 0,
                },
            };
            // SAFETY: live parents, held by the new object; the context is libmlx5's.
            // Its header and rdma-sys describe the same structures.
            let raw = unsafe {
                dv::mlx5dv_create_wq(context.raw.cast(), (&raw mut init).cast(), &raw mut more)
            };
            check_created(
                raw.cast(),
                "mlx5dv_create_wq",
                format!("{}, {striding:?}", object()),
            )?
        } else {
            let create = operation!(context, create_wq, "ibv_create_wq", object)?;
            // SAFETY: live parents, held by the new object.
            let raw = unsafe { create(context.raw, &raw mut init) };
            check_created(raw, "ibv_create_wq", object())?
        };
        // SAFETY: a new WQ that no other code uses yet. `ibv_create_wq` in verbs.h does the same
        // after the provider returns: ibv_destroy_wq and event acknowledgement use these.
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

    /// Returns a handle of the WQ that can only be used in indirection tables.
    #[must_use]
    pub fn handle(&self) -> WqHandle {
        WqHandle(Arc::clone(&self.inner))
    }

    /// Returns the actual attributes of the WQ: at least the requested ones.
    #[must_use]
    pub fn attr(&self) -> WqAttr {
        self.attr
    }

    /// Returns the number that identifies this WQ in asynchronous events, unique in this process.
    #[must_use]
    pub fn id(&self) -> usize {
        self.inner.raw as usize
    }

    /// Returns the WQ state that was last set; the device may have put the WQ in error since.
    #[must_use]
    pub fn state(&self) -> WqState {
        self.state
    }

    /// Changes the state of the WQ. `from` is the device's actual state, if the caller knows it
    /// better than the kernel. Without `from`, the kernel sends the state in its own record to the
    /// firmware, and that record still says ready after the device has put the WQ in error
    /// (`mlx5_ib_modify_wq` of drivers/infiniband/hw/mlx5/qp.c).
    ///
    /// # Errors
    /// EINVAL for an invalid transition; ERROR can only change to RESET.
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

    /// Turns CVLAN stripping of the WQ on or off; frames in flight may be handled either way.
    ///
    /// # Errors
    /// EOPNOTSUPP if the device cannot strip.
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
        // SAFETY: a live WQ; `&mut self` is the only modifier.
        let errno = unsafe { modify(self.inner.raw, &raw mut attr) };
        check_errno(errno, "ibv_modify_wq", object)
    }

    /// Posts a list of receive WRs, linked by `next`, to the WQ with one doorbell.
    ///
    /// # Safety
    /// Every WR of the list and its scatter list are valid for the call. Every scatter entry lies
    /// in the memory that this WQ was created with, and no code reads or writes it until its
    /// completion.
    ///
    /// # Errors
    /// The errno, ENOMEM if the queue is full; WRs before the failing one were posted.
    #[inline]
    pub unsafe fn post(&mut self, list: *mut ffi::ibv_recv_wr) -> Result<(), i32> {
        let mut bad = ptr::null_mut();
        // SAFETY: the caller guarantees the list; `&mut self` is the only poster.
        match unsafe { ffi::ibv_post_wq_recv(self.inner.raw, list, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }
}
