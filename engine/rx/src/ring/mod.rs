//! One queue's ring: a WQ, its CQ, and the slots that go round between them.
//!
//! Two ways lead to the same rings: the verbs (`ibv_start_poll`, `ibv_post_wq_recv`), which every device has, and
//! libmlx5's direct verbs, which cost a third of them. What goes round is the same, and so is the accounting here.
//!
//! Slots may come back in any order and after any time. One that comes back to the WQE it was in costs a comparison,
//! one that comes back elsewhere the writing of a WQE.
//!
//! A slot comes back by its completion, or, where a WQ in error does not complete it, by the WQ's reset.
//!
//! A striding WQ's slots are buffers of many frames. Each frame then is a token of its own that names its buffer, and
//! nobody outside needs to know ([`striding`]).
//!
//! A ring trusts neither the device nor the driver further than it must: a completion that names a slot which is
//! not posted, or a length that no slot has, is an error and never a second token or a read out of bounds.

mod direct;
#[cfg(test)]
pub(super) mod fake;
mod places;
mod queue;
mod striding;
mod verbs;

pub use queue::{DeviceQueue, Queue};

use super::pool::{Filled, Layout, Slot, SlotMemory};
use crate::error::RxError;
use direct::{DirectQueue, OneFrame};
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
    Channel, CompletionStamps, Context, Cq, CqAttr, MiniFormat, Moderation, Mr, Pd, Striding, Wq,
    WqAttr, WqState, is_direct,
};

/// `IBV_WC_WR_FLUSH_ERR`: the WR was on a WQ that went into error. Not a frame.
const FLUSHED: u32 = 5;
/// `IBV_WC_LOC_LEN_ERR`: the frame was longer than the WR's buffers. The WQ goes on.
const TOO_LONG: u32 = 1;
/// How long a WQ in error may take to flush its WRs.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// What a ring is made of.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingAttr {
    /// WRs, and so slots.
    pub wrs: u32,
    /// Bytes of a scatter entry.
    pub buffer: u32,
    /// Scatter entries of a WR. They lie side by side in a slot, so that a frame is always one slice.
    pub max_sge: u32,
    /// Each WR's buffer takes many frames. It then is the one scatter entry, without headroom, and direct rings alone
    /// can.
    pub striding: Option<Striding>,
    /// How the device may compress completions; `None`: it does not. Direct rings alone can, and its stamps are then void.
    pub compression: Option<MiniFormat>,
    /// `ibv_wq_flags`.
    pub flags: u32,
    /// Completion vector.
    pub vector: u32,
    /// The device's time stamps to ask for.
    pub stamps: CompletionStamps,
    /// Bytes in front of each slot, where VLAN tags that the NIC took off are put back; 0: they are not. Only direct
    /// rings can.
    pub headroom: usize,
    /// A channel to sleep on.
    pub channel: bool,
    /// When it wakes the sleeper; `None`: at the first completion.
    pub moderation: Option<Moderation>,
    /// Reach the queues in their own memory where the device allows it.
    pub direct: bool,
    /// Where slots and rings should be.
    pub numa_node: Option<u32>,
}

/// What one poll found. Made once, used for every poll.
#[derive(Debug)]
pub struct Batch {
    /// Frames, in the order of their completion.
    pub frames: Vec<Filled>,
    /// WRs that completed in error.
    pub failed: Vec<Failed>,
    /// Slots whose WR was flushed: no frame was ever in them.
    pub flushed: Vec<Slot>,
    /// Slots that came back: of earlier batches, to be reposted with this one, and buffers that the device is done with.
    pub home: Vec<Slot>,
    size: usize,
}

impl Batch {
    /// A batch of at most `size` completions.
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

    /// Completions in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len() + self.failed.len() + self.flushed.len()
    }

    /// Whether the poll found nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slots in it, of the poll or not.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.len() + self.home.len()
    }

    /// The most completions it takes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }
}

/// A WR that completed in error.
#[derive(Debug)]
pub struct Failed {
    /// Its slot.
    pub slot: Slot,
    /// `ibv_wc_status`.
    pub status: u32,
}

impl Failed {
    /// Whether the WQ is in error after this, and every other WR of it is being flushed.
    #[must_use]
    pub fn stops_the_queue(&self) -> bool {
        self.status != TOO_LONG
    }
}

/// A completion that cannot be: the driver named a slot that is not posted, or a length no slot has, or the CQ
/// cannot be read. The queue cannot go on. Small, for the hot path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The CQ cannot be polled (errno).
    #[error("the CQ cannot be polled: errno {0} (it was overrun, or the device is gone)")]
    Poll(i32),
    /// A completion names a slot that is not on the ring.
    #[error("a completion names WR {0}, which is not posted")]
    Unposted(u64),
    /// A completion names strides that its buffer does not have left, or too few for its frame.
    #[error(
        "a completion names {1} strides from {0} on, which its buffer does not have left, or a longer frame"
    )]
    Strides(u32, u32),
    /// The WQ takes no WRs (errno).
    #[error("WRs cannot be posted: errno {0}")]
    Post(i32),
}

/// A WQ with its CQ and its slots, owned by one thread.
pub struct Ring<Q = DeviceQueue> {
    // The order of teardown: WQ and CQ, then memory. The table holds the WQ as well, and the WQ its memory.
    queue: Q,
    memory: Arc<SlotMemory>,
    attr: RingAttr,
    posted: Box<[bool]>,
    outstanding: u32,
    /// Tokens that are not the ring's now.
    away: usize,
}

impl Ring {
    /// Makes a ring: memory, CQ and WQ, ready, with every slot posted.
    ///
    /// # Errors
    /// A verb's, or memory's.
    pub fn create(context: &Context, pd: &Pd, attr: RingAttr) -> Result<Self, ibv::VerbsError> {
        let layout = Layout::of(attr);
        let memory = Region::allocate(layout.stride() * attr.wrs as usize, attr.numa_node)?;
        let mr = Mr::register(pd, memory)?;
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
        let mut wq = prefer_node(attr.numa_node, || Wq::create(pd, &cq, &mr, wq_attr))?;
        // Receives posted before this are lost: libmlx5 zeroes the ring at RESET -> RDY.
        wq.set_state(None, WqState::Ready)?;
        let memory = Arc::new(SlotMemory::new(mr, layout));
        let queue = if let Some(shape) = attr.striding {
            let filling = |wrs| ManyFrames::new(shape, wrs);
            DeviceQueue::Striding(DirectQueue::new(wq, cq, filling)?)
        } else if attr.direct && is_direct(context) {
            DeviceQueue::Direct(DirectQueue::new(wq, cq, |_| OneFrame)?)
        } else {
            DeviceQueue::Verbs(VerbsQueue::new(wq, cq, &memory, attr))
        };
        Self::over(queue, memory, attr)
    }

    /// The WQ, for a table.
    #[must_use]
    pub fn wq(&self) -> &Wq {
        self.queue.wq()
    }
}

impl<Q: Queue> Ring<Q> {
    /// A ring over a queue that is ready, with memory that no device knows, to try or measure a loop without one.
    ///
    /// # Errors
    /// There is no memory, or the queue takes no WRs.
    pub fn without_device(queue: Q, attr: RingAttr) -> Result<Self, ibv::VerbsError> {
        let layout = Layout::of(attr);
        let memory = Region::allocate(layout.stride() * attr.wrs as usize, None)?;
        let memory = Arc::new(SlotMemory::unregistered(memory, layout));
        Self::over(queue, memory, attr)
    }

    /// A ring over a queue that is ready, with every slot posted.
    fn over(queue: Q, memory: Arc<SlotMemory>, attr: RingAttr) -> Result<Self, ibv::VerbsError> {
        let mut ring = Self {
            queue,
            memory: Arc::clone(&memory),
            attr,
            posted: vec![false; attr.wrs as usize].into(),
            outstanding: 0,
            away: 0,
        };
        ring.post_all((0..attr.wrs).map(|index| memory.slot(index)))
            .map_err(|errno| {
                ibv::VerbsError::from_errno("ibv_post_wq_recv", format!("{} WRs", attr.wrs), errno)
            })?;
        Ok(ring)
    }

    /// The memory of this ring's slots.
    #[must_use]
    pub fn memory(&self) -> &Arc<SlotMemory> {
        &self.memory
    }

    /// Descriptor of the channel to sleep on, where there is one.
    #[must_use]
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.event_fd()
    }

    /// Asks for an event at the next completion. mlx5 raises one at once for a completion that is there already, so
    /// nothing is slept through.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn arm(&mut self) -> Result<(), ibv::VerbsError> {
        self.queue.arm()
    }

    /// Takes and acknowledges one event if there is one; true when there was.
    pub fn take_event(&mut self) -> bool {
        self.queue.take_event()
    }

    /// Slots that others have, each to come back.
    #[must_use]
    pub fn away(&self) -> usize {
        self.away
    }

    /// WRs the device has.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Takes up to `limit` completions (and no more than the batch's size) into an empty batch.
    ///
    /// # Errors
    /// The queue cannot go on. What the batch holds by then is sound.
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

    /// Puts a batch's slots back on the ring, with one list and one doorbell, and empties the batch.
    ///
    /// # Errors
    /// The WQ takes no WRs.
    ///
    /// # Panics
    /// The batch is another ring's.
    #[inline]
    pub fn repost(&mut self, batch: &mut Batch) -> Result<(), RingError> {
        self.away -= batch.slots();
        if batch.failed.is_empty() && batch.flushed.is_empty() {
            // Nearly always: frames alone, in their order, or what came home.
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
    /// One of the slots is another ring's.
    #[inline]
    fn post_all(&mut self, slots: impl Iterator<Item = Slot>) -> Result<(), i32> {
        let (posted, memory) = (&mut self.posted, &self.memory);
        let slots = slots.inspect(|slot| memory.own(slot));
        self.outstanding += self.queue.post(posted, slots, memory, self.attr)?;
        Ok(())
    }

    /// Turns CVLAN stripping on or off. What is on the ring stays there: each completion tells whether its frame lost
    /// a tag.
    ///
    /// # Errors
    /// The verb's: the device cannot.
    pub fn set_cvlan_stripping(&mut self, on: bool) -> Result<(), ibv::VerbsError> {
        self.queue.set_cvlan_stripping(on)
    }

    /// Brings a WQ back that is in error: everything posted is flushed, then RESET, RDY, and the slots go back on.
    /// Frames that completed before the error are handed to `frames` first, as they were received; those it leaves go
    /// back on. Slots that others have are no matter of it.
    ///
    /// A device that does not flush every WR within `FLUSH_TIME` is reset all the same: after that it writes to no slot,
    /// so that those without a completion are taken back.
    ///
    /// # Errors
    /// A verb failed: the queue cannot be recovered.
    pub fn recover(
        &mut self,
        mut frames: impl FnMut(&mut Vec<Filled>, &SlotMemory),
    ) -> Result<Recovered, RxError> {
        // A WQ that the device put into error is there already; asking again is allowed. One that only its last
        // completion shows to be broken is put there, so that it flushes.
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
                    // What the device has written by the reset is still in the CQ.
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
        let unflushed = std::mem::take(&mut self.outstanding);
        for (index, posted) in (0u32..).zip(&mut self.posted) {
            if std::mem::take(posted) {
                slots.push(self.memory.slot(index));
                self.away += 1;
            }
        }
        self.queue.set_state(None, WqState::Ready)?;
        self.away -= slots.len();
        // Those flushed above, and those of the batch that showed the error, which its holder reposts afterwards.
        self.post_all(slots.into_iter())
            .map_err(|errno| RxError::Recovery(RingError::Post(errno)))?;
        Ok(Recovered { errors, unflushed })
    }

    /// Resets a WQ that is in error. Without a present state in the request the kernel sends its own record, which may
    /// still say ready, and firmware may refuse that; DPDK names the error state (`mlx5_devx_modify_rq` of
    /// drivers/net/mlx5/mlx5_devx.c).
    fn reset(&mut self) -> Result<(), ibv::VerbsError> {
        self.queue
            .set_state(None, WqState::Reset)
            .or_else(|_| self.queue.set_state(Some(WqState::Error), WqState::Reset))
    }
}

/// How a WQ was brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// WRs that completed in error, which were frames too.
    pub errors: u64,
    /// WRs that never completed, whose slots were taken back after the reset.
    pub unflushed: u32,
}

/// A poll's bookkeeping, the same for every queue. Frames of a striding queue become tokens in `striding`.
pub struct Account<'a> {
    posted: &'a mut [bool],
    outstanding: &'a mut u32,
    memory: &'a SlotMemory,
    batch: &'a mut Batch,
}

impl Account<'_> {
    /// Writes into a slot that is on the ring, as the device does.
    #[cfg(test)]
    fn write(&mut self, index: u32, bytes: &[u8]) {
        assert!(self.posted[index as usize] && bytes.len() <= self.memory.slot_bytes());
        self.memory.write(index, bytes);
    }

    /// Enters one completion; a slot that is not posted is an error and makes no token.
    ///
    /// # Errors
    /// The slot is not on the ring.
    #[inline]
    pub fn enter(
        &mut self,
        index: u64,
        status: u32,
        len: u32,
        stamp: u64,
        stripped: Option<u16>,
    ) -> Result<(), RingError> {
        let (frames, mut slots) = self.parts();
        slots.enter(index, status, len, stamp, stripped, move |filled| {
            frames.push(filled);
            frames.last_mut()
        })
    }

    /// The batch's frames, and what else completions change.
    #[inline]
    fn parts(&mut self) -> (&mut Vec<Filled>, Slots<'_>) {
        let Batch {
            frames,
            failed,
            flushed,
            ..
        } = self.batch;
        let slots = Slots {
            posted: self.posted,
            outstanding: self.outstanding,
            memory: self.memory,
            failed,
            flushed,
        };
        (frames, slots)
    }

    /// Frames of this poll so far, but for those whose places are still lent.
    #[inline]
    fn frames(&self) -> usize {
        self.batch.frames.len()
    }

    /// Whether the device has a slot.
    #[inline]
    fn is_posted(&self, index: u32) -> bool {
        self.posted.get(index as usize) == Some(&true)
    }

    /// The device is done with a buffer: its own token comes home.
    ///
    /// # Errors
    /// The buffer is not on the ring.
    #[inline]
    fn leave(&mut self, buffer: u32) -> Result<(), RingError> {
        match self.posted.get_mut(buffer as usize) {
            Some(posted @ true) => *posted = false,
            _ => return Err(RingError::Unposted(buffer.into())),
        }
        *self.outstanding -= 1;
        self.batch.home.push(self.memory.slot(buffer));
        Ok(())
    }
}

/// What a completion of a slot changes, but for the frames of its batch.
struct Slots<'a> {
    posted: &'a mut [bool],
    outstanding: &'a mut u32,
    memory: &'a SlotMemory,
    failed: &'a mut Vec<Failed>,
    flushed: &'a mut Vec<Slot>,
}

impl Slots<'_> {
    /// As [`Account::enter`]; a frame goes to `push`, which tells where it is then.
    #[inline(always)]
    fn enter<'f>(
        &mut self,
        index: u64,
        status: u32,
        len: u32,
        stamp: u64,
        stripped: Option<u16>,
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
        // An index of `posted`, whose length is a u32.
        let slot = self.memory.slot(index as u32);
        if status == 0 && len as usize <= self.memory.slot_bytes() {
            self.memory.fill(slot, 0, len, stamp, stripped, push);
        } else if status == FLUSHED {
            self.flushed.push(slot);
        } else {
            // A length no slot has is as good as an error that says so.
            let status = if status == 0 { TOO_LONG } else { status };
            self.failed.push(Failed { slot, status });
        }
        Ok(())
    }
}
