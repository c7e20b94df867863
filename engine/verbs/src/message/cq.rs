//! Completion queues polled with `ibv_poll_cq`, which every provider has. They are for messages,
//! where the QP's number is needed and a few more nanoseconds do not matter.

use crate::sys as ffi;
use crate::{
    cq::Channel,
    device::{Context, ContextInner},
    error::{VerbsError, check_created, check_errno, log_destroy_error},
};
use std::{
    mem,
    ops::Deref,
    os::fd::{AsFd, BorrowedFd},
    ptr,
    sync::Arc,
};

/// Completion of a message WR that [`MessageCq::poll`] took. No other code creates one, so it
/// proves that the device is done with the WR.
///
/// ```compile_fail
/// fn made_up(wc: wqcap_verbs::sys::ibv_wc) -> wqcap_verbs::MessageCompletion {
///     wqcap_verbs::MessageCompletion(wc)
/// }
/// ```
pub struct MessageCompletion(ffi::ibv_wc);

impl Deref for MessageCompletion {
    type Target = ffi::ibv_wc;

    fn deref(&self) -> &ffi::ibv_wc {
        &self.0
    }
}

/// Completion queue of messages with one reader and a separate event channel.
pub struct MessageCq {
    pub(crate) inner: Arc<MessageCqInner>,
}

pub(crate) struct MessageCqInner {
    pub(crate) raw: *mut ffi::ibv_cq,
    // Dropped after the CQ is destroyed.
    channel: Channel,
    pub(crate) context: Arc<ContextInner>,
}

// SAFETY: only the owner of the one `MessageCq` polls; QPs hold the Arc only to keep the CQ alive.
unsafe impl Send for MessageCqInner {}
// SAFETY: shared references are used only to destroy the CQ, on the last drop.
unsafe impl Sync for MessageCqInner {}

impl Drop for MessageCqInner {
    fn drop(&mut self) {
        // SAFETY: created by `create`, destroyed only here; QPs hold an Arc of self; events are
        // acknowledged at once.
        log_destroy_error("ibv_destroy_cq", unsafe { ffi::ibv_destroy_cq(self.raw) });
    }
}

impl AsFd for MessageCq {
    /// Returns the file descriptor, which is readable after [`MessageCq::arm`] and a completion.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.channel.as_fd()
    }
}

impl MessageCq {
    /// Creates a message CQ that holds `entries` completions.
    ///
    /// # Errors
    /// EINVAL above the device's limit.
    pub fn create(context: &Context, entries: u32) -> Result<Self, VerbsError> {
        let channel = Channel::create(context)?;
        let count = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: a live context and channel, both held by the new object.
        let raw =
            unsafe { ffi::ibv_create_cq(context.0.raw, count, ptr::null_mut(), channel.raw(), 0) };
        let object = format!("{}, {entries} entries", context.name());
        let raw = check_created(raw, "ibv_create_cq", object)?;
        Ok(Self {
            inner: Arc::new(MessageCqInner {
                raw,
                channel,
                context: Arc::clone(&context.0),
            }),
        })
    }

    /// Returns the raw CQ for verbs that this crate does not wrap. The caller must hold `self`
    /// during such a call, and use a `wr_id` below [`OWN_WR_IDS`](super::OWN_WR_IDS) for WRs that
    /// complete here.
    #[must_use]
    pub fn as_ptr(&self) -> *mut ffi::ibv_cq {
        self.inner.raw
    }

    /// Requests an event for the CQ's next completion. Poll once more after this call: completions
    /// that arrived before it raise no event.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn arm(&mut self) -> Result<(), VerbsError> {
        // SAFETY: a live CQ.
        let errno = unsafe { ffi::ibv_req_notify_cq(self.inner.raw, 0) };
        check_errno(errno, "ibv_req_notify_cq", String::new)
    }

    /// Takes and acknowledges all pending completion events of the CQ.
    pub fn take_events(&mut self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live, non-blocking channel, which this CQ alone uses, so each event is this
        // CQ's.
        unsafe {
            while ffi::ibv_get_cq_event(self.inner.channel.raw(), &raw mut cq, &raw mut context)
                == 0
            {
                ffi::ibv_ack_cq_events(cq, 1);
            }
        }
    }

    /// Takes up to 32 completions of message WRs from the CQ.
    ///
    /// # Errors
    /// The CQ can no longer be polled.
    pub fn poll(&mut self) -> Result<Vec<MessageCompletion>, VerbsError> {
        // SAFETY: plain old data, of which the call fills as many entries as it returns.
        let mut completions: [ffi::ibv_wc; 32] = unsafe { mem::zeroed() };
        // SAFETY: `&mut self` is the only reader; there is room for 32.
        let count = unsafe { ffi::ibv_poll_cq(self.inner.raw, 32, completions.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            return Err(VerbsError::from_errno(
                "ibv_poll_cq",
                "message CQ",
                libc::EIO,
            ));
        };
        let completions = completions.into_iter().take(count);
        Ok(completions.map(MessageCompletion).collect())
    }
}

/// Returns the description of a completion status (`ibv_wc_status`).
#[must_use]
pub fn status_text(status: u32) -> String {
    // SAFETY: the library returns a static string for any number.
    unsafe { std::ffi::CStr::from_ptr(ffi::ibv_wc_status_str(status)) }
        .to_string_lossy()
        .into_owned()
}
