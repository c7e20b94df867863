//! The least that a program can do with a ring: what the engine's loop is measured against.
//!
//! Completions are taken by a verb, the fields that a capture reads are read, and the WRs are posted again as one list.
//! Nothing is counted but the frames; what else becomes of them is for the caller to say.
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

/// By which verbs completions are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// `ibv_start_poll` and its readers, the time stamp among them.
    CqEx,
    /// `ibv_poll_cq`, which tells no time stamp.
    PollCq,
}

/// What a ring is made of.
#[derive(Clone, Copy, Debug)]
pub struct BareAttr {
    /// How it is polled.
    pub poll: Poll,
    /// WRs.
    pub ring: u32,
    /// Bytes of a WR's buffer.
    pub buffer: u32,
    /// Completions of a poll at most, 1 to the ring's length.
    pub batch: usize,
}

/// A WQ with its CQ, its buffers and its WRs.
pub struct BareRing {
    wq: Wq,
    cq: Cq,
    /// WR i receives into buffer i.
    wrs: Vec<ffi::ibv_recv_wr>,
    /// Their scatter entries, at addresses that the WRs name.
    _entries: Vec<ffi::ibv_sge>,
    completions: Vec<ffi::ibv_wc>,
    buffers: Buffers,
    attr: BareAttr,
}

/// The buffers of a ring, one behind the other.
#[derive(Clone, Copy)]
struct Buffers {
    start: *const u8,
    each: u32,
}

impl Buffers {
    /// The bytes of a frame.
    ///
    /// # Safety
    /// There is such a WR, which has completed and is not posted again as long as they are looked at.
    #[inline]
    unsafe fn frame<'a>(self, wr_id: u64, len: u32) -> &'a [u8] {
        let len = len.min(self.each) as usize;
        // SAFETY: WR i receives into buffer i, and no device is told of a longer one.
        unsafe { slice::from_raw_parts(self.start.add(wr_id as usize * self.each as usize), len) }
    }
}

// SAFETY: the pointers are to the ring's own vectors, which it alone reaches.
unsafe impl Send for BareRing {}

impl BareRing {
    /// Makes a ring that is ready, with every WR posted.
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
        let buffers = Buffers {
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
        let all = List::of(&mut ring.wrs, 0..u64::from(attr.ring));
        ring.post(&all)?;
        Ok(ring)
    }

    /// Takes what there is and posts it again, until nothing is left: how many frames there were. `each` has the bytes of
    /// every frame, and its time stamp, which is 0 where the verb tells none.
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
            // SAFETY: there is such a WR, which has completed, and the list is posted after this.
            let frame = unsafe { self.buffers.frame(it.wr_id, it.byte_len) };
            each(frame, it.timestamp);
            taken += 1;
        }
        Ok(taken)
    }

    fn take_plain(
        &mut self,
        list: &mut List,
        each: &mut impl FnMut(&[u8], u64),
    ) -> Result<u64, VerbsError> {
        let room = i32::try_from(self.attr.batch).unwrap_or(i32::MAX);
        // SAFETY: `&mut self` is the one reader of a live CQ; there is room for a batch.
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
            // SAFETY: there is such a WR, which has completed, and the list is posted after this.
            let frame = unsafe { self.buffers.frame(it.wr_id, it.byte_len) };
            each(frame, 0);
        }
        Ok(count as u64)
    }

    fn post(&mut self, list: &List) -> Result<(), VerbsError> {
        // SAFETY: the list is of this ring's WRs, whose entries lie in the memory of its WQ and in buffers that nobody
        // else uses; each was made anew or has completed.
        unsafe { self.wq.post(list.first) }
            .map_err(|errno| VerbsError::from_errno("ibv_post_wq_recv", "", errno))
    }
}

/// WRs linked by `next`.
struct List {
    first: *mut ffi::ibv_recv_wr,
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
    fn of(wrs: &mut [ffi::ibv_recv_wr], ids: impl Iterator<Item = u64>) -> Self {
        let mut list = Self::default();
        for id in ids {
            list.append(wrs, id);
        }
        list
    }

    #[inline]
    fn append(&mut self, wrs: &mut [ffi::ibv_recv_wr], wr_id: u64) {
        let wr = &mut wrs[wr_id as usize];
        wr.next = ptr::null_mut();
        let wr = &raw mut *wr;
        if self.last.is_null() {
            self.first = wr;
        } else {
            // SAFETY: a WR of the same slice, appended before, which nobody else reaches meanwhile.
            unsafe { (*self.last).next = wr };
        }
        self.last = wr;
    }
}

/// Rings that frames are spread over. The fields' order is the order of teardown.
pub struct BareRings {
    rules: Vec<Flow>,
    qp: RssQp,
    /// Each for one thread.
    pub rings: Vec<BareRing>,
    wanted: FlowRule,
}

impl BareRings {
    /// Makes a power of two of rings, over which frames are spread that `rule` lets in and whose addresses and UDP ports
    /// are IPv4's. Nothing is let in yet.
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

    /// Lets frames in.
    pub fn let_in(&mut self) -> Result<(), VerbsError> {
        self.rules.push(Flow::create(&self.qp, &self.wanted)?);
        Ok(())
    }

    /// Lets no more in.
    pub fn shut(&mut self) {
        self.rules.clear();
    }
}
