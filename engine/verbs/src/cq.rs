//! Completion queues, polled through the extended interface, and the event channels that wake a
//! waiting thread.

use crate::sys as ffi;
use crate::sys::ibv_create_cq_wc_flags as Flags;
use crate::{
    device::{Context, ContextInner, operation},
    error::{VerbsError, check_created, check_errno, log_destroy_error, set_nonblocking},
    mlx5dv as dv,
};
use serde::Serialize;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    ptr,
    sync::Arc,
};

/// Channel on which completion events of a CQ arrive.
pub struct Channel {
    raw: *mut ffi::ibv_comp_channel,
    context: Arc<ContextInner>,
}

// SAFETY: used by the one thread that owns the CQ; destroyed with it.
unsafe impl Send for Channel {}
// SAFETY: shared references only read the descriptor number.
unsafe impl Sync for Channel {}

impl Channel {
    /// Creates a completion event channel with a non-blocking file descriptor.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn create(context: &Context) -> Result<Self, VerbsError> {
        // SAFETY: a live context, held by the new object.
        let raw = unsafe { ffi::ibv_create_comp_channel(context.0.raw) };
        let raw = check_created(raw, "ibv_create_comp_channel", context.name())?;
        let channel = Self {
            raw,
            context: Arc::clone(&context.0),
        };
        set_nonblocking(&channel, "completion channel")?;
        Ok(channel)
    }

    pub(crate) fn raw(&self) -> *mut ffi::ibv_comp_channel {
        self.raw
    }
}

impl AsFd for Channel {
    /// Returns the channel's file descriptor, which is readable when a completion event is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, open as long as self.
        unsafe { BorrowedFd::borrow_raw((*self.raw).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: created by `create`; the CQ that uses it is destroyed before (CqInner drops it
        // last).
        log_destroy_error("ibv_destroy_comp_channel", unsafe {
            ffi::ibv_destroy_comp_channel(self.raw)
        });
    }
}

/// Kind of time stamps that the device writes into completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletionStamps {
    /// No time stamps in completions.
    #[default]
    None,
    /// Completion time stamps in ticks of the device's counter.
    Ticks,
    /// Completion time stamps in UTC: seconds in the upper half, nanoseconds in the lower half.
    /// libmlx5 requests it from the device where supported ([`Context::stamps_real_time`]), if only
    /// the wall clock is requested. For CQs that are read in their own memory only:
    /// `ibv_start_poll` reads the driver's clock info on each call. While that is being changed, it
    /// returns EBUSY and, in libmlx5 of rdma-core 44, loses the completion.
    RealTime,
}

/// Moderation of an armed CQ: it raises its event at a count of completions or after a period,
/// whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Moderation {
    /// Number of completions after which the CQ raises its event.
    pub count: u16,
    /// Time after the first completion at which the CQ raises its event, in microseconds.
    pub period_us: u16,
}

/// Content of a mini CQE of a compressed CQ, besides the frame's byte count
/// (`mlx5dv_cqe_comp_res_format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MiniFormat {
    /// Mini CQEs with the RX hash. For WQs whose WRs take one frame each, because their WQEs
    /// complete in order.
    Hash,
    /// Mini CQEs with the checksum and the index of the frame's first stride. For striding WQs.
    ChecksumStride,
}

impl MiniFormat {
    /// Returns the formats of mini CQEs that an mlx5 device can write; empty if it cannot compress
    /// CQEs.
    #[must_use]
    pub fn supported_by(context: &Context) -> Vec<Self> {
        let mask = dv::MLX5DV_CONTEXT_MASK_CQE_COMPRESION;
        let caps = match context.mlx5_attributes(mask) {
            Some(it) if it.comp_mask & u64::from(mask) != 0 => it.cqe_comp_caps,
            _ => return Vec::new(),
        };
        [Self::Hash, Self::ChecksumStride]
            .into_iter()
            .filter(|it| caps.max_num > 0 && caps.supported_format & it.bit() != 0)
            .collect()
    }

    fn bit(self) -> u32 {
        match self {
            Self::Hash => dv::MLX5DV_CQE_RES_FORMAT_HASH,
            Self::ChecksumStride => dv::MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX,
        }
    }
}

/// Attributes of a new CQ.
#[derive(Clone, Copy, Debug)]
pub struct CqAttr {
    /// Number of completions that the CQ must hold: every WR that can be outstanding. An overrun
    /// makes the CQ unusable.
    pub entries: u32,
    /// Completion vector of the CQ (an interrupt of the device).
    pub vector: u32,
    /// Kind of time stamps to request for the CQ's completions.
    pub stamps: CompletionStamps,
    /// Format in which the device may compress similar completions of the CQ; `None` disables
    /// compression. Only a CQ that is read in its own memory can be compressed, and its completions
    /// have no individual time stamps.
    pub compression: Option<MiniFormat>,
}

/// Completion queue with one reader: not `Clone`, and polling takes `&mut`.
pub struct Cq {
    pub(crate) inner: Arc<CqInner>,
    stamps: CompletionStamps,
    pub(crate) compression: Option<MiniFormat>,
}

pub(crate) struct CqInner {
    /// Pointer to the CQ. For a [`PlainCq`] it points to an `ibv_cq`, with which an `ibv_cq_ex`
    /// begins.
    pub(crate) raw: *mut ffi::ibv_cq_ex,
    // Dropped after the CQ is destroyed.
    channel: Option<Channel>,
    pub(crate) context: Arc<ContextInner>,
}

// SAFETY: created single threaded: only the owner of the one `Cq` or `PlainCq` polls; WQs and QPs
// hold the Arc only to keep the CQ alive.
unsafe impl Send for CqInner {}
// SAFETY: shared references are used only to destroy the CQ, on the last drop.
unsafe impl Sync for CqInner {}

impl Drop for CqInner {
    fn drop(&mut self) {
        // SAFETY: created by `Cq::create` or `PlainCq::create`, destroyed only here; WQs and QPs
        // hold an Arc of self. Every event taken was acknowledged at once (see `take_event`), so
        // this does not wait.
        log_destroy_error("ibv_destroy_cq", unsafe {
            ffi::ibv_destroy_cq(ffi::ibv_cq_ex_to_cq(self.raw))
        });
    }
}

impl CqInner {
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(AsFd::as_fd)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: a live CQ.
        let errno = unsafe { ffi::ibv_req_notify_cq(ffi::ibv_cq_ex_to_cq(self.raw), 0) };
        check_errno(errno, "ibv_req_notify_cq", String::new)
    }

    fn take_event(&self) -> bool {
        let Some(channel) = &self.channel else {
            return false;
        };
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live, non-blocking channel, which this CQ alone uses, so the event is this
        // CQ's.
        unsafe {
            if ffi::ibv_get_cq_event(channel.raw, &raw mut cq, &raw mut context) != 0 {
                return false;
            }
            ffi::ibv_ack_cq_events(cq, 1);
        }
        true
    }
}

/// Completion of a WR, copied out of the CQ.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Completion {
    /// Identifier of the completed WR (`wr_id`), which its poster chose.
    pub wr_id: u64,
    /// Status of the completed WR (`ibv_wc_status`); 0 is success. On any other status, `byte_len`
    /// and `timestamp` are 0.
    pub status: u32,
    /// Number of bytes that the device wrote for the completed WR.
    pub byte_len: u32,
    /// Device counter at the completion; 0 unless [`CqAttr::stamps`] requests ticks.
    pub timestamp: u64,
}

/// Completions of one poll of a CQ: a borrowed view. Dropping it ends the poll and returns the CQ
/// entries to the device.
pub struct Completions<'cq> {
    cq: *mut ffi::ibv_cq_ex,
    stamps: CompletionStamps,
    first: bool,
    _exclusive: std::marker::PhantomData<&'cq mut Cq>,
}

impl Cq {
    /// Creates a CQ for one polling thread.
    ///
    /// # Errors
    /// EINVAL for a size or vector out of range and for a channel of another context; EOPNOTSUPP if
    /// the device does not support the requested time stamps.
    pub fn create(
        context: &Context,
        attr: CqAttr,
        channel: Option<Channel>,
    ) -> Result<Self, VerbsError> {
        let object = || format!("{}, {} entries", context.name(), attr.entries);
        let create = operation!(context.0, create_cq_ex, "ibv_create_cq_ex", object)?;
        let channels = channel.iter().map(|it| &it.context);
        context
            .0
            .refuse_others(channels, "ibv_create_cq_ex", object)?;
        let mut flags = u64::from(Flags::IBV_WC_EX_WITH_BYTE_LEN.0);
        flags |= u64::from(match attr.stamps {
            CompletionStamps::None => 0,
            CompletionStamps::Ticks => Flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0,
            CompletionStamps::RealTime => Flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0,
        });
        let mut init = ffi::ibv_cq_init_attr_ex {
            cqe: attr.entries,
            cq_context: ptr::null_mut(),
            channel: channel.as_ref().map_or(ptr::null_mut(), |c| c.raw),
            comp_vector: attr.vector,
            wc_flags: flags,
            comp_mask: ffi::ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0,
            flags: ffi::ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0,
            parent_domain: ptr::null_mut(),
        };
        let (raw, verb) = match attr.compression {
            // SAFETY: a live context and channel; both are held by the new object.
            None => (
                unsafe { create(context.0.raw, &raw mut init) },
                "ibv_create_cq_ex",
            ),
            Some(format) => {
                context.0.require_mlx5("mlx5dv_create_cq", object)?;
                let mut compressed = dv::mlx5dv_cq_init_attr {
                    comp_mask: u64::from(
                        dv::MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE
                            | dv::MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE,
                    ),
                    // The bit of a format fits into a byte.
                    cqe_comp_res_format: format.bit() as u8,
                    flags: 0,
                    cqe_size: 64,
                };
                let (context, init) = (context.0.raw.cast(), (&raw mut init).cast());
                // SAFETY: as above; the context is libmlx5's.
                let raw = unsafe { dv::mlx5dv_create_cq(context, init, &raw mut compressed) };
                (raw.cast(), "mlx5dv_create_cq")
            }
        };
        let raw = check_created(raw, verb, object())?;
        Ok(Self {
            inner: Arc::new(CqInner {
                raw,
                channel,
                context: Arc::clone(&context.0),
            }),
            stamps: attr.stamps,
            compression: attr.compression,
        })
    }

    /// Makes the armed CQ wait for more completions before it raises an event.
    ///
    /// # Errors
    /// EOPNOTSUPP from a device without moderation, EINVAL above its limits.
    pub fn moderate(&mut self, by: Moderation) -> Result<(), VerbsError> {
        let object = || {
            format!(
                "a CQ with an event per {} completions or {} µs",
                by.count, by.period_us
            )
        };
        let modify = operation!(self.inner.context, modify_cq, "ibv_modify_cq", object)?;
        let mut attr = ffi::ibv_modify_cq_attr {
            attr_mask: ffi::ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0,
            moderate: ffi::ibv_moderate_cq {
                cq_count: by.count,
                cq_period: by.period_us,
            },
        };
        // SAFETY: a live CQ; `&mut self` is the only modifier.
        let errno = unsafe { modify(ffi::ibv_cq_ex_to_cq(self.inner.raw), &raw mut attr) };
        check_errno(errno, "ibv_modify_cq", object)
    }

    /// Starts a poll of the CQ; returns `None` if the CQ is empty.
    ///
    /// # Errors
    /// The CQ can no longer be polled: it was overrun, or a completion belongs to no WQ.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Completions<'_>>, PollError> {
        let mut attr = ffi::ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: `&mut self` is the only reader; the provider set the function pointer at create.
        match unsafe { ffi::ibv_start_poll(self.inner.raw, &raw mut attr) } {
            0 => Ok(Some(Completions {
                cq: self.inner.raw,
                stamps: self.stamps,
                first: true,
                _exclusive: std::marker::PhantomData,
            })),
            libc::ENOENT => Ok(None),
            errno => Err(PollError(errno)),
        }
    }

    /// Returns the file descriptor of the CQ's completion channel, if the CQ has one.
    #[must_use]
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event_fd()
    }

    /// Requests an event for the CQ's next completion. Poll once more after this call: completions
    /// that arrived before it raise no event.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn arm(&mut self) -> Result<(), VerbsError> {
        self.inner.arm()
    }

    /// Takes and acknowledges one completion event; returns `true` if there was one.
    pub fn take_event(&mut self) -> bool {
        self.inner.take_event()
    }

    /// Returns the raw CQ for verbs that this crate does not wrap. The caller must hold `self`
    /// during such a call.
    #[must_use]
    pub fn as_ptr(&self) -> *mut ffi::ibv_cq_ex {
        self.inner.raw
    }
}

/// Completion queue with one reader, polled with `ibv_poll_cq`, which every provider has. Its
/// completions have no time stamps.
pub struct PlainCq {
    pub(crate) inner: Arc<CqInner>,
    polled: Box<[ffi::ibv_wc; PlainCq::MOST]>,
}

impl PlainCq {
    /// Maximum number of completions that one poll of a plain CQ returns.
    pub const MOST: usize = 64;

    /// Creates a CQ of `entries` completions for one polling thread, on completion vector `vector`.
    ///
    /// # Errors
    /// EINVAL for a size or vector out of range and for a channel of another context.
    pub fn create(
        context: &Context,
        entries: u32,
        vector: u32,
        channel: Option<Channel>,
    ) -> Result<Self, VerbsError> {
        const VERB: &str = "ibv_create_cq";
        let object = || format!("{}, {entries} entries", context.name());
        let channels = channel.iter().map(|it| &it.context);
        context.0.refuse_others(channels, VERB, object)?;
        let raw_channel = channel.as_ref().map_or(ptr::null_mut(), |it| it.raw);
        let size = i32::try_from(entries).unwrap_or(i32::MAX);
        let vector = i32::try_from(vector).unwrap_or(i32::MAX);
        // SAFETY: a live context and channel; both are held by the new object.
        let raw = unsafe {
            ffi::ibv_create_cq(context.0.raw, size, ptr::null_mut(), raw_channel, vector)
        };
        let raw = check_created(raw, VERB, object())?;
        Ok(Self {
            inner: Arc::new(CqInner {
                raw: raw.cast(),
                channel,
                context: Arc::clone(&context.0),
            }),
            // SAFETY: plain old data.
            polled: Box::new(unsafe { std::mem::zeroed() }),
        })
    }

    /// Takes at most `limit` completions from the CQ, and at most [`PlainCq::MOST`].
    ///
    /// # Errors
    /// The CQ can no longer be polled.
    #[inline]
    pub fn poll(
        &mut self,
        limit: usize,
    ) -> Result<impl ExactSizeIterator<Item = Completion> + use<'_>, PollError> {
        let limit = limit.min(Self::MOST);
        // SAFETY: `&mut self` is the only reader; there is room for `limit` completions.
        let count = unsafe {
            let cq = ffi::ibv_cq_ex_to_cq(self.inner.raw);
            ffi::ibv_poll_cq(cq, limit as i32, self.polled.as_mut_ptr())
        };
        let count = usize::try_from(count).map_err(|_| PollError(libc::EIO))?;
        let polled = self.polled[..count.min(limit)].iter();
        Ok(polled.map(|wc| Completion {
            wr_id: wc.wr_id,
            status: wc.status,
            byte_len: if wc.status == 0 { wc.byte_len } else { 0 },
            timestamp: 0,
        }))
    }

    /// Returns the file descriptor of the CQ's completion channel, if the CQ has one.
    #[must_use]
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event_fd()
    }

    /// Requests an event for the CQ's next completion. Poll once more after this call: completions
    /// that arrived before it raise no event.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn arm(&mut self) -> Result<(), VerbsError> {
        self.inner.arm()
    }

    /// Takes and acknowledges one completion event; returns `true` if there was one.
    pub fn take_event(&mut self) -> bool {
        self.inner.take_event()
    }
}

impl Completions<'_> {
    /// Returns the next completion of the poll; `None` if the CQ is empty.
    ///
    /// # Errors
    /// See [`Cq::poll`].
    #[inline]
    #[allow(
        clippy::should_implement_trait,
        reason = "fallible: `Iterator::next` cannot return an error"
    )]
    pub fn next(&mut self) -> Result<Option<Completion>, PollError> {
        if self.first {
            self.first = false;
        } else {
            // SAFETY: a poll is in progress (self exists), by the CQ's only reader.
            match unsafe { ffi::ibv_next_poll(self.cq) } {
                0 => {}
                libc::ENOENT => return Ok(None),
                errno => return Err(PollError(errno)),
            }
        }
        // SAFETY: start_poll or next_poll returned 0, so the fields are those of the current
        // completion; the read functions requested at create are set.
        unsafe {
            let status = (*self.cq).status;
            Ok(Some(Completion {
                wr_id: (*self.cq).wr_id,
                status,
                byte_len: if status == 0 {
                    ffi::ibv_wc_read_byte_len(self.cq)
                } else {
                    0
                },
                timestamp: if self.stamps == CompletionStamps::Ticks && status == 0 {
                    ffi::ibv_wc_read_completion_ts(self.cq)
                } else {
                    0
                },
            }))
        }
    }
}

impl Drop for Completions<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: start_poll succeeded before self was created, and this is the only call that ends
        // the poll.
        unsafe { ffi::ibv_end_poll(self.cq) }
    }
}

/// Error of a CQ that can no longer be polled, with its errno; small, for the hot path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollError(pub i32);

impl std::fmt::Display for PollError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "cannot poll the CQ: {}",
            io::Error::from_raw_os_error(self.0)
        )
    }
}
