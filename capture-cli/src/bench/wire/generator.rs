//! Frames sent as they are, over a RAW_PACKET QP.
#![allow(unsafe_code)]

use std::{mem, ptr};
use wqcap_engine::{
    memory::Region,
    verbs::{Context, MessageCq, Mr, Pd, VerbsError, status_text, sys as ffi},
};

/// Sends of one list at most.
const LIST: usize = 64;

/// A RAW_PACKET QP that sends, and the frames that it sends in turn. The fields' order is the order of teardown.
pub struct Generator {
    qp: RawQp,
    cq: MessageCq,
    /// The frames, one behind the other.
    memory: Mr,
    /// One for each frame.
    entries: Vec<ffi::ibv_sge>,
    list: Vec<ffi::ibv_send_wr>,
    /// Sends that the queue takes before one has completed.
    room: usize,
    depth: usize,
    next: usize,
}

// SAFETY: the pointers are to the generator's own vectors and memory, which it alone reaches.
unsafe impl Send for Generator {}

/// The generator, of which it is the first field, holds the CQ longer.
struct RawQp {
    raw: *mut ffi::ibv_qp,
    // Held until the QP is destroyed.
    _pd: Pd,
}

impl Drop for RawQp {
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

impl RawQp {
    fn make(pd: &Pd, cq: &MessageCq, depth: u32, port: u8) -> Result<Self, VerbsError> {
        // The longer structure, whose `comp_mask` is where `ibv_qp_init_attr` ends in padding.
        // SAFETY: plain old data; all zero is the documented start.
        let mut init: ffi::ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
        init.send_cq = cq.as_ptr();
        init.recv_cq = cq.as_ptr();
        init.cap.max_send_wr = depth;
        init.cap.max_send_sge = 1;
        init.qp_type = ffi::ibv_qp_type::IBV_QPT_RAW_PACKET;
        // SAFETY: a live PD and CQ, which are held longer than the new object; `init` outlives the call.
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
            // SAFETY: a live QP that nobody else knows yet; `attr` outlives the call.
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
    /// Makes one on a port, of `depth` sends under way, that sends `frames` in turn: EPERM without
    /// CAP_NET_RAW.
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
        let qp = RawQp::make(&pd, &cq, depth, port)?;
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

    /// Sends the next `count` frames, or as many as there is room for: how many they were.
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
            // One completion for the list, which tells how long that was.
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
        // SAFETY: a live QP with one poster; the list and its entries are the generator's own and outlive the call; the
        // entries lie in memory that it holds until the QP is gone.
        match unsafe { ffi::ibv_post_send(self.qp.raw, list, &raw mut bad) } {
            0 => {
                self.room -= count;
                Ok(count)
            }
            errno => Err(VerbsError::from_errno("ibv_post_send", "RAW_PACKET", errno)),
        }
    }

    /// Whether everything sent has completed: it has left the port.
    pub fn is_done(&mut self) -> Result<bool, VerbsError> {
        self.reap()?;
        Ok(self.room == self.depth)
    }

    /// Writes `bytes` into the frame that is sent next, from byte `at` on. False: something is under way, or it does not
    /// reach so far.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<bool, VerbsError> {
        let entry = self.entries[self.next];
        if !self.is_done()? || at + bytes.len() > entry.length as usize {
            return Ok(false);
        }
        debug_assert!(entry.addr >= self.memory.memory().addr() as u64);
        // SAFETY: within the frame, as asked above, and the device has nothing to read: all sends have completed.
        unsafe {
            let to = (entry.addr as usize + at) as *mut u8;
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(true)
    }

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
