//! How wires deliver frames.
//!
//! Imports nothing of the model.

/// The smallest frame a wire carries: an Ethernet header and nothing after it.
pub const MIN_FRAME: usize = 14;

/// The largest frame a wire carries: libpcap's largest packet (`MAXIMUM_SNAPLEN`, pcap/pcap.h), and more than any
/// "BIG TCP" frame in a file.
pub const MAX_FRAME: usize = 256 << 10;

/// The direction of a frame, seen from the host that owns the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireDirection {
    /// It came over the wire.
    Received,
    /// The host sent it by its own network stack; only sniffer rules match it.
    Transmitted,
}

/// A frame at the head of a wire, borrowed for one call.
#[derive(Clone, Copy, Debug)]
pub struct WireFrame<'a> {
    /// From the destination MAC to the last byte before the FCS.
    pub bytes: &'a [u8],
    pub direction: WireDirection,
    /// When it came, by the clock that the burst's time is of and at that time at the latest. 0: with the burst.
    pub came_ns: u64,
}

/// What the NIC did with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It has been delivered or counted as lost: the wire moves on.
    Taken,
    /// It cannot be taken now: it stays at the head, and the burst ends.
    Wait,
}

/// What a wire delivers frames to.
pub trait Receiver {
    /// What can be found out about a frame before its turn.
    type Parsed: Default;

    /// Parses a frame, which may be one still to come in this burst. The result must not depend on the frames before
    /// it: a wire that knows its frames parses one ahead, so that parsing a frame and choosing its queue overlaps
    /// with the delivery of the frame before.
    fn parse(&self, frame: &WireFrame<'_>) -> Self::Parsed;

    /// Takes the frame at the head of the wire, which was parsed in this burst.
    fn receive(&mut self, frame: WireFrame<'_>, parsed: &Self::Parsed) -> Delivery;

    /// Parses and takes a frame that comes with the burst.
    #[inline(always)]
    fn deliver(&mut self, bytes: &[u8], direction: WireDirection) -> Delivery {
        self.deliver_late(bytes, direction, 0)
    }

    /// The same with one that came at a time, see [`WireFrame::came_ns`].
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

/// A function as a receiver.
pub struct Each<F>(pub F);

impl<F: FnMut(WireFrame<'_>) -> Delivery> Receiver for Each<F> {
    type Parsed = ();

    fn parse(&self, _frame: &WireFrame<'_>) {}

    fn receive(&mut self, frame: WireFrame<'_>, _parsed: &()) -> Delivery {
        self.0(frame)
    }
}

/// Whether a wire can have more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireState {
    /// Plugged in. An interface that is merely down is still plugged in.
    Up,
    /// A finite wire has delivered its last frame.
    Ended,
    /// The interface behind it was deleted.
    Lost,
}

/// Frames that a wire has lost since it was opened, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireDrops {
    /// The ring or queue between the kernel, or the other end, and the NIC was full.
    pub ring: u64,
    /// The kernel had no free buffer for it.
    pub fill: u64,
    /// The interface or its driver lost it before.
    pub driver: u64,
    /// It was longer than the wire carries, or was cut.
    pub size: u64,
    /// The port's own buffer was full: the wire has carried it, and the NIC has discarded it. In none of the others.
    pub port: u64,
}

impl WireDrops {
    /// What was lost before the NIC saw it.
    pub fn total(&self) -> u64 {
        self.ring + self.fill + self.driver + self.size
    }

    /// What has come since they were `before`.
    pub fn since(&self, before: &WireDrops) -> WireDrops {
        WireDrops {
            ring: self.ring.saturating_sub(before.ring),
            fill: self.fill.saturating_sub(before.fill),
            driver: self.driver.saturating_sub(before.driver),
            size: self.size.saturating_sub(before.size),
            port: self.port.saturating_sub(before.port),
        }
    }
}
