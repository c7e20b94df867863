//! Sender of raw frames over a RAW_PACKET QP.
#![allow(unsafe_code)]

use std::{mem, ptr};
use wqcap_engine::{
    memory::Region,
    verbs::{Context, MessageCq, Mr, Pd, VerbsError, status_text, sys as ffi},
};

/// Maximum number of send WRs that the generator posts as one list.
const LIST: usize = 64;

/// Frame generator: a RAW_PACKET QP and the frames that it sends in turn. The order of the fields
/// is the order in which they are dropped.
pub struct Generator {
    /// RAW_PACKET QP over which the generator sends its frames.
    qp: SendQp,
    /// CQ for the completions of the generator's sends.
    cq: MessageCq,
    /// Registered memory of the frames to send, one after the other.
    memory: Mr,
    /// Scatter entries of the frames to send, one for each frame.
    entries: Vec<ffi::ibv_sge>,
    /// Send WRs of the generator, reused for each list of sends.
    list: Vec<ffi::ibv_send_wr>,
    /// Number of sends that the send queue accepts before an earlier one completes.
    room: usize,
    /// Maximum number of frames in flight on the send queue.
    depth: usize,
    /// Index of the frame that the generator sends next.
    next: usize,
}

// SAFETY: the pointers are to the generator's own vectors and memory, which nothing else accesses.
unsafe impl Send for Generator {}

/// RAW_PACKET QP of a frame generator. The generator drops it before its CQ.
struct SendQp {
    /// Verbs handle of the generator's RAW_PACKET QP.
    raw: *mut ffi::ibv_qp,
    // Held until the QP is destroyed.
    _pd: Pd,
}

impl Drop for SendQp {
    fn drop(&mut self) {
        // SAFETY: created by `make`, destroyed only here.
        match unsafe { ffi::ibv_destroy_qp(self.raw) } {
            0 => {}
            errno => tracing::error!(
                "{}",
                VerbsError::from_errno("ibv_destroy_qp", "RAW_PACKET", errno)
            ),
        }
    }
}

impl SendQp {
    /// Creates a RAW_PACKET QP on the port `port`, ready to send.
    fn make(pd: &Pd, cq: &MessageCq, depth: u32, port: u8) -> Result<Self, VerbsError> {
        // The longer structure is used: its `comp_mask` is at the place where `ibv_qp_init_attr`
        // ends with padding.
        // SAFETY: plain old data; all zero is the documented start.
        let mut init: ffi::ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
        init.send_cq = cq.as_ptr();
        init.recv_cq = cq.as_ptr();
        init.cap.max_send_wr = depth;
        init.cap.max_send_sge = 1;
        init.qp_type = ffi::ibv_qp_type::IBV_QPT_RAW_PACKET;
        // SAFETY: a live PD and CQ, which outlive the new object; `init` outlives the call.
        let raw = unsafe { ffi::ibv_create_qp(pd.as_ptr(), (&raw mut init).cast()) };
        if raw.is_null() {
            return Err(VerbsError::last_os_error("ibv_create_qp", "RAW_PACKET"));
        }
        let qp = Self {
            raw,
            _pd: pd.clone(),
        };
        qp.make_ready(port)?;
        Ok(qp)
    }

    /// Moves the RAW_PACKET QP to the state in which it can send.
    fn make_ready(&self, port: u8) -> Result<(), VerbsError> {
        use ffi::{ibv_qp_attr_mask as mask, ibv_qp_state as state};
        // SAFETY: plain old data; all zero is valid.
        let mut attr: ffi::ibv_qp_attr = unsafe { mem::zeroed() };
        attr.port_num = port;
        for (to, with) in [
            (state::IBV_QPS_INIT, mask::IBV_QP_STATE | mask::IBV_QP_PORT),
            (state::IBV_QPS_RTR, mask::IBV_QP_STATE),
            (state::IBV_QPS_RTS, mask::IBV_QP_STATE),
        ] {
            attr.qp_state = to;
            let with = i32::try_from(with.0).unwrap_or(0);
            // SAFETY: a live QP that nothing else knows yet; `attr` outlives the call.
            match unsafe { ffi::ibv_modify_qp(self.raw, &raw mut attr, with) } {
                0 => {}
                errno => {
                    let object = format!("RAW_PACKET, to state {to}");
                    return Err(VerbsError::from_errno("ibv_modify_qp", object, errno));
                }
            }
        }
        Ok(())
    }
}

impl Generator {
    /// Creates a frame generator on the port `port` with at most `depth` sends in flight, which
    /// sends `frames` in turn. Without CAP_NET_RAW it fails with EPERM.
    pub fn make(
        context: &Context,
        port: u8,
        depth: u32,
        frames: &[Vec<u8>],
    ) -> Result<Self, VerbsError> {
        let pd = Pd::alloc(context)?;
        let bytes = frames.concat();
        let mut region = Region::allocate(bytes.len().max(1), None)?;
        region.as_mut_slice()[..bytes.len()].copy_from_slice(&bytes);
        let memory = Mr::register(&pd, region)?;
        let mut addr = memory.memory().addr() as u64;
        let entries = frames.iter().map(|frame| {
            let entry = ffi::ibv_sge {
                addr,
                length: u32::try_from(frame.len()).unwrap_or(u32::MAX),
                lkey: memory.lkey(),
            };
            addr += frame.len() as u64;
            entry
        });
        let entries: Vec<_> = entries.collect();
        let cq = MessageCq::create(context, depth)?;
        let qp = SendQp::make(&pd, &cq, depth, port)?;
        Ok(Self {
            qp,
            cq,
            memory,
            entries,
            // SAFETY: plain old data, for which all zero is valid.
            list: (0..LIST).map(|_| unsafe { mem::zeroed() }).collect(),
            room: depth as usize,
            depth: depth as usize,
            next: 0,
        })
    }

    /// Sends the next `count` frames, or as many as the send queue accepts. Returns the number of
    /// frames sent.
    pub fn send(&mut self, count: usize) -> Result<usize, VerbsError> {
        self.reap()?;
        let count = count.min(self.room).min(LIST);
        if count == 0 {
            return Ok(0);
        }
        let list = self.list.as_mut_ptr();
        for at in 0..count {
            let entry = &raw mut self.entries[self.next];
            self.next = (self.next + 1) % self.entries.len();
            let last = at + 1 == count;
            let wr = &mut self.list[at];
            wr.sg_list = entry;
            wr.num_sge = 1;
            wr.opcode = ffi::ibv_wr_opcode::IBV_WR_SEND;
            // The list has one completion, whose `wr_id` is the length of the list.
            (wr.send_flags, wr.wr_id) = if last {
                (ffi::ibv_send_flags::IBV_SEND_SIGNALED.0, count as u64)
            } else {
                (0, 0)
            };
            wr.next = if last {
                ptr::null_mut()
            } else {
                list.wrapping_add(at + 1)
            };
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a live QP with one poster; the list and its entries belong to the generator and
        // outlive the call; the entries are in memory that it holds until the QP is gone.
        match unsafe { ffi::ibv_post_send(self.qp.raw, list, &raw mut bad) } {
            0 => {
                self.room -= count;
                Ok(count)
            }
            errno => Err(VerbsError::from_errno("ibv_post_send", "RAW_PACKET", errno)),
        }
    }

    /// Returns `true` if all sends of the generator have completed, so that the frames have left
    /// the port.
    pub fn is_done(&mut self) -> Result<bool, VerbsError> {
        self.reap()?;
        Ok(self.room == self.depth)
    }

    /// Writes `bytes` at offset `at` into the frame that is sent next. Returns `false` if a send is
    /// in flight, or if the frame is too short.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<bool, VerbsError> {
        let entry = self.entries[self.next];
        if !self.is_done()? || at + bytes.len() > entry.length as usize {
            return Ok(false);
        }
        debug_assert!(entry.addr >= self.memory.memory().addr() as u64);
        // SAFETY: within the frame, as checked above; the device reads nothing, because all sends
        // have completed.
        unsafe {
            let to = (entry.addr as usize + at) as *mut u8;
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(true)
    }

    /// Polls the completions of the generator's sends, which makes room in the send queue.
    fn reap(&mut self) -> Result<(), VerbsError> {
        loop {
            let done = self.cq.poll()?;
            if done.is_empty() {
                return Ok(());
            }
            for it in done {
                if it.status != 0 {
                    let object = format!("RAW_PACKET: {}", status_text(it.status));
                    return Err(VerbsError::from_errno("ibv_post_send", object, libc::EIO));
                }
                self.room += usize::try_from(it.wr_id).unwrap_or(0);
            }
        }
    }
}
