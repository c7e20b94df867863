//! Queue accessed through libibverbs: `ibv_start_poll` and `ibv_post_wq_recv`, which every device
//! supports.
#![allow(unsafe_code)]

use super::pool::{Slot, SlotMemory};
use super::{Account, Queue, RingAttr, RingError, Wake};
use std::{os::fd::BorrowedFd, ptr};
use wqcap_verbs::{Cq, VerbsError, Wq, WqState, sys as ffi};

/// WQ and its CQ, accessed through the verbs, with one WR per slot.
pub struct VerbsQueue {
    wq: Wq,
    cq: Cq,
    wrs: SlotWrs,
}

/// WRs of a ring's slots, one per slot.
pub(super) struct SlotWrs {
    /// One WR per slot, complete except for its `next` pointer. Reposting only links the WRs.
    wrs: Box<[ffi::ibv_recv_wr]>,
    _sges: Box<[ffi::ibv_sge]>,
}

// SAFETY: the raw pointers in `wrs` point into `_sges` (boxed, never moved) and to other `wrs`; both move with the ring
// to the thread that owns it.
unsafe impl Send for SlotWrs {}

impl SlotWrs {
    pub(super) fn new(memory: &SlotMemory, attr: RingAttr) -> Self {
        let lkey = memory.lkey();
        let mut sges: Box<[_]> = (0..attr.wrs)
            .flat_map(|slot| {
                let start = memory.address(&memory.slot(slot)) as u64;
                (0..attr.max_sge).map(move |i| ffi::ibv_sge {
                    addr: start + u64::from(i) * u64::from(attr.buffer),
                    length: attr.buffer,
                    lkey,
                })
            })
            .collect();
        let wrs = sges
            .chunks_exact_mut(attr.max_sge as usize)
            .enumerate()
            .map(|(slot, sges)| ffi::ibv_recv_wr {
                wr_id: slot as u64,
                next: ptr::null_mut(),
                sg_list: sges.as_mut_ptr(),
                num_sge: i32::try_from(sges.len()).unwrap_or(i32::MAX),
            })
            .collect();
        Self { wrs, _sges: sges }
    }

    /// Links the WRs of slots into one list and marks the slots in `posted`. Returns the list,
    /// null without slots, and its length.
    ///
    /// Each WR's scatter entries lie in the slot whose token was given up, in the memory that the
    /// WRs were made for.
    #[inline]
    pub(super) fn link(
        &mut self,
        posted: &mut [bool],
        slots: impl Iterator<Item = Slot>,
    ) -> (*mut ffi::ibv_recv_wr, u32) {
        let wrs = self.wrs.as_mut_ptr();
        let (mut head, mut last): (*mut ffi::ibv_recv_wr, *mut ffi::ibv_recv_wr) =
            (ptr::null_mut(), ptr::null_mut());
        let mut count = 0;
        for slot in slots {
            let index = slot.index() as usize;
            posted[index] = true;
            // SAFETY: `posted` has as many entries as `wrs`, and indexing it has just checked the bound; `last` is
            // null or the WR linked before. The list is private until it is posted.
            unsafe {
                let wr = wrs.add(index);
                if last.is_null() {
                    head = wr;
                } else {
                    (*last).next = wr;
                }
                last = wr;
            }
            count += 1;
        }
        if !last.is_null() {
            // SAFETY: a WR of `wrs`, as above.
            unsafe { (*last).next = ptr::null_mut() };
        }
        (head, count)
    }
}

impl VerbsQueue {
    pub(super) fn new(wq: Wq, cq: Cq, memory: &SlotMemory, attr: RingAttr) -> Self {
        let wrs = SlotWrs::new(memory, attr);
        Self { wq, cq, wrs }
    }

    pub(super) fn wq(&self) -> &Wq {
        &self.wq
    }
}

// SAFETY: `post` marks the slots whose tokens it consumes, and `poll` enters what the CQ delivers.
unsafe impl Queue for VerbsQueue {
    #[inline]
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        if limit == 0 {
            return Ok(());
        }
        let Some(mut completions) = self.cq.poll().map_err(|e| RingError::Poll(e.0))? else {
            return Ok(());
        };
        for taken in 1.. {
            let Some(wc) = completions.next().map_err(|e| RingError::Poll(e.0))? else {
                break;
            };
            account.enter(wc.wr_id, wc.status, wc.into())?;
            // Checked before the next completion is taken: a completion that is taken must be handled.
            if taken == limit {
                break;
            }
        }
        Ok(())
    }

    /// Links the WRs of returned slots into one list and posts the list.
    #[inline]
    fn post(
        &mut self,
        posted: &mut [bool],
        slots: impl Iterator<Item = Slot>,
        _memory: &SlotMemory,
        _attr: RingAttr,
    ) -> Result<u32, i32> {
        let (list, count) = self.wrs.link(posted, slots);
        if count > 0 {
            // SAFETY: `link` has just linked the list, whose slots belong to the device now.
            unsafe { self.wq.post(list)? };
        }
        Ok(count)
    }

    fn set_state(&mut self, from: Option<WqState>, state: WqState) -> Result<(), VerbsError> {
        self.wq.set_state(from, state)
    }

    fn set_cvlan_stripping(&mut self, on: bool) -> Result<(), VerbsError> {
        self.wq.set_cvlan_stripping(on)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.cq.event_fd()
    }

    fn arm(&mut self, _wake: Wake) -> Result<(), VerbsError> {
        self.cq.arm()
    }

    fn take_event(&mut self) -> bool {
        self.cq.take_event()
    }
}
