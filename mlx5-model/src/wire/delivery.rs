//! Delivery of a wire's frames: the receiver trait and its types.
//!
//! Imports nothing of the model.

/// Smallest frame of a wire, in bytes: an Ethernet header without payload.
pub const MIN_FRAME: usize = 14;

/// Largest frame of a wire, in bytes: libpcap's largest packet (`MAXIMUM_SNAPLEN`, pcap/pcap.h),
/// which is longer than any "BIG TCP" frame in a file.
pub const MAX_FRAME: usize = 256 << 10;

/// Direction of a frame, seen from the host that owns the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireDirection {
    /// The frame arrived over the wire, not from the host.
    Received,
    /// The host sent the frame through its own network stack; only sniffer rules match it.
    Transmitted,
}

/// Frame at the head of a wire, borrowed for one call of the receiver.
#[derive(Clone, Copy, Debug)]
pub struct WireFrame<'a> {
    /// Bytes of the frame, from the destination MAC to the last byte before the FCS.
    pub bytes: &'a [u8],
    pub direction: WireDirection,
    /// Arrival time of the frame in nanoseconds by the NIC's clock, at most the time of the burst.
    /// 0: the frame arrived with the burst.
    pub came_ns: u64,
}

/// Result of delivering a frame to the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The NIC has taken the frame: delivered it or counted it as lost. The wire continues with the
    /// next frame.
    Taken,
    /// The NIC cannot take the frame now. The frame stays at the head of the wire, and the burst
    /// ends.
    Wait,
}

/// Receiver of the frames of a wire.
pub trait Receiver {
    /// Result of parsing a frame, which the receiver gets again when it takes the frame.
    type Parsed: Default;

    /// Parses a frame of the wire, which may be a later frame of this burst. The result must not
    /// depend on the frames before it. A wire with prepared frames parses one ahead, so that
    /// parsing a frame and selecting its queue overlaps with the delivery of the previous frame.
    fn parse(&self, frame: &WireFrame<'_>) -> Self::Parsed;

    /// Takes the frame at the head of the wire, which [`Receiver::parse`] has parsed in this burst.
    fn receive(&mut self, frame: WireFrame<'_>, parsed: &Self::Parsed) -> Delivery;

    /// Parses and takes a frame that arrived on the wire with the burst.
    #[inline(always)]
    fn deliver(&mut self, bytes: &[u8], direction: WireDirection) -> Delivery {
        self.deliver_late(bytes, direction, 0)
    }

    /// Parses and takes a frame that arrived on the wire at `came_ns`; see [`WireFrame::came_ns`].
    #[inline(always)]
    fn deliver_late(&mut self, bytes: &[u8], direction: WireDirection, came_ns: u64) -> Delivery {
        let frame = WireFrame {
            bytes,
            direction,
            came_ns,
        };
        let parsed = self.parse(&frame);
        self.receive(frame, &parsed)
    }
}

/// Adapter that makes a closure a [`Receiver`] of frames.
pub struct Each<F>(pub F);

impl<F: FnMut(WireFrame<'_>) -> Delivery> Receiver for Each<F> {
    type Parsed = ();

    fn parse(&self, _frame: &WireFrame<'_>) {}

    fn receive(&mut self, frame: WireFrame<'_>, _parsed: &()) -> Delivery {
        self.0(frame)
    }
}

/// State of a wire: whether it can have more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireState {
    /// The wire is plugged in. An interface that is down is still plugged in.
    Up,
    /// A finite wire has delivered its last frame.
    Ended,
    /// The network interface behind the wire was deleted.
    Lost,
}

/// Numbers of frames that a wire has lost since it was opened, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireDrops {
    /// Number of frames that a wire lost because the ring or queue between the NIC and the kernel,
    /// or the other end, was full.
    pub ring: u64,
    /// Number of frames that a wire lost because they were cut or longer than it can carry.
    pub size: u64,
    /// Number of frames that the wire carried and the NIC discarded, because the port's own buffer
    /// was full. The other counts do not include them.
    pub port: u64,
}

impl WireDrops {
    /// Returns the number of frames that the wire lost before the NIC saw them.
    pub fn total(&self) -> u64 {
        self.ring + self.size
    }

    /// Returns the increase of each of the wire's loss counts since `before`.
    pub fn since(&self, before: &WireDrops) -> WireDrops {
        WireDrops {
            ring: self.ring.saturating_sub(before.ring),
            size: self.size.saturating_sub(before.size),
            port: self.port.saturating_sub(before.port),
        }
    }
}
