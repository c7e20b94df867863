//! Asynchronous events of a device.

use super::context::{Context, ContextInner};
use crate::error::{VerbsError, set_nonblocking};
use crate::sys as ffi;
use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// Asynchronous event of an RDMA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A WQ is in error; the value is [`crate::Wq::id`].
    WqFatal(usize),
    /// A QP is in error; the value is [`crate::RawQpHandle::id`].
    QpFatal(usize),
    /// A CQ was overrun.
    CqError,
    /// A port of the device is up; the value is the port's number.
    PortActive(u8),
    /// A port of the device is down; the value is the port's number.
    PortError(u8),
    /// An SRQ has fewer posted WRs than its low watermark, which is no longer armed; the value is
    /// [`crate::Srq::id`].
    SrqLimit(usize),
    /// An SRQ is in error; the value is [`crate::Srq::id`].
    SrqError(usize),
    /// The RDMA device is gone or has failed as a whole.
    DeviceFatal,
    /// Any other asynchronous event, with its number in `ibv_event_type`.
    Other(u32),
}

/// Reader of a device context's asynchronous events; one reader per context.
pub struct AsyncEvents(Arc<ContextInner>);

impl AsFd for AsyncEvents {
    /// Returns the file descriptor, which is readable when an asynchronous event is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context's own descriptor, open as long as self holds the context.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw).async_fd) }
    }
}

impl AsyncEvents {
    /// Creates a reader of the device's asynchronous events, with a non-blocking file descriptor.
    ///
    /// # Errors
    /// The descriptor cannot be made non-blocking.
    pub fn open(context: &Context) -> Result<Self, VerbsError> {
        let events = Self(Arc::clone(&context.0));
        set_nonblocking(&events, &format!("{} events", context.name()))?;
        Ok(events)
    }

    /// Takes and acknowledges the device's next asynchronous event; `None` if there is none.
    pub fn take(&mut self) -> Option<AsyncEvent> {
        let mut event = MaybeUninit::<ffi::ibv_async_event>::zeroed();
        // SAFETY: a live context whose descriptor does not block; the event is filled when 0 is
        // returned. The type is read as a number: a newer kernel may send one this enum does not
        // list. The union member read is the one that `ibv_get_async_event(3)` gives for the type.
        unsafe {
            if ffi::ibv_get_async_event(self.0.raw, event.as_mut_ptr()) != 0 {
                return None;
            }
            let element = &raw const (*event.as_ptr()).element;
            let kind = (&raw const (*event.as_ptr()).event_type)
                .cast::<u32>()
                .read();
            // Ports are counted from 1 to 255.
            let port = || (*element).port_num as u8;
            let read = match kind {
                0 => AsyncEvent::CqError,
                1 => AsyncEvent::QpFatal((*element).qp as usize),
                8 => AsyncEvent::DeviceFatal,
                9 => AsyncEvent::PortActive(port()),
                10 => AsyncEvent::PortError(port()),
                14 => AsyncEvent::SrqError((*element).srq as usize),
                15 => AsyncEvent::SrqLimit((*element).srq as usize),
                19 => AsyncEvent::WqFatal((*element).wq as usize),
                other => AsyncEvent::Other(other),
            };
            ffi::ibv_ack_async_event(event.as_mut_ptr());
            Some(read)
        }
    }
}
