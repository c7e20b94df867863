//! Plan of a capture of an ordinary network interface: its rings, and the keys that have no effect
//! there.

use super::QueueMemory;
use crate::{
    Error,
    config::{
        Access, Backend, CaptureConfig, Clock, Config, CqeCompression, Direction, Mode,
        OutputConfig, Receive, RssConfig, Size, WqConfig,
    },
    device::{DeviceFacts, PortFacts, kernel::KernelFacts},
};
use wqcap_sockets::xdp::{XdpAttr, XdpError};

/// Bytes of a block of a packet socket's ring. Super-frames of GRO have up to 64 KiB, those of BIG
/// TCP usually less than 192 KiB (`gro_max_size`). A longer frame does not fit into a block, and is
/// counted as an error.
const BLOCK: u32 = 256 << 10;
/// Rate in Gbit/s from which a link counts as fast.
const FAST: f64 = 25.0;
/// Bytes of the socket rings of all queues together on a link that is not fast: a quarter of a
/// second of full-size frames at 1 Gbit/s, 27 ms at 10 Gbit/s.
const MEMORY: u64 = 32 << 20;
/// Bytes of the socket rings of all queues together on a fast link.
const MEMORY_FAST: u64 = 128 << 20;
/// Default of `output.buffer`, the write buffers, on a link that is not fast.
const WRITE_BUFFERS: Size = Size(48 << 20);
/// Minimum number of blocks of a packet socket's ring.
const LEAST_BLOCKS: u64 = 8;
/// Minimum number of chunks (frame buffers) of an AF_XDP socket.
const LEAST_CHUNKS: u64 = 2048;

/// Returns the receive memory of each queue of an ordinary network interface: the blocks of a
/// packet socket or the chunks of an AF_XDP socket are the WRs.
pub(super) fn ring(backend: Backend, port: Option<&PortFacts>, queues: usize) -> QueueMemory {
    let memory = if is_fast(port) { MEMORY_FAST } else { MEMORY };
    let mtu = port.and_then(|it| it.mtu).unwrap_or_default();
    let (buffer, least) = match backend {
        Backend::AfXdp => (XdpAttr::chunk_for(mtu), LEAST_CHUNKS),
        _ => (BLOCK, LEAST_BLOCKS),
    };
    let count = memory / u64::from(buffer) / queues.max(1) as u64;
    QueueMemory {
        wrs: u32::try_from(count.max(least)).unwrap_or(u32::MAX),
        buffer,
        max_sge: 1,
        striding: None,
        is_shared: backend != Backend::AfXdp,
        fallback: None,
        headroom: 0,
    }
}

/// Returns the default of `output.buffer`, the write buffers of all queues, by the speed of the
/// link.
pub(super) fn write_buffers(port: Option<&PortFacts>) -> Size {
    if is_fast(port) {
        OutputConfig::BUFFER
    } else {
        WRITE_BUFFERS
    }
}

fn is_fast(port: Option<&PortFacts>) -> bool {
    port.is_some_and(|it| it.rate_gbps >= FAST)
}

/// Returns the direction (sent, received or both) of the frames that the sockets receive. On the
/// loopback interface a packet socket would see each frame twice: when it is sent and when it
/// arrives. An AF_XDP socket sees no frame that the host sends.
pub(super) fn direction(config: &Config, device: &DeviceFacts) -> Direction {
    match &device.kernel {
        Some(_) if config.device.backend == Backend::AfXdp => Direction::In,
        Some(kernel) if kernel.is_loopback() && config.capture.direction == Direction::Both => {
            Direction::In
        }
        _ => config.capture.direction,
    }
}

/// Returns the part of the configuration that has an effect on an ordinary interface: without the
/// sections that [`applicable`] refuses as a whole.
pub(super) fn honoured(config: &Config) -> Config {
    Config {
        rss: RssConfig::default(),
        wq: WqConfig::default(),
        rule: Vec::new(),
        ..config.clone()
    }
}

/// Checks that the interface has Ethernet frames that fit in the receive memory, and that no key is
/// set that has an effect only on an RDMA device.
pub(super) fn applicable(
    config: &Config,
    device: &DeviceFacts,
    kernel: &KernelFacts,
) -> Result<(), Error> {
    let name = &device.name;
    if device.ports.iter().any(|port| !port.ethernet) {
        return Err(Error::config(
            "device.netdev",
            format!("{name:?}"),
            format!(
                "the interface has hardware type {} and no Ethernet header; capture it with tcpdump -i {name}",
                kernel.hardware_type
            ),
        ));
    }
    let usual = CaptureConfig::default();
    let capture = &config.capture;
    let is_xdp = config.device.backend == Backend::AfXdp;
    let mtu = device.ports.iter().find_map(|it| it.mtu).unwrap_or(0);
    let chunk_bytes = XdpAttr::chunk_for(mtu);
    let longest = XdpAttr::longest_mtu(chunk_bytes);
    if is_xdp && mtu > longest {
        let error = XdpError::Mtu {
            interface: name.clone(),
            mtu,
            chunk_bytes,
            longest,
        };
        return Err(error.into());
    }
    let set: [(&str, bool, String); 12] = [
        (
            "capture.direction",
            is_xdp && capture.direction == Direction::Out,
            format!("{:?}", capture.direction.to_string()),
        ),
        (
            "capture.mode",
            capture.mode != Mode::Steal,
            format!("{:?}", capture.mode.to_string()),
        ),
        (
            "capture.ring",
            capture.ring != usual.ring,
            capture.ring.to_string(),
        ),
        (
            "capture.buffer",
            capture.buffer != usual.buffer,
            capture.buffer.to_string(),
        ),
        (
            "capture.max_sge",
            capture.max_sge != usual.max_sge,
            capture.max_sge.to_string(),
        ),
        (
            "capture.clock",
            capture.clock != Clock::System,
            format!("{:?}", capture.clock.to_string()),
        ),
        (
            "capture.access",
            capture.access != Access::Auto,
            format!("{:?}", capture.access.to_string()),
        ),
        (
            "capture.receive",
            capture.receive != Receive::Auto,
            format!("{:?}", capture.receive.to_string()),
        ),
        (
            "capture.cqe_compression",
            capture.cqe_compression == CqeCompression::On,
            format!("{:?}", capture.cqe_compression.to_string()),
        ),
        ("rule", !config.rule.is_empty(), String::new()),
        ("wq", config.wq != WqConfig::default(), String::new()),
        ("rss", config.rss != RssConfig::default(), String::new()),
    ];
    let sockets = match is_xdp {
        true => "AF_XDP sockets",
        false => "packet sockets of the kernel",
    };
    let problems = set.into_iter().filter(|(_, is_set, _)| *is_set);
    let problems: Vec<_> = problems
        .map(|(key, _, value)| {
            let problem =
                format!("{name} is captured by {sockets}, and this key does not apply to them; remove the key");
            Error::config(key, value, problem)
        })
        .collect();
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::Several(problems))
}
