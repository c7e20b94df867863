//! Receive ring of one queue: a WQ, its CQ, and the slots that circulate between them.
//!
//! A ring is accessed either through the verbs (`ibv_start_poll`, `ibv_post_wq_recv`), which every
//! device supports, or through libmlx5's direct verbs, which cost a third as much. The slots and the
//! accounting in this module are the same for both. On a device without WQs the ring is the receive queue
//! of a RAW_PACKET QP ([`RingAttr::raw_qp`]).
//!
//! Slots may be returned in any order and at any time. A slot returned to the WQE that it was in costs
//! a comparison; a slot returned to another WQE costs writing that WQE.
//!
//! The device returns a slot by completing it. If a WQ in error does not complete a slot, the slot is
//! taken back after the WQ's reset.
//!
//! The slots of a striding WQ are buffers of many frames. Each frame then has a separate token that
//! names the buffer. Only this module and the pool distinguish the two ([`striding`]).
//!
//! A ring checks what the device and the driver report. A completion of a slot that is not posted is
//! an error, never a second token. A length that exceeds the slot is an error, never a read out of
//! bounds.

mod direct;
#[cfg(test)]
pub(super) mod fake;
mod fallback;
#[cfg(test)]
mod namespace;
mod packet;
mod places;
mod pool;
mod queue;
mod raw_qp;
mod stride_check;
mod striding;
mod tokens;
mod verbs;
mod xdp;

pub use fallback::{FallbackAttr, FallbackParents};
pub use packet::PacketQueue;
pub use pool::{Filled, FrameFacts, Slot, SlotMemory};
pub use queue::{DeviceQueue, Queue, QueueHandle, Wake};
pub use xdp::XdpQueue;

use crate::error::{RingError, RxError};
use direct::{DirectQueue, OneFrame};
use pool::SlotLayout;
use raw_qp::RawQpQueue;
use std::{
    os::fd::BorrowedFd,
    sync::Arc,
    time::{Duration, Instant},
};
use striding::ManyFrames;
use verbs::VerbsQueue;
use wqcap_memory::{Region, prefer_node};
use wqcap_verbs as ibv;
use wqcap_verbs::{
    Channel, CompletionStamps, Context, Cq, CqAttr, MiniFormat, Moderation, Mr, Pd, RingAccess,
    Striding, Wq, WqAttr, WqHandle, WqState,
};

/// `IBV_WC_WR_FLUSH_ERR`: completion status of a WR whose WQ went into error. Its slot holds no
/// frame.
const FLUSHED: u32 = 5;
/// `IBV_WC_LOC_LEN_ERR`: completion status of a frame longer than its WR's buffers. The WQ stays
/// ready.
const TOO_LONG: u32 = 1;
/// Time limit for a WQ in error to flush its WRs.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// Attributes for creating a receive ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingAttr {
    /// Number of WRs of the receive ring, and so of its slots.
    pub wrs: u32,
    /// Number of buffer bytes per scatter entry of a WR.
    pub buffer: u32,
    /// Number of scatter entries per WR. They are contiguous in a slot, so that a frame is always
    /// one slice.
    pub max_sge: u32,
    /// Stride size and count of WR buffers that take many frames; `None`: one frame per WR. Such a
    /// buffer is its WR's only scatter entry and has no headroom. Supported by direct rings only.
    pub striding: Option<Striding>,
    /// Set to check the first completions of a striding WQ, which is replaced by a WQ with these
    /// limits if one does not fit; `None`: a completion that does not fit is an error.
    pub fallback: Option<FallbackAttr>,
    /// Format of compressed completions; `None`: completions are not compressed. Supported by
    /// direct rings only. Time stamps are invalid with compression.
    pub compression: Option<MiniFormat>,
    /// Creation flags of the ring's WQ (`ibv_wq_flags`).
    pub flags: u32,
    /// Completion vector of the ring's CQ.
    pub vector: u32,
    /// Kind of device time stamps to request with completions.
    pub stamps: CompletionStamps,
    /// Number of bytes in front of each slot, where VLAN tags that the NIC stripped are put back;
    /// 0: they are not put back. Supported by direct rings only.
    pub headroom: usize,
    /// `true` to create a completion channel, on which a receive loop can sleep.
    pub channel: bool,
    /// Moderation of the completion channel's events; `None`: an event at the first completion.
    pub moderation: Option<Moderation>,
    /// Method of access to the WQ and the CQ; the verbs if the device does not support it.
    pub access: RingAccess,
    /// Port of a RAW_PACKET QP with its own receive queue, which replaces the WQ on a device
    /// without WQs. It has one frame per WR, no time stamps and no moderation, and is accessed
    /// through the verbs. `None`: a WQ.
    pub raw_qp: Option<u8>,
    /// NUMA node for the memory of the receive ring, its slots and its queues; `None`: any node.
    pub numa_node: Option<u32>,
}

/// Completions that one poll took from a receive ring. Allocated once and reused for every poll.
#[derive(Debug)]
pub struct Batch {
    /// Received frames of the batch in the order of their completion.
    pub(crate) frames: Vec<Filled>,
    /// WRs of the batch that completed in error.
    pub(crate) failed: Vec<Failed>,
    /// Slots of the batch whose WR was flushed. They hold no frame.
    pub(crate) flushed: Vec<Slot>,
    /// Returned slots that are reposted with this batch: slots of earlier batches, and used up
    /// buffers of a striding queue.
    pub(crate) home: Vec<Slot>,
    /// Maximum number of completions that one poll enters into the batch.
    size: usize,
}

impl Batch {
    /// Creates an empty receive batch for at most `size` completions.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self {
            frames: Vec::with_capacity(size),
            failed: Vec::with_capacity(size),
            flushed: Vec::with_capacity(size),
            home: Vec::with_capacity(size),
            size,
        }
    }

    /// Returns the number of completions in the receive batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len() + self.failed.len() + self.flushed.len()
    }

    /// Returns `true` if the receive batch holds no completions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of slots in the receive batch: those of completions and the returned
    /// ones.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.len() + self.home.len()
    }

    /// Returns the maximum number of completions that one poll enters into the batch.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }
}

/// Receive WR that completed in error.
#[derive(Debug)]
pub struct Failed {
    /// Slot of the WR that completed in error.
    pub slot: Slot,
    /// Completion status of the WR (`ibv_wc_status`).
    pub status: u32,
}

impl Failed {
    /// Returns `true` if the WR's error stopped the WQ, so that the device flushes all its other
    /// WRs.
    #[must_use]
    pub fn stops_the_queue(&self) -> bool {
        self.status != TOO_LONG
    }
}

/// Receive ring: a WQ with its CQ and its slots, owned by one thread.
pub struct Ring<Q = DeviceQueue> {
    // Fields are dropped in this order: WQ and CQ, then the memory. The indirection table also holds the WQ, and the WQ
    // holds its memory.
    queue: Q,
    memory: Arc<SlotMemory>,
    attr: RingAttr,
    /// One flag per slot of the receive ring, set while the device has the slot.
    posted: Box<[bool]>,
    /// Number of WRs of the receive ring that the device has.
    outstanding: u32,
    /// Number of slot tokens held outside the receive ring.
    away: usize,
    /// Parents of the queue that a striding queue falls back to; `None`: it does not fall back.
    fallback: Option<Box<FallbackParents>>,
}

impl Ring {
    /// Creates a receive ring: slot memory, CQ and WQ, in the ready state, with every slot posted.
    ///
    /// # Errors
    /// A verb failed, or the memory cannot be allocated.
    pub fn create(context: &Context, pd: &Pd, attr: RingAttr) -> Result<Self, ibv::VerbsError> {
        let layout = SlotLayout::new(attr);
        let memory = Region::allocate(layout.stride() * attr.wrs as usize, attr.numa_node)?;
        let mr = Mr::register(pd, memory)?;
        if let Some(port) = attr.raw_qp {
            let (qp, cq) = prefer_node(attr.numa_node, || {
                RawQpQueue::create(context, pd, &mr, attr, port)
            })?;
            let memory = Arc::new(SlotMemory::new(mr, layout));
            let queue = RawQpQueue::new(qp, cq, &memory, attr);
            return Self::with_queue(DeviceQueue::RawQp(queue), memory, attr);
        }
        let (wq, cq) = queue_pair(context, pd, &mr, attr)?;
        let fallback = attr.striding.and(attr.fallback).map(|limits| {
            Box::new(FallbackParents {
                context: context.clone(),
                pd: pd.clone(),
                mr: mr.clone(),
                attr,
                limits,
            })
        });
        let memory = Arc::new(SlotMemory::new(mr, layout));
        let access = match attr.access {
            access if access == RingAccess::fastest(context) => access,
            _ => RingAccess::Verbs,
        };
        let queue = match (access, attr.striding) {
            (RingAccess::Mlx5 | RingAccess::Verbs, Some(shape)) => {
                let filling = |wrs| ManyFrames::new(shape, wrs, fallback.is_some());
                DeviceQueue::Striding(DirectQueue::new(wq, cq, filling)?)
            }
            (RingAccess::Mlx5, None) => {
                DeviceQueue::Direct(DirectQueue::new(wq, cq, |_| OneFrame)?)
            }
            (RingAccess::Verbs, None) => DeviceQueue::Verbs(VerbsQueue::new(wq, cq, &memory, attr)),
        };
        let mut ring = Self::with_queue(queue, memory, attr)?;
        ring.fallback = fallback;
        Ok(ring)
    }

    /// Returns the handle of the ring's WQ or QP, to which frames are steered.
    #[must_use]
    pub fn handle(&self) -> QueueHandle {
        self.queue.handle()
    }
}

impl<Q: Queue> Ring<Q> {
    /// Creates a receive ring over a ready queue, with memory that is not registered with a device.
    /// Tests and benches use it to run a receive loop without a device.
    ///
    /// # Errors
    /// The memory cannot be allocated, or the queue refuses WRs.
    pub fn without_device(queue: Q, attr: RingAttr) -> Result<Self, ibv::VerbsError> {
        let layout = SlotLayout::new(attr);
        let memory = Region::allocate(layout.stride() * attr.wrs as usize, None)?;
        let memory = Arc::new(SlotMemory::unregistered(memory, layout));
        Self::with_queue(queue, memory, attr)
    }

    /// Creates a receive ring over a ready queue and posts every slot.
    fn with_queue(
        queue: Q,
        memory: Arc<SlotMemory>,
        attr: RingAttr,
    ) -> Result<Self, ibv::VerbsError> {
        let mut ring = Self {
            queue,
            memory: Arc::clone(&memory),
            attr,
            posted: vec![false; attr.wrs as usize].into(),
            outstanding: 0,
            away: 0,
            fallback: None,
        };
        ring.post_all((0..attr.wrs).map(|index| memory.slot(index)))
            .map_err(|errno| {
                ibv::VerbsError::from_errno("ibv_post_wq_recv", format!("{} WRs", attr.wrs), errno)
            })?;
        Ok(ring)
    }

    /// Returns the memory of the receive ring's slots.
    #[must_use]
    pub fn memory(&self) -> &Arc<SlotMemory> {
        &self.memory
    }

    /// Returns the descriptor of the ring's completion channel, if the ring has one.
    #[must_use]
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.event_fd()
    }

    /// Requests a completion channel event at the next completion. If a completion is already
    /// present, mlx5 raises the event at once, so no completion is missed. A queue that can gather
    /// frames raises it as `wake` says.
    ///
    /// # Errors
    /// The verb failed.
    pub fn arm(&mut self, wake: Wake) -> Result<(), ibv::VerbsError> {
        self.queue.arm(wake)
    }

    /// Takes and acknowledges one event of the completion channel. Returns `false` if there was
    /// none.
    pub fn take_event(&mut self) -> bool {
        self.queue.take_event()
    }

    /// Returns `true` if frames may have arrived that a poll does not enter yet.
    #[inline]
    pub(crate) fn has_partial_block(&self) -> bool {
        self.queue.has_partial_block()
    }

    /// Returns `true` if most of the ring's memory has frames that no poll has entered.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        self.queue.is_short_of_memory()
    }

    /// Returns the number of slots held outside the receive ring, all of which must be returned.
    #[must_use]
    pub fn away(&self) -> usize {
        self.away
    }

    /// Returns the number of the ring's WRs that the device has.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Takes at most `limit` completions from the receive ring, and at most the batch's size, into
    /// an empty batch.
    ///
    /// # Errors
    /// The queue failed. The completions entered into the batch before the error are valid.
    #[inline]
    pub fn poll(&mut self, batch: &mut Batch, limit: usize) -> Result<(), RingError> {
        debug_assert!(batch.is_empty());
        let limit = limit.min(batch.size);
        let before = batch.slots();
        let mut account = Account {
            posted: &mut self.posted,
            outstanding: &mut self.outstanding,
            memory: &self.memory,
            batch,
        };
        let result = self.queue.poll(&mut account, limit);
        self.away += batch.slots() - before;
        result
    }

    /// Posts the slots of a receive batch again, with one list and one doorbell, and empties the
    /// batch.
    ///
    /// # Errors
    /// The WQ refuses WRs.
    ///
    /// # Panics
    /// If the batch belongs to another ring.
    #[inline]
    pub fn repost(&mut self, batch: &mut Batch) -> Result<(), RingError> {
        self.away -= batch.slots();
        if batch.failed.is_empty() && batch.flushed.is_empty() {
            // The usual case: only frames, in their order, or only returned slots.
            if !batch.home.is_empty() {
                self.post_all(batch.home.drain(..))
                    .map_err(RingError::Post)?;
            }
            return self
                .post_all(batch.frames.drain(..).map(Filled::into_slot))
                .map_err(RingError::Post);
        }
        let slots = batch
            .home
            .drain(..)
            .chain(batch.frames.drain(..).map(Filled::into_slot))
            .chain(batch.failed.drain(..).map(|f| f.slot))
            .chain(batch.flushed.drain(..));
        self.post_all(slots).map_err(RingError::Post)
    }

    /// # Panics
    /// If a slot belongs to another ring.
    #[inline]
    fn post_all(&mut self, slots: impl Iterator<Item = Slot>) -> Result<(), i32> {
        let (posted, memory) = (&mut self.posted, &self.memory);
        let slots = slots.inspect(|slot| memory.assert_owns(slot));
        self.outstanding += self.queue.post(posted, slots, memory, self.attr)?;
        Ok(())
    }

    /// Turns CVLAN stripping of the WQ on or off. Posted slots stay on the ring: each completion
    /// reports whether the device stripped its frame's tag.
    ///
    /// # Errors
    /// The verb failed: the device does not support the change.
    pub fn set_cvlan_stripping(&mut self, on: bool) -> Result<(), ibv::VerbsError> {
        self.queue.set_cvlan_stripping(on)
    }

    /// Recovers a WQ in error: waits until all posted WRs are flushed, sets the states RESET and RDY,
    /// and posts the slots again. Frames that completed before the error are first passed to `frames`
    /// in the order of reception; the slots of frames that it leaves are posted again. Slots held
    /// outside the ring are not affected.
    ///
    /// If the device does not flush every WR within `FLUSH_TIME`, the WQ is reset nevertheless. After
    /// the reset the device writes to no slot, so slots without a completion are taken back.
    ///
    /// # Errors
    /// A verb failed: the queue cannot be recovered.
    pub fn recover(
        &mut self,
        mut frames: impl FnMut(&mut Vec<Filled>, &SlotMemory),
    ) -> Result<Recovered, RxError> {
        // A WQ that the device put into error is in that state already, and setting it again is allowed. A WQ whose
        // last completion alone shows the error is put into the state, so that it flushes.
        self.queue.set_state(None, WqState::Error).ok();
        let mut slots = Vec::with_capacity(self.outstanding as usize);
        let mut batch = Batch::new(256);
        let mut errors = 0;
        let deadline = Instant::now() + FLUSH_TIME;
        let mut is_reset = false;
        while self.outstanding > 0 {
            self.poll(&mut batch, usize::MAX)
                .map_err(RxError::Recovery)?;
            if batch.is_empty() {
                if is_reset {
                    break;
                }
                if Instant::now() > deadline {
                    // Completions that the device wrote before the reset are still in the CQ.
                    self.reset()?;
                    is_reset = true;
                }
                std::thread::yield_now();
            }
            if !batch.frames.is_empty() {
                frames(&mut batch.frames, &self.memory);
                slots.extend(batch.frames.drain(..).map(Filled::into_slot));
            }
            errors += batch.failed.len() as u64;
            slots.extend(batch.failed.drain(..).map(|f| f.slot));
            slots.append(&mut batch.flushed);
            slots.append(&mut batch.home);
        }
        if !is_reset {
            self.reset()?;
        }
        let unflushed = self.take_back(&mut slots);
        self.queue.set_state(None, WqState::Ready)?;
        self.away -= slots.len();
        // The slots flushed above. The caller reposts those of the batch that showed the error.
        self.post_all(slots.into_iter())
            .map_err(|errno| RxError::Recovery(RingError::Post(errno)))?;
        Ok(Recovered { errors, unflushed })
    }

    /// Takes back the slots that a WQ in reset still had, and returns their number.
    fn take_back(&mut self, slots: &mut Vec<Slot>) -> u32 {
        for (index, posted) in (0u32..).zip(&mut self.posted) {
            if std::mem::take(posted) {
                slots.push(self.memory.slot(index));
                self.away += 1;
            }
        }
        std::mem::take(&mut self.outstanding)
    }

    /// Replaces a striding WQ by one with a WQE per frame in the same memory, and returns the new
    /// WQ's handle. Frames arrive on it when the indirection tables contain it. Frames that are in
    /// the old WQ are lost; slots held outside the ring are not affected.
    ///
    /// # Errors
    /// The ring has no striding WQ to replace, or a verb failed: the ring cannot be used any more.
    #[cold]
    pub fn fall_back(&mut self) -> Result<WqHandle, RxError> {
        let Some(parents) = self.fallback.take() else {
            let object = "a ring without a striding WQ";
            let errno = libc::EOPNOTSUPP;
            return Err(ibv::VerbsError::from_errno("ibv_create_wq", object, errno).into());
        };
        // The device writes to no slot of a WQ in reset.
        self.queue.set_state(None, WqState::Error).ok();
        self.reset()?;
        let handle = self.queue.fall_back(&parents)?;
        let mut slots = Vec::with_capacity(self.outstanding as usize);
        self.take_back(&mut slots);
        self.away -= slots.len();
        self.post_all(slots.into_iter())
            .map_err(|errno| RxError::Recovery(RingError::Post(errno)))?;
        Ok(handle)
    }

    /// Resets a WQ in error. If the request does not name the present state, the kernel sends the state
    /// that it has recorded. That may still be ready, and firmware may refuse the request, so a second
    /// request names the error state. DPDK names it as well (`mlx5_devx_modify_rq` of
    /// drivers/net/mlx5/mlx5_devx.c).
    fn reset(&mut self) -> Result<(), ibv::VerbsError> {
        self.queue
            .set_state(None, WqState::Reset)
            .or_else(|_| self.queue.set_state(Some(WqState::Error), WqState::Reset))
    }
}

/// Creates the CQ and the WQ of a ring that receives into `mr`, in the ready state and without WRs.
fn queue_pair(
    context: &Context,
    pd: &Pd,
    mr: &Mr,
    attr: RingAttr,
) -> Result<(Wq, Cq), ibv::VerbsError> {
    let channel = if attr.channel {
        Some(Channel::create(context)?)
    } else {
        None
    };
    let cq_attr = CqAttr {
        // libmlx5 rounds one more than this up to a power of two (`create_cq` of providers/mlx5/verbs.c), and a WQ
        // never has more completions outstanding than WRs, or strides: with as many entries the CQ cannot overrun.
        entries: (attr.wrs * attr.striding.map_or(1, |it| it.strides) - 1).max(1),
        vector: attr.vector,
        stamps: attr.stamps,
        compression: attr.compression,
    };
    let mut cq = prefer_node(attr.numa_node, || Cq::create(context, cq_attr, channel))?;
    if let Some(by) = attr.moderation {
        cq.moderate(by)?;
    }
    let wq_attr = WqAttr {
        max_wr: attr.wrs,
        max_sge: attr.max_sge,
        flags: attr.flags,
        striding: attr.striding,
    };
    let mut wq = prefer_node(attr.numa_node, || Wq::create(pd, &cq, mr, wq_attr))?;
    // Receives posted before this call are lost: libmlx5 zeroes the ring at RESET -> RDY.
    wq.set_state(None, WqState::Ready)?;
    Ok((wq, cq))
}

/// Result of recovering a WQ in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// Number of WRs that completed in error before the WQ was recovered. Each of them had received
    /// a frame, which is counted in the ledger as an error.
    pub errors: u64,
    /// Number of WRs that never completed. Their slots were taken back after the WQ's reset.
    pub unflushed: u32,
}

/// Account in which a queue enters the completions of one poll, common to all kinds of queues. A
/// striding queue creates the tokens of its frames itself.
pub struct Account<'a> {
    posted: &'a mut [bool],
    outstanding: &'a mut u32,
    memory: &'a SlotMemory,
    batch: &'a mut Batch,
}

impl Account<'_> {
    /// Writes `bytes` into the posted slot `index`, as the device does.
    #[cfg(test)]
    fn write(&mut self, index: u32, bytes: &[u8]) {
        assert!(self.posted[index as usize] && bytes.len() <= self.memory.slot_bytes());
        self.memory.write(index, bytes);
    }

    /// Enters one completion into the receive batch. `index` is the slot, and `status` the
    /// `ibv_wc_status`; `facts` count only if it is 0.
    ///
    /// # Errors
    /// The slot is not on the ring. No token is created.
    #[inline]
    pub fn enter(&mut self, index: u64, status: u32, facts: FrameFacts) -> Result<(), RingError> {
        let (frames, mut slots) = self.parts();
        slots.enter(index, status, facts, move |filled| {
            frames.push(filled);
            frames.last_mut()
        })
    }

    /// Splits the completion account into the batch's list of frames and the other state that
    /// completions change.
    #[inline]
    fn parts(&mut self) -> (&mut Vec<Filled>, SlotAccount<'_>) {
        let Batch {
            frames,
            failed,
            flushed,
            ..
        } = self.batch;
        let slots = SlotAccount {
            posted: self.posted,
            outstanding: self.outstanding,
            memory: self.memory,
            failed,
            flushed,
        };
        (frames, slots)
    }

    /// Returns the number of frames in the receive batch, without those in
    /// [`places::SpareCapacity`] that are still borrowed.
    #[inline]
    fn frames(&self) -> usize {
        self.batch.frames.len()
    }

    /// Returns `true` if the device has the receive slot `index`.
    #[inline]
    fn is_posted(&self, index: u32) -> bool {
        self.posted.get(index as usize) == Some(&true)
    }

    /// Enters a completion of a part of a buffer that has other frames, too: a frame at offset `at`
    /// with at most `room` bytes, or an error. Creates a token of the buffer.
    #[inline]
    fn enter_part(&mut self, buffer: u32, at: u32, room: u32, status: u32, facts: FrameFacts) {
        let slot = self.memory.slot(buffer);
        let batch = &mut *self.batch;
        if status == 0 && facts.len <= room {
            let frames = &mut batch.frames;
            self.memory.fill(slot, at, facts, move |filled| {
                frames.push(filled);
                frames.last_mut()
            });
        } else if status == FLUSHED {
            batch.flushed.push(slot);
        } else {
            let status = if status == 0 { TOO_LONG } else { status };
            batch.failed.push(Failed { slot, status });
        }
    }

    /// Takes back the device's slot token for a striding queue's buffer that is used up.
    ///
    /// # Errors
    /// The buffer is not on the ring.
    #[inline]
    fn release_buffer(&mut self, buffer: u32) -> Result<(), RingError> {
        match self.posted.get_mut(buffer as usize) {
            Some(posted @ true) => *posted = false,
            _ => return Err(RingError::Unposted(buffer.into())),
        }
        *self.outstanding -= 1;
        self.batch.home.push(self.memory.slot(buffer));
        Ok(())
    }
}

/// Ring state that the completion of a slot changes, apart from the batch's list of frames.
struct SlotAccount<'a> {
    posted: &'a mut [bool],
    outstanding: &'a mut u32,
    memory: &'a SlotMemory,
    failed: &'a mut Vec<Failed>,
    flushed: &'a mut Vec<Slot>,
}

impl SlotAccount<'_> {
    /// Takes the token of slot `index` from the device, for the one frame of its completion.
    ///
    /// # Errors
    /// The slot is not on the ring. No token is created.
    #[inline]
    fn take_slot(&mut self, index: u32) -> Result<Slot, RingError> {
        match self.posted.get_mut(index as usize) {
            Some(posted @ true) => *posted = false,
            _ => return Err(RingError::Unposted(index.into())),
        }
        *self.outstanding -= 1;
        Ok(self.memory.slot(index))
    }

    /// Enters one completion like [`Account::enter`], but passes a frame to `push`, which returns the
    /// frame's final location.
    #[inline(always)]
    fn enter<'f>(
        &mut self,
        index: u64,
        status: u32,
        facts: FrameFacts,
        push: impl FnOnce(Filled) -> Option<&'f mut Filled>,
    ) -> Result<(), RingError> {
        let posted = usize::try_from(index)
            .ok()
            .and_then(|i| self.posted.get_mut(i));
        let Some(posted @ true) = posted else {
            return Err(RingError::Unposted(index));
        };
        *posted = false;
        *self.outstanding -= 1;
        // The index is in `posted`, whose length is a u32.
        let slot = self.memory.slot(index as u32);
        if status == 0 && facts.len as usize <= self.memory.slot_bytes() {
            self.memory.fill(slot, 0, facts, push);
        } else if status == FLUSHED {
            self.flushed.push(slot);
        } else {
            // A length that exceeds the slot is treated as the error for too long frames.
            let status = if status == 0 { TOO_LONG } else { status };
            self.failed.push(Failed { slot, status });
        }
        Ok(())
    }
}
