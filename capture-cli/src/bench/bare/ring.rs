//! Minimal loop over a ring, the baseline for the engine's loop.
//!
//! It polls completions with a verb, reads the fields that a capture reads, and posts the WRs again
//! as one list. It counts only frames; the caller handles their bytes.
#![allow(unsafe_code)]

use std::{mem, ptr, slice};
use wqcap_engine::{
    memory::Region,
    verbs::{
        CompletionStamps, Context, Cq, CqAttr, Flow, FlowRule, Mr, Pd, RssQp, RwqTable, VerbsError,
        Wq, WqAttr, WqState, sys as ffi,
    },
};
use wqcap_rss::{key::RssKey, profile::HashFields};

/// Verbs with which a bare ring polls completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Polls with `ibv_start_poll` and its readers, including that of the time stamp.
    CqEx,
    /// Polls completions with `ibv_poll_cq`, which provides no time stamp.
    PollCq,
}

/// Attributes of a bare receive ring.
#[derive(Clone, Copy, Debug)]
pub struct BareAttr {
    /// Verbs with which the bare ring polls completions.
    pub poll: Poll,
    /// Number of receive WRs in the bare ring.
    pub ring: u32,
    /// Length of the buffer of each receive WR in bytes.
    pub buffer: u32,
    /// Maximum number of completions that the bare ring takes per poll, 1 to the number of its WRs.
    pub batch: usize,
}

/// Bare receive ring: a WQ with its CQ, its buffers and its WRs, without the engine's accounting.
pub struct BareRing {
    wq: Wq,
    cq: Cq,
    /// Receive WRs of the bare ring. WR number i receives into buffer number i.
    wrs: Vec<ffi::ibv_recv_wr>,
    /// Scatter entries of the receive WRs, whose addresses the WRs contain.
    _entries: Vec<ffi::ibv_sge>,
    /// Buffer for the completions that one call of `ibv_poll_cq` returns.
    completions: Vec<ffi::ibv_wc>,
    /// Buffers into which the receive WRs of the bare ring receive.
    buffers: RingBuffers,
    attr: BareAttr,
}

/// Receive buffers of a bare ring, adjacent in memory.
#[derive(Clone, Copy)]
struct RingBuffers {
    /// Address of the first receive buffer of the bare ring.
    start: *const u8,
    /// Length of each receive buffer in bytes.
    each: u32,
}

impl RingBuffers {
    /// Returns the bytes of a received frame of `len` bytes in the buffer of WR `wr_id`.
    ///
    /// # Safety
    /// The WR must exist, must have completed, and must not be posted again while the bytes are in
    /// use.
    #[inline]
    unsafe fn frame<'a>(self, wr_id: u64, len: u32) -> &'a [u8] {
        let len = len.min(self.each) as usize;
        // SAFETY: WR i receives into buffer i, and no device knows of a longer buffer.
        unsafe { slice::from_raw_parts(self.start.add(wr_id as usize * self.each as usize), len) }
    }
}

// SAFETY: the pointers are to the ring's own vectors, which nothing else accesses.
unsafe impl Send for BareRing {}

impl BareRing {
    /// Creates a bare ring whose WQ is in the ready state, with every receive WR posted.
    pub fn make(context: &Context, pd: &Pd, attr: BareAttr) -> Result<Self, VerbsError> {
        let stamps = match attr.poll {
            Poll::CqEx => CompletionStamps::Ticks,
            Poll::PollCq => CompletionStamps::None,
        };
        let cq_attr = CqAttr {
            entries: attr.ring,
            vector: 0,
            stamps,
            compression: None,
        };
        let cq = Cq::create(context, cq_attr, None)?;
        let memory = Region::allocate(attr.ring as usize * attr.buffer as usize, None)?;
        let mr = Mr::register(pd, memory)?;
        let wq_attr = WqAttr {
            max_wr: attr.ring,
            max_sge: 1,
            flags: 0,
            striding: None,
        };
        let mut wq = Wq::create(pd, &cq, &mr, wq_attr)?;
        wq.set_state(None, WqState::Ready)?;
        let buffers = RingBuffers {
            start: mr.memory().cast(),
            each: attr.buffer,
        };
        let mut entries: Vec<_> = (0..u64::from(attr.ring))
            .map(|i| ffi::ibv_sge {
                addr: buffers.start as u64 + i * u64::from(attr.buffer),
                length: attr.buffer,
                lkey: mr.lkey(),
            })
            .collect();
        let wrs = entries
            .iter_mut()
            .zip(0..)
            .map(|(entry, wr_id)| ffi::ibv_recv_wr {
                wr_id,
                next: ptr::null_mut(),
                sg_list: entry,
                num_sge: 1,
            });
        let mut ring = Self {
            wrs: wrs.collect(),
            _entries: entries,
            // SAFETY: plain old data, for which all zero is valid.
            completions: (0..attr.batch).map(|_| unsafe { mem::zeroed() }).collect(),
            wq,
            cq,
            buffers,
            attr,
        };
        let all = List::from_ids(&mut ring.wrs, 0..u64::from(attr.ring));
        ring.post(&all)?;
        Ok(ring)
    }

    /// Polls completions of the bare ring and posts their WRs again, until the CQ is empty. Returns
    /// the number of frames. `each` is called with the bytes and the time stamp of every frame; the
    /// stamp is 0 if the verb provides none.
    pub fn drain(&mut self, each: &mut impl FnMut(&[u8], u64)) -> Result<u64, VerbsError> {
        let mut frames = 0;
        loop {
            let mut list = List::default();
            let taken = match self.attr.poll {
                Poll::CqEx => self.take_ex(&mut list, each)?,
                Poll::PollCq => self.take_plain(&mut list, each)?,
            };
            if taken == 0 {
                return Ok(frames);
            }
            self.post(&list)?;
            frames += taken;
        }
    }

    /// Polls a batch of completions with `ibv_start_poll`, and appends its WRs to `list`.
    fn take_ex(
        &mut self,
        list: &mut List,
        each: &mut impl FnMut(&[u8], u64),
    ) -> Result<u64, VerbsError> {
        let failed = |errno| VerbsError::from_errno("ibv_start_poll", "", errno);
        let Some(mut completions) = self.cq.poll().map_err(|e| failed(e.0))? else {
            return Ok(0);
        };
        let mut taken = 0;
        while taken < self.attr.batch as u64
            && let Some(it) = completions.next().map_err(|e| failed(e.0))?
        {
            if it.status != 0 {
                return Err(failed(libc::EIO));
            }
            list.append(&mut self.wrs, it.wr_id);
            // SAFETY: the WR exists and has completed, and the list is posted after this.
            let frame = unsafe { self.buffers.frame(it.wr_id, it.byte_len) };
            each(frame, it.timestamp);
            taken += 1;
        }
        Ok(taken)
    }

    /// Polls a batch of completions with `ibv_poll_cq`, and appends its WRs to `list`.
    fn take_plain(
        &mut self,
        list: &mut List,
        each: &mut impl FnMut(&[u8], u64),
    ) -> Result<u64, VerbsError> {
        let room = i32::try_from(self.attr.batch).unwrap_or(i32::MAX);
        // SAFETY: `&mut self` is the one reader of a live CQ; `completions` has room for a batch.
        let count = unsafe {
            let cq = ffi::ibv_cq_ex_to_cq(self.cq.as_ptr());
            ffi::ibv_poll_cq(cq, room, self.completions.as_mut_ptr())
        };
        let Ok(count) = usize::try_from(count) else {
            return Err(VerbsError::last_os_error("ibv_poll_cq", ""));
        };
        for it in &self.completions[..count] {
            if it.status != 0 {
                return Err(VerbsError::from_errno("ibv_poll_cq", "", libc::EIO));
            }
            list.append(&mut self.wrs, it.wr_id);
            // SAFETY: the WR exists and has completed, and the list is posted after this.
            let frame = unsafe { self.buffers.frame(it.wr_id, it.byte_len) };
            each(frame, 0);
        }
        Ok(count as u64)
    }

    /// Posts a list of receive WRs to the WQ of the bare ring.
    fn post(&mut self, list: &List) -> Result<(), VerbsError> {
        // SAFETY: the list has WRs of this ring. Their entries are in the memory of its WQ, in
        // buffers that nothing else uses. Each WR is new or has completed.
        unsafe { self.wq.post(list.first) }
            .map_err(|errno| VerbsError::from_errno("ibv_post_wq_recv", "", errno))
    }
}

/// List of receive WRs of a bare ring, linked by `next`.
struct List {
    /// First receive WR of the list; null if the list is empty.
    first: *mut ffi::ibv_recv_wr,
    /// Last receive WR of the list; null if the list is empty.
    last: *mut ffi::ibv_recv_wr,
}

impl Default for List {
    fn default() -> Self {
        Self {
            first: ptr::null_mut(),
            last: ptr::null_mut(),
        }
    }
}

impl List {
    /// Links the receive WRs with the numbers `ids` into a list.
    fn from_ids(wrs: &mut [ffi::ibv_recv_wr], ids: impl Iterator<Item = u64>) -> Self {
        let mut list = Self::default();
        for id in ids {
            list.append(wrs, id);
        }
        list
    }

    /// Appends a receive WR of the bare ring to the list.
    #[inline]
    fn append(&mut self, wrs: &mut [ffi::ibv_recv_wr], wr_id: u64) {
        let wr = &mut wrs[wr_id as usize];
        wr.next = ptr::null_mut();
        let wr = &raw mut *wr;
        if self.last.is_null() {
            self.first = wr;
        } else {
            // SAFETY: a WR of the same slice, appended before, which nothing else accesses
            // meanwhile.
            unsafe { (*self.last).next = wr };
        }
        self.last = wr;
    }
}

/// Bare rings over which an RSS QP spreads frames. The order of the fields is the order in which
/// they are dropped.
pub struct BareRings {
    /// Installed flow rule that lets frames into the bare rings; empty: it is not installed.
    rules: Vec<Flow>,
    /// RSS QP that spreads frames over the bare rings.
    qp: RssQp,
    /// Bare rings, each polled by one thread.
    pub rings: Vec<BareRing>,
    /// Flow rule to install, which lets frames into the bare rings.
    wanted: FlowRule,
}

impl BareRings {
    /// Creates `count` bare rings, a power of two. Frames that match `rule` are spread over them by
    /// IPv4 addresses and UDP ports. The rule is not installed yet.
    pub fn make(
        context: &Context,
        count: usize,
        attr: BareAttr,
        rule: FlowRule,
    ) -> Result<Self, VerbsError> {
        let pd = Pd::alloc(context)?;
        let rings = (0..count)
            .map(|_| BareRing::make(context, &pd, attr))
            .collect::<Result<Vec<_>, _>>()?;
        let table = RwqTable::create(context, rings.iter().map(|it| it.wq.handle()))?;
        let fields = HashFields::IPV4.union(HashFields::UDP_PORTS);
        Ok(Self {
            rules: Vec::new(),
            qp: RssQp::create(&pd, &table, &RssKey::MICROSOFT, fields)?,
            rings,
            wanted: rule,
        })
    }

    /// Installs the flow rule that lets frames into the bare rings.
    pub fn open(&mut self) -> Result<(), VerbsError> {
        self.rules.push(Flow::create(&self.qp, &self.wanted)?);
        Ok(())
    }

    /// Removes the flow rule, so that no more frames arrive on the bare rings.
    pub fn close(&mut self) {
        self.rules.clear();
    }
}
