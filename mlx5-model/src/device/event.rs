//! Event channels, which `ibv_get_cq_event` and `ibv_get_async_event` read.
//!
//! Imports `abi` and `process`. A channel is an eventfd, so that poll, epoll and select work, and a
//! queue that the interposed `read` serves.
//!
//! Invariants: while no read is in progress, the eventfd is readable if and only if the queue holds
//! an event. An object's count of reported events is the number that the program has read;
//! otherwise destroying the object would wait forever for acknowledgements. Events of a destroyed
//! object are removed from the queue.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::bytes_of;
use crate::abi::{ib_uverbs_async_event_desc, ib_uverbs_comp_event_desc};
use crate::process::{
    Errno,
    descriptors::{self, File},
    real, refuse_if,
};

/// Asynchronous events of the modelled device (`enum ib_event_type`, which no uAPI header defines).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum NicEvent {
    /// Asynchronous event: a CQ overran.
    CqErr = 0,
    /// Asynchronous event: a QP's queue failed.
    QpFatal = 1,
    /// Asynchronous event: the device failed.
    DeviceFatal = 8,
    /// Asynchronous event: the port's link came up.
    PortActive = 9,
    /// Asynchronous event: the port's link went down.
    PortErr = 10,
    /// Asynchronous event: an SRQ holds fewer WRs than its limit.
    SrqLimitReached = 15,
    /// Asynchronous event: a WQ failed.
    WqFatal = 19,
}

/// Number of events of a verbs object that the program has read.
pub type Reported = Arc<AtomicU32>;

struct QueuedEvent {
    element: u64,
    kind: u32,
    reported: Option<Reported>,
}

/// Channel of completion or asynchronous events, which the program reads from the channel's
/// descriptor.
pub struct EventChannel {
    fd: RawFd,
    /// Size in bytes of each event that the program reads from the channel. A completion event's
    /// layout is the start of an asynchronous event's layout.
    len: usize,
    queue: Mutex<EventQueue>,
}

#[derive(Default)]
struct EventQueue {
    events: VecDeque<QueuedEvent>,
    closed: bool,
}

impl EventChannel {
    /// Opens a channel for completion events (CREATE_COMP_CHANNEL). Its descriptor belongs to the
    /// program. Fails as eventfd does, or with `EMFILE`.
    pub fn completion() -> Result<Arc<Self>, Errno> {
        Self::open(size_of::<ib_uverbs_comp_event_desc>())
    }

    /// Opens a device context's channel for asynchronous events. Fails as
    /// [`EventChannel::completion`] does.
    pub fn asynchronous() -> Result<Arc<Self>, Errno> {
        Self::open(size_of::<ib_uverbs_async_event_desc>())
    }

    fn open(len: usize) -> Result<Arc<Self>, Errno> {
        let fd = real::eventfd(0, libc::EFD_CLOEXEC)?;
        let channel = Arc::new(Self {
            fd,
            len,
            queue: Mutex::default(),
        });
        if let Err(errno) = descriptors::install(fd, Arc::clone(&channel) as Arc<dyn File>) {
            let _ = real::close(fd);
            return Err(errno);
        }
        Ok(channel)
    }

    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// Returns `true` if the program has closed the event channel's descriptor.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, EventQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, element: u64, kind: u32, reported: Option<&Reported>) {
        let mut queue = self.lock();
        if !queue.closed {
            queue.events.push_back(QueuedEvent {
                element,
                kind,
                reported: reported.cloned(),
            });
            let _ = real::write(self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Queues a completion event of the CQ with the program's handle `element`.
    pub fn complete(&self, element: u64, reported: &Reported) {
        self.push(element, 0, Some(reported));
    }

    /// Queues an asynchronous event of a port or the device.
    pub fn raise(&self, kind: NicEvent, element: u64) {
        self.push(element, kind as u32, None);
    }

    /// Removes the queued events of a destroyed verbs object from the event channel.
    pub fn purge(&self, reported: &Reported) {
        let mut queue = self.lock();
        let before = queue.events.len();
        queue.events.retain(|event| {
            !event
                .reported
                .as_ref()
                .is_some_and(|counted| Arc::ptr_eq(counted, reported))
        });
        if before > 0 && queue.events.is_empty() && !queue.closed {
            self.clear();
        }
    }

    /// Makes the event channel's eventfd unreadable, without waiting. A reader that has just taken
    /// the eventfd's count finds the queue empty and waits again.
    fn clear(&self) {
        let mut count = [0u8; 8];
        let vector = libc::iovec {
            iov_base: count.as_mut_ptr().cast(),
            iov_len: 8,
        };
        // SAFETY: one writable buffer of 8 bytes.
        let taken = unsafe { libc::preadv2(self.fd, &vector, 1, -1, libc::RWF_NOWAIT) };
        if taken < 0 && real::errno() == libc::EOPNOTSUPP {
            let mut readable = libc::pollfd {
                fd: self.fd,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one pollfd.
            if unsafe { libc::poll(&mut readable, 1, 0) } == 1 {
                let _ = real::read(self.fd, &mut count);
            }
        }
    }

    /// Removes the oldest event from the event channel's queue and returns it.
    fn pop(&self) -> Option<ib_uverbs_async_event_desc> {
        let mut queue = self.lock();
        let event = queue.events.pop_front()?;
        if let Some(reported) = &event.reported {
            // Counted under the lock, so that a purge either counts the event or removes it.
            reported.fetch_add(1, Ordering::Relaxed);
        }
        if !queue.events.is_empty() {
            // The reader's read has taken the eventfd's whole count.
            let _ = real::write(self.fd, &1u64.to_ne_bytes());
        }
        Some(ib_uverbs_async_event_desc {
            element: event.element,
            event_type: event.kind,
            reserved: 0,
        })
    }
}

impl File for EventChannel {
    /// Reads one event per call from the event channel, as the kernel does. The call waits in a
    /// read of the channel's eventfd, so that `O_NONBLOCK` and interrupted calls behave correctly.
    fn read(&self, fd: RawFd, buf: &mut [u8]) -> Result<usize, Errno> {
        refuse_if(buf.len() < self.len, libc::EINVAL)?;
        loop {
            real::read(fd, &mut [0; 8])?;
            if let Some(event) = self.pop() {
                buf[..self.len].copy_from_slice(&bytes_of(&event)[..self.len]);
                return Ok(self.len);
            }
        }
    }

    fn write(&self, _fd: RawFd, _buf: &[u8]) -> Result<usize, Errno> {
        Err(libc::EINVAL)
    }

    fn close(&self, _fd: RawFd) {
        let mut queue = self.lock();
        queue.closed = true;
        queue.events.clear();
    }
}

/// Source of the asynchronous events of one verbs object.
#[derive(Clone)]
pub struct AsyncSource {
    channel: Arc<EventChannel>,
    /// The program's handle of the verbs object that the events are about.
    element: u64,
    reported: Reported,
}

impl AsyncSource {
    /// Creates a source that queues the events of the verbs object `element` in `channel`.
    pub fn new(channel: &Arc<EventChannel>, element: u64) -> Self {
        Self {
            channel: Arc::clone(channel),
            element,
            reported: Reported::default(),
        }
    }

    /// Queues an asynchronous event of the source's verbs object.
    pub fn raise(&self, kind: NicEvent) {
        self.channel
            .push(self.element, kind as u32, Some(&self.reported));
    }

    /// Removes the verbs object's unread events from their channel. Returns the number of its
    /// events that the program has read.
    pub fn finish(&self) -> u32 {
        self.channel.purge(&self.reported);
        self.reported.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(channel: &EventChannel) -> bool {
        let mut poll = libc::pollfd {
            fd: channel.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn readable_exactly_while_events_are_queued() {
        let channel = EventChannel::completion().unwrap();
        let reported = Reported::default();
        assert!(!readable(&channel));
        channel.complete(7, &reported);
        channel.complete(8, &reported);
        let mut buf = [0; 8];
        for expected in [7u64, 8] {
            assert!(readable(&channel));
            assert_eq!(channel.read(channel.fd(), &mut buf), Ok(8));
            assert_eq!(u64::from_ne_bytes(buf), expected);
        }
        assert!(!readable(&channel));
        assert_eq!(reported.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_purge_leaves_other_events_and_counts_only_those_read() {
        let channel = EventChannel::asynchronous().unwrap();
        let (gone, stays) = (AsyncSource::new(&channel, 1), AsyncSource::new(&channel, 2));
        gone.raise(NicEvent::WqFatal);
        stays.raise(NicEvent::CqErr);
        gone.raise(NicEvent::WqFatal);
        let mut buf = [0; 16];
        assert_eq!(channel.read(channel.fd(), &mut buf), Ok(16));
        assert_eq!((buf[0], buf[8]), (1, 19));
        assert_eq!(gone.finish(), 1);
        assert!(readable(&channel));
        assert_eq!(channel.read(channel.fd(), &mut buf), Ok(16));
        assert_eq!((buf[0], buf[8]), (2, 0));
        assert!(!readable(&channel));

        stays.raise(NicEvent::CqErr);
        assert_eq!(stays.finish(), 1);
        assert!(!readable(&channel));
    }

    #[test]
    fn a_short_buffer_reads_nothing() {
        let channel = EventChannel::asynchronous().unwrap();
        channel.raise(NicEvent::PortErr, 1);
        assert_eq!(channel.read(channel.fd(), &mut [0; 8]), Err(libc::EINVAL));
        assert!(readable(&channel));
        channel.close(channel.fd());
        assert!(channel.is_closed());
    }
}
