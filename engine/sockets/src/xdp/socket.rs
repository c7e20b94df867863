//! AF_XDP socket of one receive queue, with its memory and its rings.

use super::{
    ChunkMemory, XdpAttr, XdpError,
    ring::{ChunkRing, entries},
    watermark::QueueWatermark,
};
use rustix::{
    io::Errno,
    net::{
        self, AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt,
        xdp::{
            SocketAddrXdp, SocketAddrXdpFlags, XdpOptionsFlags, XdpStatistics, XdpUmemReg,
            XdpUmemRegFlags,
        },
    },
};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

/// Maximum time to wait until an earlier AF_XDP socket has released the receive queue.
const RELEASE: Duration = Duration::from_secs(2);
/// Interval between two attempts to bind to a receive queue that is in use.
const RETRY: Duration = Duration::from_millis(1);

/// Counts of lost frames and of failures of an AF_XDP socket since it was opened (`struct
/// xdp_statistics` of linux/if_xdp.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpCounts {
    /// Number of frames that found no free chunk, or were longer than a chunk (`rx_dropped`).
    pub dropped: u64,
    /// Number of frames that found the ring of filled chunks full (`rx_ring_full`).
    pub ring_full: u64,
    /// Number of times that the kernel found no free chunk (`rx_fill_ring_empty_descs`). With zero
    /// copy these are attempts of the driver, not frames.
    pub fill_empty: u64,
    /// Number of invalid entries that the kernel found in the rings (`rx_invalid_descs`).
    pub invalid: u64,
}

impl XdpCounts {
    /// Returns the number of frames that the socket lost. Frames for which the NIC itself had no
    /// buffer are in the counters of the driver.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.dropped + self.ring_full
    }
}

impl From<XdpStatistics> for XdpCounts {
    fn from(of: XdpStatistics) -> Self {
        Self {
            dropped: of.rx_dropped,
            ring_full: of.rx_ring_full.unwrap_or(0),
            fill_empty: of.rx_fill_ring_empty_descs.unwrap_or(0),
            invalid: of.rx_invalid_descs,
        }
    }
}

/// AF_XDP socket that is bound to a receive queue.
#[derive(Debug)]
pub struct XdpSocket {
    fd: OwnedFd,
    interface: String,
    queue: u32,
    is_zero_copy: bool,
}

impl XdpSocket {
    /// Opens the socket of a receive queue, without free chunks, and binds it. `zero_copy` permits
    /// that the NIC writes into the socket's memory.
    pub(super) fn open(
        interface: &str,
        index: i32,
        queue: u32,
        zero_copy: bool,
        watermark: QueueWatermark,
        attr: &XdpAttr,
    ) -> Result<(Self, ChunkRing), XdpError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None);
        let fd = fd.map_err(|e| XdpError::Create {
            kind: "AF_XDP",
            source: e.into(),
        })?;
        let mut socket = Self {
            fd,
            interface: interface.to_owned(),
            queue,
            is_zero_copy: false,
        };
        let memory = ChunkMemory::allocate(attr).map_err(|source| XdpError::Memory {
            interface: interface.to_owned(),
            queue,
            source,
        })?;
        let registration = XdpUmemReg {
            addr: memory.as_ptr() as u64,
            len: memory.len() as u64,
            chunk_size: attr.chunk_bytes,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&socket, registration)
            .map_err(|e| socket.failed("register the receive memory", e))?;
        let ring = socket
            .map(memory, watermark, attr)
            .map_err(|source| XdpError::Queue {
                interface: interface.to_owned(),
                queue,
                step: "create the rings of the AF_XDP socket",
                source,
            })?;
        socket.is_zero_copy = socket
            .bind(index.cast_unsigned(), zero_copy)
            .map_err(|e| socket.failed("bind the AF_XDP socket", e))?;
        Ok((socket, ring))
    }

    fn map(
        &self,
        memory: ChunkMemory,
        watermark: QueueWatermark,
        attr: &XdpAttr,
    ) -> std::io::Result<ChunkRing> {
        let entries = entries(attr.chunks);
        sockopt::set_xdp_umem_fill_ring_size(self, entries)?;
        // The socket sends nothing, but the kernel binds no socket without this ring
        // (`xsk_validate_queues` of net/xdp/xsk.c).
        sockopt::set_xdp_umem_completion_ring_size(self, 64)?;
        sockopt::set_xdp_rx_ring_size(self, entries)?;
        let offsets = sockopt::xdp_mmap_offsets(self)?;
        ChunkRing::map(self.as_fd(), &offsets, memory, watermark, attr)
    }

    /// Binds the socket, with zero copy if that is permitted and the driver has it. Returns `true`
    /// if the socket has zero copy.
    fn bind(&self, index: u32, zero_copy: bool) -> rustix::io::Result<bool> {
        if zero_copy {
            match self.bind_with(index, SocketAddrXdpFlags::XDP_ZEROCOPY) {
                Ok(()) => {
                    let options = sockopt::xdp_options(self)?;
                    return Ok(options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
                }
                // Copying would fail with the same reason.
                Err(e @ (Errno::BUSY | Errno::PERM | Errno::NOBUFS)) => return Err(e),
                Err(_) => {}
            }
        }
        self.bind_with(index, SocketAddrXdpFlags::XDP_COPY)?;
        Ok(false)
    }

    /// Binds the socket once an earlier socket has released the receive queue, which the kernel
    /// does some time after that socket is closed (`xp_put_pool` of net/xdp/xsk_buff_pool.c).
    fn bind_with(&self, index: u32, mode: SocketAddrXdpFlags) -> rustix::io::Result<()> {
        let flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | mode;
        let address = SocketAddrXdp::new(flags, index, self.queue);
        let began = Instant::now();
        loop {
            let result = net::bind(self, &address);
            if result != Err(Errno::BUSY) || began.elapsed() > RELEASE {
                return result;
            }
            thread::sleep(RETRY);
        }
    }

    /// Returns the counts of lost frames and of failures since the socket was opened.
    ///
    /// # Errors
    /// The kernel refuses the reading.
    pub fn counts(&self) -> Result<XdpCounts, XdpError> {
        sockopt::xdp_statistics(self)
            .map(XdpCounts::from)
            .map_err(|e| self.failed("read the counts of the AF_XDP socket", e))
    }

    /// Wakes the driver, so that it takes free chunks again. On an interface that is down the call
    /// has no effect.
    pub fn wake(&self) {
        let mut nothing = [0; 0];
        let _ = net::recv(self, &mut nothing[..], RecvFlags::DONTWAIT);
    }

    /// Clears the pending error of the AF_XDP socket.
    pub fn clear_error(&self) {
        // The result is the pending error itself.
        let _ = sockopt::socket_error(self);
    }

    /// Returns the number of the socket's receive queue.
    #[must_use]
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Returns `true` if the NIC writes into the socket's memory (zero copy).
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    fn failed(&self, step: &'static str, source: Errno) -> XdpError {
        XdpError::Queue {
            interface: self.interface.clone(),
            queue: self.queue,
            step,
            source: source.into(),
        }
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
