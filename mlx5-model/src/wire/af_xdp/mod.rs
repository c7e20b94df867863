//! Wire that takes a live interface's frames past the kernel: AF_XDP sockets, one per receive
//! queue.
//!
//! An XDP program on the interface passes each frame to the socket of its queue. The kernel gets no
//! frames, except those of queues without a socket. Frames are borrowed from the sockets' memory,
//! so they are copied once, into the WQs' memory; only a frame of several buffers is first
//! assembled. A packet socket sends frames and detects the deletion of the interface.
//!
//! Known limits: XDP gets only the bytes of a frame. Work that the sender of a veth pair, a bridge
//! or a tun device left to hardware is missing: checksums, segmentation, VLAN tags. Before Linux
//! 6.6 a frame has one buffer, and longer frames are lost. GRO, LRO and the removal of VLAN tags
//! are switched off while the wire is open, if that is permitted, and on again afterwards (see
//! `offloads`). The XDP program is removed when the process ends for any reason.
//!
//! The sockets count frames for which they had no room; the interface's statistics count frames
//! lost before that. Some drivers, such as veth, also include the frames that the sockets refuse in
//! their own drops. Those frames are subtracted.
//!
//! Invariants: after [`Delivery::Wait`] the same frame is the next one delivered, so the wire stays
//! with its queue; the wire is lost only after all received frames are delivered.
//!
//! [`Delivery::Wait`]: super::delivery::Delivery::Wait

mod bpf;
mod busy_poll;
mod driver;
mod program;
mod queue;
mod ring;
mod umem;
mod watermark;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::epoll;

use super::delivery::{Receiver, WireDrops, WireState};
use super::error::WireError;
use super::offloads::{ETH_FLAG_LRO, ETH_FLAG_RXVLAN, Offloads};
use super::packet_socket::Socket;
use super::spec::WireSpec;
use super::spec::af_xdp::{AfXdpSpec, XdpMode, ZeroCopy};
use driver::DriverDrops;
use program::{Attached, LoadedProgram, XdpLink};
use queue::{XskAttr, XskQueue};
use umem::Umem;

/// Interval in nanoseconds between two checks of an idle `af_xdp` wire that its interface exists.
const CHECK_NS: u64 = 10_000_000;
/// Minimum number of receive buffers of an `af_xdp` wire's queue.
const MIN_BUFFERS: u32 = 64;
/// Largest watermark of a queue in frames, a power of two. A sleeping thread wakes when half of a
/// queue's buffers, or this number, are filled.
const MAX_GATHERED: u32 = 8192;
/// Number of bytes of an Ethernet header and two VLAN tags, which an MTU does not include.
const HEADERS: usize = 14 + 2 * 4;

const RIGHTS: &str =
    "run as root, or grant CAP_NET_RAW, CAP_BPF and CAP_NET_ADMIN as ambient capabilities";

/// Open `af_xdp` wire, which takes the frames of a network interface.
pub(super) struct AfXdpWire {
    /// Attachment of the XDP program, dropped first, so that the kernel gets the frames again.
    _link: XdpLink,
    queues: Vec<XskQueue>,
    program: LoadedProgram,
    /// Offloads of the network interface, restored when the wire is dropped.
    _offloads: Offloads,
    /// Packet socket that sends the wire's frames and detects the deletion of the interface.
    packets: Socket,
    /// Epoll descriptor over the AF_XDP sockets of all queues; `None` for a single queue.
    any: Option<OwnedFd>,
    /// Index of the receive queue that the wire polls next.
    next_queue: usize,
    driver: Option<DriverDrops>,
    /// Set when the wire takes all queues of the interface. The kernel's stack then gets no frames,
    /// so it drops none.
    takes_all: bool,
    /// Next time, by the NIC's clock, at which an idle wire checks that its network interface
    /// exists.
    check_ns: u64,
    /// Set when the wire's network interface was found to be deleted.
    gone: bool,
    lost: bool,
    notes: Vec<String>,
}

impl AfXdpWire {
    pub(super) fn open(wire: &WireSpec, spec: &AfXdpSpec) -> Result<AfXdpWire, WireError> {
        let failed = |operation: &str, advice: &str| {
            let (operation, advice) = (operation.to_owned(), advice.to_owned());
            move |source| WireError::new(wire, operation, source, advice)
        };
        let packets = Socket::new().map_err(failed("cannot open a packet socket", RIGHTS))?;
        let index = packets.index_of(&spec.iface).map_err(failed(
            "cannot find the interface",
            "`ip link` lists the interfaces of this network namespace",
        ))?;
        packets
            .bind_send_only(index)
            .map_err(failed("cannot bind to the interface", ""))?;
        let has = packets.receive_queues(index);
        let count = spec.queues.unwrap_or(has);
        if count > has {
            let source = format!("{} has {has}", spec.iface);
            let advice = format!(
                "use queues={has} or fewer, or omit the option queues; `ethtool -L` adds receive queues"
            );
            return Err(failed(
                &format!("cannot take the frames of {count} receive queues"),
                &advice,
            )(io::Error::new(
                io::ErrorKind::InvalidInput,
                source,
            )));
        }
        let mtu = packets
            .mtu(index)
            .map_err(failed("cannot read the MTU", ""))?;
        let frame = mtu + HEADERS;
        let buffers = spec.ring / u64::from(count) / Umem::buffer_for(frame) as u64;
        let buffers = (buffers.max(1).ilog2()).min(u32::BITS - 2);
        let buffers = (1 << buffers).max(MIN_BUFFERS);
        let program = LoadedProgram::load(count, (buffers / 2).min(MAX_GATHERED))
            .map_err(|(step, e)| WireError::new(wire, step, e, load_advice()))?;
        let (link, place, refused) = attach(&program, index, spec.mode).map_err(|(step, e)| {
            let advice = attach_advice(&e, &spec.iface);
            WireError::new(wire, step, e, advice)
        })?;
        let attr = |queue| XskAttr {
            index,
            queue,
            buffers,
            frame,
            zero_copy: match place {
                Attached::Native => spec.zero_copy,
                Attached::Skb => ZeroCopy::Off,
            },
            busy_poll: spec.busy_poll,
        };
        let mut queues = Vec::new();
        for number in 0..count {
            let queue = XskQueue::open(&attr(number)).map_err(|(step, e)| {
                let advice = queue_advice(&e);
                WireError::new(wire, step, e, advice)
            })?;
            program
                .direct(number, queue.fd())
                .map_err(failed("cannot put the AF_XDP socket into the BPF map", ""))?;
            queues.push(queue);
        }
        packets
            .set_promiscuous(index)
            .map_err(failed("cannot set promiscuous mode", ""))?;
        // An interface that is down causes an error here. The wire waits until the interface is up.
        packets.clear_error();
        let any = epoll_over(&queues).map_err(failed("cannot poll several AF_XDP sockets", ""))?;
        let offloads = Offloads::switch_off(&packets, index, ETH_FLAG_LRO | ETH_FLAG_RXVLAN);
        let notes = notes(spec, has, place, refused, &queues, &offloads);
        Ok(AfXdpWire {
            _link: link,
            queues,
            program,
            _offloads: offloads,
            packets,
            any,
            next_queue: 0,
            driver: DriverDrops::open(&spec.iface, index),
            takes_all: count == has,
            check_ns: 0,
            gone: false,
            lost: false,
            notes,
        })
    }

    pub(super) fn state(&self) -> WireState {
        if self.lost {
            WireState::Lost
        } else {
            WireState::Up
        }
    }

    pub(super) fn drops(&self) -> WireDrops {
        // Read before the sockets' counts, which then include every frame that both count.
        let (missed, dropped) = self.driver.as_ref().map_or((0, 0), DriverDrops::now);
        let mut drops = WireDrops::default();
        for of_queue in self.queues.iter().map(XskQueue::drops) {
            drops.ring += of_queue.ring;
            drops.fill += of_queue.fill;
            drops.size += of_queue.size;
        }
        let known = drops.total();
        drops.driver = missed;
        if self.takes_all {
            drops.driver += dropped.saturating_sub(known);
        }
        drops
    }

    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    pub(super) fn wait_fd(&self) -> Option<RawFd> {
        let one = || self.queues.first().map(XskQueue::fd);
        let fd = self.any.as_ref().map(AsRawFd::as_raw_fd).or_else(one);
        fd.filter(|_| !self.lost)
    }

    pub(super) fn begin_gathering(&self) -> RawFd {
        self.program.watermark().begin()
    }

    /// Returns `true` if the receive queue that is polled next has empty buffers. If a frame waits,
    /// it is this queue's.
    pub(super) fn has_room(&self) -> bool {
        self.queues[self.next_queue].has_room()
    }

    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.packets.send_plain(frame)
    }

    #[inline]
    pub(super) fn burst(
        &mut self,
        now_ns: u64,
        budget: usize,
        receiver: &mut impl Receiver,
    ) -> usize {
        let mut taken = 0;
        for _ in 0..self.queues.len() {
            let queue = &mut self.queues[self.next_queue];
            let (new, waits) = queue.burst(now_ns, budget - taken, receiver);
            taken += new;
            if waits {
                return taken;
            }
            self.next_queue += 1;
            if self.next_queue == self.queues.len() {
                self.next_queue = 0;
            }
            if taken == budget {
                return taken;
            }
        }
        if taken == 0 {
            self.idle(now_ns);
        }
        taken
    }

    fn idle(&mut self, now_ns: u64) {
        if self.lost || now_ns < self.check_ns {
            return;
        }
        self.check_ns = now_ns.saturating_add(CHECK_NS);
        // No frame has arrived since the interface was found to be deleted, and none will.
        self.lost = self.gone;
        self.gone = self.packets.is_orphaned();
    }
}

/// Attaches the XDP program to the interface. If mode `auto` falls back to skb mode, also returns
/// the error of native mode.
fn attach(
    program: &LoadedProgram,
    index: libc::c_int,
    mode: XdpMode,
) -> Result<(XdpLink, Attached, Option<io::Error>), bpf::Failed> {
    let at = |place| program.attach(index, place);
    let native =
        || at(Attached::Native).map_err(|e| ("cannot attach the XDP program in native mode", e));
    let skb = || at(Attached::Skb).map_err(|e| ("cannot attach the XDP program in skb mode", e));
    match mode {
        XdpMode::Native => Ok((native()?, Attached::Native, None)),
        XdpMode::Skb => Ok((skb()?, Attached::Skb, None)),
        XdpMode::Auto => match native() {
            Ok(link) => Ok((link, Attached::Native, None)),
            Err((step, e)) if is_taken(&e) => Err((step, e)),
            Err((_, refused)) => Ok((skb()?, Attached::Skb, Some(refused))),
        },
    }
}

/// Returns `true` if attaching failed because the interface already has an XDP program, in the same
/// mode or in another (`dev_xdp_attach`, net/core/dev.c).
fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

fn load_advice() -> String {
    format!("{RIGHTS}; use Linux 5.9 or newer, with CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL")
}

fn attach_advice(error: &io::Error, iface: &str) -> String {
    if is_taken(error) {
        return format!(
            "{iface} has an XDP program already, possibly of another af_xdp wire: end its process (`ip link \
             show dev {iface}` shows the program; `ip link set dev {iface} xdp off` removes one that \
             no process holds)"
        );
    }
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => RIGHTS.into(),
        // veth fails with ENOSPC if its peer sends on more queues than it receives on.
        Some(libc::ENOSPC) => format!(
            "use mode=skb, or give {iface} as many receive queues as its peer has send queues \
             (`ethtool -L {iface} rx N`)"
        ),
        Some(libc::EINVAL) => {
            "use mode=skb; Linux before 5.9 has no links for XDP programs: use a newer kernel, or \
             af_packet"
                .into()
        }
        _ => "use mode=skb, which every driver supports".into(),
    }
}

fn queue_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => RIGHTS,
        Some(libc::EAFNOSUPPORT) => {
            "the kernel has no AF_XDP: use one with CONFIG_XDP_SOCKETS, or the wire af_packet"
        }
        Some(libc::EBUSY) => "another AF_XDP socket uses this receive queue: end its process",
        Some(libc::ENOBUFS) => {
            "the receive memory exceeds `ulimit -l`: raise it, grant CAP_IPC_LOCK, or use a smaller ring"
        }
        Some(libc::EOPNOTSUPP | libc::EINVAL) => {
            "the driver does not support zero copy here: use zerocopy=auto, or mode=skb"
        }
        Some(libc::ENOMEM) => "use a smaller ring, such as ring=8MiB",
        _ => "",
    }
}

/// Creates an epoll descriptor over the AF_XDP sockets of all queues; `None` for fewer than two
/// queues.
fn epoll_over(queues: &[XskQueue]) -> io::Result<Option<OwnedFd>> {
    if queues.len() < 2 {
        return Ok(None);
    }
    let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, queue) in queues.iter().enumerate() {
        let data = epoll::EventData::new_u64(number as u64);
        epoll::add(&any, queue, data, epoll::EventFlags::IN)?;
    }
    Ok(Some(any))
}

/// Composes the notes of an `af_xdp` wire for the user. The first note states which frames the
/// kernel still gets.
fn notes(
    spec: &AfXdpSpec,
    has: u32,
    place: Attached,
    refused: Option<io::Error>,
    queues: &[XskQueue],
    offloads: &Offloads,
) -> Vec<String> {
    let iface = &spec.iface;
    let count = queues.len();
    let mode = match place {
        Attached::Native => "native",
        Attached::Skb => "skb",
    };
    let copies = match queues.iter().filter(|it| it.is_zero_copy()).count() {
        0 => "the frames are copied".to_owned(),
        all if all == count => "the frames are received with zero copy".to_owned(),
        some => format!("the frames of {some} of these receive queues are received with zero copy"),
    };
    let kernel = if count as u32 == has {
        "the kernel gets no frame".to_owned()
    } else {
        format!(
            "the kernel gets the frames of receive queues {count} to {} and no others",
            has - 1
        )
    };
    let fallback = refused.map_or(String::new(), |e| {
        format!(" (XDP in native mode failed: {e})")
    });
    let mut notes = vec![format!(
        "{iface}: {kernel} while this wire is open: XDP in {mode} mode{fallback} on {count} of {has} \
         receive queues; {copies}"
    )];
    if let Some(longest) = queues.iter().filter_map(XskQueue::longest).min() {
        notes.push(format!(
            "{iface}: frames of more than {longest} bytes are lost; longer frames need Linux 6.6 and \
             support by the driver"
        ));
    }
    if let Some(error) = offloads.refused() {
        notes.push(format!(
            "{iface}: GRO, LRO or the removal of VLAN tags stays on ({error}): frames may arrive merged \
             or without their tags"
        ));
    }
    notes
}

#[cfg(test)]
mod tests;
