//! AF_XDP socket of one receive queue, with its memory and its rings.
//!
//! Imports `ring` and `umem`. Invariants: each buffer is either with the kernel or on the ring of
//! filled buffers, and returns to the kernel once its frame is delivered; a frame is delivered
//! whole.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XdpDescOptions, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};
use rustix::time::ClockId;

use super::super::arrival::Arrivals;
use super::super::delivery::{Delivery, MAX_FRAME, MIN_FRAME, Receiver, WireDirection, WireDrops};
use super::super::spec::af_xdp::ZeroCopy;
use super::busy_poll;
use super::program::{self, STAMP_LEN};
use super::ring::{FillRing, XdpRxRing};
use super::umem::{HEADROOM, Umem};

/// Maximum time to wait until a previous AF_XDP socket has released the receive queue.
const RELEASE: Duration = Duration::from_secs(2);
/// Interval between two attempts to bind an AF_XDP socket to a receive queue that is in use.
const RETRY: Duration = Duration::from_millis(1);
/// Number of receive buffers ahead for which the start of the frame and the stamp in front of it
/// are prefetched. Another CPU has written them.
const AHEAD: u32 = 8;

/// Attributes of a receive queue's AF_XDP socket.
#[derive(Clone, Copy)]
pub(super) struct XskAttr {
    /// Index of the network interface.
    pub(super) index: libc::c_int,
    /// Number of the AF_XDP socket's receive queue, from 0.
    pub(super) queue: u32,
    /// Number of receive buffers of the AF_XDP socket, a power of two.
    pub(super) buffers: u32,
    /// Longest frame in bytes for which the network interface is set up.
    pub(super) frame: usize,
    pub(super) zero_copy: ZeroCopy,
    pub(super) busy_poll: bool,
}

/// Failed step of opening a receive queue's AF_XDP socket, such as "cannot bind the AF_XDP
/// socket of queue 0", and its error.
pub(super) type Failed = (String, io::Error);

/// Open AF_XDP socket of one receive queue.
pub(super) struct XskQueue {
    rx: XdpRxRing,
    fill: FillRing,
    socket: OwnedFd,
    umem: Umem,
    /// Number of receive buffers of the AF_XDP socket.
    buffers: u32,
    /// Set when the NIC writes directly into the AF_XDP socket's memory.
    zero_copy: bool,
    /// Set when a received frame can have several buffers (Linux 6.6).
    frags: bool,
    busy_poll: bool,
    arrivals: Arrivals,
    /// Assembled bytes of a received frame of several buffers.
    whole: Vec<u8>,
    /// Number of received frames that are too short, too long or outside the AF_XDP socket's
    /// memory.
    unusable: u64,
}

impl AsFd for XskQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl XskQueue {
    pub(super) fn open(attr: &XskAttr) -> Result<XskQueue, Failed> {
        let failed = |step: &str| {
            let step = format!("{step} of queue {}", attr.queue);
            move |e: rustix::io::Errno| (step, io::Error::from(e))
        };
        let socket = net::socket_with(
            AddressFamily::XDP,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        );
        let socket = socket.map_err(failed("cannot open the AF_XDP socket"))?;
        let buffer = Umem::buffer_for(attr.frame);
        let mib = (attr.buffers as usize * buffer) >> 20;
        let memory = format!(
            "cannot allocate {mib} MiB of memory for queue {}",
            attr.queue
        );
        let umem = Umem::new(attr.buffers, buffer).map_err(|e| (memory, e))?;
        let register = XdpUmemReg {
            addr: umem.address(),
            len: umem.len() as u64,
            chunk_size: buffer as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        let (rx, fill) = (|| {
            sockopt::set_xdp_umem_reg(&socket, register)?;
            sockopt::set_xdp_umem_fill_ring_size(&socket, attr.buffers)?;
            // This socket sends nothing, but the kernel requires the ring.
            sockopt::set_xdp_umem_completion_ring_size(&socket, 64)?;
            sockopt::set_xdp_rx_ring_size(&socket, attr.buffers)?;
            let at = sockopt::xdp_mmap_offsets(&socket)?;
            let errno = |e: io::Error| {
                rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::NOMEM)
            };
            let rx = XdpRxRing::map(&socket, at.rx, attr.buffers).map_err(errno)?;
            let fill = FillRing::map(&socket, at.fr, attr.buffers).map_err(errno)?;
            Ok((rx, fill))
        })()
        .map_err(failed("cannot set up the memory and the rings"))?;
        let mut queue = XskQueue {
            rx,
            fill,
            socket,
            umem,
            buffers: attr.buffers,
            zero_copy: false,
            frags: false,
            busy_poll: attr.busy_poll,
            // The clock of `bpf_ktime_get_ns`.
            arrivals: Arrivals::new(ClockId::Monotonic),
            whole: Vec::new(),
            unusable: 0,
        };
        for number in 0..u64::from(attr.buffers) {
            queue.fill.add(number * buffer as u64);
        }
        queue.fill.publish();
        if attr.busy_poll {
            let set = busy_poll::enable(&queue.socket);
            set.map_err(|e| {
                (
                    format!("cannot set busy polling of queue {}", attr.queue),
                    e,
                )
            })?;
        }
        queue
            .bind(attr)
            .map_err(failed("cannot bind the AF_XDP socket"))?;
        Ok(queue)
    }

    /// Binds the AF_XDP socket in the best mode that the driver and the kernel support.
    fn bind(&mut self, attr: &XskAttr) -> rustix::io::Result<()> {
        let (copy, zero_copy) = (
            SocketAddrXdpFlags::XDP_COPY,
            SocketAddrXdpFlags::XDP_ZEROCOPY,
        );
        let frags = SocketAddrXdpFlags::XDP_USE_SG;
        let none = SocketAddrXdpFlags::empty();
        let fits = attr.frame + HEADROOM <= self.umem.buffer();
        let modes = [
            (zero_copy, frags, attr.zero_copy != ZeroCopy::Off),
            // A driver may support zero copy without frames of several buffers.
            (
                zero_copy,
                none,
                attr.zero_copy == ZeroCopy::On || attr.zero_copy == ZeroCopy::Auto && fits,
            ),
            (copy, frags, attr.zero_copy != ZeroCopy::On),
            (copy, none, attr.zero_copy != ZeroCopy::On),
        ];
        let mut result = Err(rustix::io::Errno::OPNOTSUPP);
        for (mode, frags, allowed) in modes {
            if !allowed {
                continue;
            }
            let flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | mode | frags;
            let address = SocketAddrXdp::new(flags, attr.index.cast_unsigned(), attr.queue);
            result = self.bind_when_free(&address);
            match result {
                Ok(()) => {
                    self.frags = !frags.is_empty();
                    let options = sockopt::xdp_options(&self.socket)?;
                    self.zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
                    return Ok(());
                }
                // The queue is in use, or binding is not permitted: no other mode helps.
                Err(
                    rustix::io::Errno::BUSY | rustix::io::Errno::PERM | rustix::io::Errno::NOBUFS,
                ) => {
                    return result;
                }
                Err(_) => {}
            }
        }
        result
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Binds the AF_XDP socket once a previous socket has released the receive queue. The kernel
    /// releases the queue only after it has closed that socket (`xp_put_pool`,
    /// net/xdp/xsk_buff_pool.c).
    fn bind_when_free(&self, address: &SocketAddrXdp) -> rustix::io::Result<()> {
        let began = Instant::now();
        loop {
            let result = net::bind(&self.socket, address);
            if result != Err(rustix::io::Errno::BUSY) || began.elapsed() > RELEASE {
                return result;
            }
            thread::sleep(RETRY);
        }
    }

    pub(super) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Returns the longest frame in bytes that the receive queue takes; `None` if there is no
    /// limit.
    pub(super) fn longest(&self) -> Option<usize> {
        (!self.frags).then(|| self.umem.buffer() - HEADROOM)
    }

    /// Returns `true` if at least a quarter of the receive queue's buffers are empty.
    pub(super) fn has_room(&self) -> bool {
        self.rx.filled() <= self.buffers / 4 * 3
    }

    /// Delivers up to `budget` frames of the receive queue. Returns their number, and `true` if the
    /// next frame has to wait.
    #[inline]
    pub(super) fn burst(
        &mut self,
        now_ns: u64,
        budget: usize,
        receiver: &mut impl Receiver,
    ) -> (usize, bool) {
        let available = self.rx.available();
        if available > 0 {
            self.arrivals.begin(now_ns);
        }
        let (mut taken, mut used, mut waits) = (0, 0, false);
        while taken < budget && used < available {
            let first = self.rx.get(used);
            if used + AHEAD < available {
                let place = self.rx.get(used + AHEAD).addr;
                self.umem.prefetch(place.wrapping_sub(STAMP_LEN as u64));
                self.umem.prefetch(place);
            }
            let mut buffers = 1;
            let bytes = if first.options.contains(XdpDescOptions::XDP_PKT_CONTD) {
                buffers = self.gather(used, available);
                Some(self.whole.as_slice())
            } else {
                self.umem.bytes(first.addr, first.len)
            };
            match bytes {
                Some(bytes) if (MIN_FRAME..=MAX_FRAME).contains(&bytes.len()) => {
                    let in_front = first.addr.wrapping_sub(STAMP_LEN as u64);
                    let stamp = self.umem.bytes(in_front, STAMP_LEN as u32);
                    let came_ns = stamp
                        .and_then(program::stamp)
                        .map_or(0, |it| self.arrivals.came_ns(it));
                    let direction = WireDirection::Received;
                    if receiver.deliver_late(bytes, direction, came_ns) == Delivery::Wait {
                        waits = true;
                        break;
                    }
                    taken += 1;
                }
                _ => self.unusable += 1,
            }
            used += buffers;
        }
        self.recycle(used);
        if self.fill.needs_wakeup() || self.busy_poll && available == 0 {
            self.wake();
        }
        (taken, waits)
    }

    /// Assembles the received frame that begins with the buffer `first`, and returns the number of
    /// its buffers. The kernel makes all of them visible at once (`xsk_flush`, net/xdp/xsk.c).
    #[cold]
    fn gather(&mut self, first: u32, available: u32) -> u32 {
        self.whole.clear();
        for at in first..available {
            let part = self.rx.get(at);
            self.whole
                .extend_from_slice(self.umem.bytes(part.addr, part.len).unwrap_or_default());
            if !part.options.contains(XdpDescOptions::XDP_PKT_CONTD) {
                return at + 1 - first;
            }
        }
        available - first
    }

    /// Returns the receive queue's first `count` filled buffers to the kernel.
    fn recycle(&mut self, count: u32) {
        if count == 0 {
            return;
        }
        for at in 0..count {
            let place = self.rx.get(at).addr;
            self.fill.add(self.umem.buffer_of(place));
        }
        self.fill.publish();
        self.rx.release(count);
    }

    /// Wakes the driver of the interface, so that it polls the ring of empty buffers or receives.
    /// The call fails on an interface that is down, which is not an error of the wire.
    fn wake(&self) {
        let mut nothing = [0; 0];
        let _ = net::recv(&self.socket, &mut nothing[..], RecvFlags::DONTWAIT);
    }

    /// Returns the frames, by cause, that the receive queue has lost since it was opened.
    pub(super) fn drops(&self) -> WireDrops {
        let Ok(stats) = sockopt::xdp_statistics(&self.socket) else {
            return WireDrops::default();
        };
        // `rx_dropped` counts frames without a buffer and, without frags, also frames that are too
        // long for one buffer. Each frame without a buffer also counts in
        // `rx_fill_ring_empty_descs` (`__xsk_rcv`, `xsk_rcv_check` of net/xdp/xsk.c).
        let empty = stats.rx_fill_ring_empty_descs.unwrap_or(stats.rx_dropped);
        let fill = if self.frags {
            stats.rx_dropped
        } else {
            stats.rx_dropped.min(empty)
        };
        WireDrops {
            ring: stats.rx_ring_full.unwrap_or(0),
            fill,
            driver: 0,
            size: stats.rx_dropped - fill + self.unusable,
            port: 0,
        }
    }
}
