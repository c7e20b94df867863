//! Sections of the configuration file, with the default of every key. Ranges are in `check.rs`,
//! meanings in `docs/config.md`.

use super::{
    Access, Backend, Clock, Compress, CqeCompression, Direction, Format, HashDepth, Idle, Keep,
    Listen, Loops, Mode, OnFull, OnLoss, OnPortDown, Order, PipelineMode, Receive, SampleBy,
    Sandbox, Sensor, ShipPackets, Size, Span, Timestamps, Vlan, cores,
};
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, path::PathBuf, time::Duration};
use wqcap_core::section;
use wqcap_files::{name::NameTemplate, sealed::KeySource};
use wqcap_frame::{Slice, dedup::MayDiffer};

section! {
    /// `[device]`: the RDMA device and port, or the network interface, to capture.
    pub struct DeviceConfig {
        /// Verbs name of the RDMA device to capture; absent: the only device of the machine.
        pub name: Option<String> = None,
        /// Name of the network interface to capture, instead of `name`.
        pub netdev: Option<String> = None,
        /// Way in which frames are received: verbs, packet sockets or AF_XDP sockets.
        pub backend: Backend = Backend::Auto,
        /// Number of the port of the RDMA device to capture, from 1.
        pub port: u8 = 1,
        /// Action when the RDMA device is lost: stop or retry.
        pub on_loss: OnLoss = OnLoss::Stop,
    }
}

section! {
    /// `[[port]]`: one of several ports that the run captures.
    pub struct PortConfig {
        /// Name of the network interface to capture, instead of `device`.
        pub interface: Option<String> = None,
        /// Verbs name of the RDMA device to capture.
        pub device: Option<String> = None,
        /// Name of the port in files, counters and flow records; absent: the interface or the
        /// device.
        pub label: Option<String> = None,
        /// Number of the port of the RDMA device to capture, from 1.
        pub port: u8 = 1,
        /// Way in which the port's frames are received: verbs, packet sockets or AF_XDP sockets.
        pub backend: Backend = Backend::Auto,
    }
}

impl PortConfig {
    /// Returns the name of the captured port: its label, else its interface or device.
    #[must_use]
    pub fn label(&self) -> &str {
        let names = [&self.label, &self.interface, &self.device];
        names.into_iter().flatten().next().map_or("", |it| it)
    }
}

section! {
    /// `[capture]`: how frames are received, filtered and cut.
    pub struct CaptureConfig {
        /// Capture mode: selects which frames are captured, and whether the kernel still receives
        /// them.
        pub mode: Mode = Mode::Steal,
        /// Direction of the frames that a packet socket receives.
        pub direction: Direction = Direction::Both,
        /// Number of receive queues; absent: the number of cores, at most 8; on an ordinary network
        /// interface 1.
        pub queues: Option<u16> = None,
        /// CPUs of the receive loops, assigned to them in turn; absent: the allowed CPUs of the
        /// NIC's NUMA node.
        #[serde(deserialize_with = "cores::read")]
        pub cores: Option<Vec<usize>> = None,
        /// Number of receive loops for several ports: one for all ports, or one for each port.
        pub loops: Loops = Loops::Paired,
        /// Number of receive requests (WRs) per queue.
        pub ring: u32 = 8192,
        /// Size of one receive buffer (scatter entry) in bytes.
        pub buffer: Size = Size(2048),
        /// Number of receive buffers (scatter entries) of one WR.
        pub max_sge: u32 = 1,
        /// Maximum number of bytes of a frame that are written to files; 0: whole frames.
        pub snaplen: Size = Size(0),
        /// Source of the frames' time stamps: the NIC or software.
        pub timestamps: Timestamps = Timestamps::Hardware,
        /// Clock of the time stamps in capture files: the system's, or the NIC's without
        /// correction.
        pub clock: Clock = Clock::System,
        /// Behaviour of a receive loop whose queue is empty; absent: spin, or sleep on an ordinary
        /// network interface and on a live interface of the software NIC.
        pub idle: Option<Idle> = None,
        /// Access to a receive queue's ring: directly in memory or through libibverbs.
        pub access: Access = Access::Auto,
        /// Layout of frames in the memory of a receive ring: one buffer per frame, or large buffers
        /// for many frames.
        pub receive: Receive = Receive::Auto,
        /// Bytes of one stride (smallest unit) of a striding receive buffer; absent: the device's
        /// smallest.
        pub stride: Option<Size> = None,
        /// Number of strides of one striding receive buffer; absent: enough for a few dozen of the
        /// longest frames.
        pub strides: Option<u32> = None,
        /// Compression of completions (CQEs) by the device: automatic, on or off.
        pub cqe_compression: CqeCompression = CqeCompression::Auto,
        /// pcap-filter(7) expression of the frames to keep; empty: all frames.
        pub filter: String = String::new(),
        /// Whether frames to all MAC addresses are received (promiscuous mode), not only those to
        /// the port's own.
        pub promiscuous: bool = true,
        /// Whether a port that carries the default route or a login session may be captured.
        pub steal_management: bool = false,
        /// Action of the capture when a port goes down; absent: wait, or stop with a finite wire of
        /// the software NIC.
        pub on_port_down: Option<OnPortDown> = None,
        /// Whether the FCS of each frame is checked; needs `wq.scatter_fcs`.
        pub verify_fcs: bool = false,
        /// Protocol layer of a frame after which the frame is cut in the files.
        pub slice: Slice = Slice::Whole,
        /// Sampling rate N: one in N frames or flows is kept.
        pub sample: u32 = 1,
        /// Unit of `capture.sample`: frames or flows.
        pub sample_by: SampleBy = SampleBy::Frame,
        /// Time within which repetitions of a frame are left out; 0: no deduplication.
        pub dedup: Span = Span::default(),
        /// Header fields in which a frame and its repetition may differ.
        pub dedup_ignore: Vec<MayDiffer> = Vec::new(),
        /// Time without a frame of a flow after which its cutoff starts again: the flow counts as
        /// new.
        pub cutoff_idle: Span = Span(Duration::from_secs(60)),
        /// Bytes of memory for all flow tables of `[[cutoff]]`, which limits how much of a flow is
        /// kept.
        pub cutoff_memory: Size = Size(256 << 20),
        /// Whether live statistics are collected; absent: only if there is a section `[control]` or
        /// `[metrics]`.
        pub statistics: Option<bool> = None,
    }
}

section! {
    /// `[[cutoff]]`: limits on how much of a flow is kept. The first limit that a flow reaches
    /// applies; without limits, the whole flow is kept.
    pub struct CutoffConfig {
        /// pcap-filter(7) expression that selects flows by their first frame; empty: every flow.
        pub filter: String = String::new(),
        /// Bytes on the wire that are kept of each direction of a flow; absent: no limit.
        pub bytes: Option<Size> = None,
        /// Number of packets that are kept of each direction of a flow; absent: no limit.
        pub packets: Option<u64> = None,
    }
}

section! {
    /// `[wq]`: flags with which the receive WQs (`ibv_wq`) are created.
    pub struct WqConfig {
        /// Whether the NIC strips the customer VLAN tag of frames.
        pub cvlan_stripping: bool = false,
        /// Whether the NIC delivers the FCS with each received frame.
        pub scatter_fcs: bool = false,
        /// Whether the NIC holds frames for a time when the WQ is out of buffers.
        pub delay_drop: bool = false,
        /// Whether the NIC pads its PCIe writes to whole cache lines.
        pub pci_write_end_padding: bool = false,
    }
}

section! {
    /// `[rss]`: how received frames are distributed over the queues.
    pub struct RssConfig {
        /// Header fields that the RSS hash covers: IP addresses, or addresses and ports.
        pub hash: HashDepth = HashDepth::L4,
        /// Toeplitz key of the RSS hash: `symmetric`, `microsoft`, or 80 hex digits.
        pub key: String = "symmetric".into(),
        /// Whether the RSS hash covers the headers inside tunnels instead of the outer ones.
        pub inner: bool = false,
        /// Number of entries of the shared RSS indirection table.
        pub table_size: u32 = 128,
        /// Weights by which the RSS indirection table is shared among the queues; empty: equal
        /// shares.
        pub weights: Vec<u32> = Vec::new(),
        /// Whether the load is rebalanced between receive queues at run time.
        pub respread: bool = false,
    }
}

section! {
    /// `[pipeline]`: the threads that process received frames.
    pub struct PipelineConfig {
        /// Thread that processes frames: the queue's loop or parser threads.
        pub mode: PipelineMode = PipelineMode::Inline,
        /// Number of parser threads per queue with `mode = "fanout"`.
        pub parsers_per_queue: u16 = 1,
        /// Action when a parser thread holds its share of frames; absent: drop, or hold with a
        /// finite wire of the software NIC.
        pub on_full: Option<OnFull> = None,
    }
}

section! {
    /// `[output]`: destination, format and retention of captured frames.
    pub struct OutputConfig {
        /// Existing directory for the capture files.
        pub dir: PathBuf = PathBuf::from("/var/lib/wqcap"),
        /// Format of the capture files: pcapng, pcap, or none for no files.
        pub format: Format = Format::Pcapng,
        /// Whether one capture stream, ordered by time, is written to stdout instead of files.
        pub stdout: bool = false,
        /// Order of frames in the capture files; absent: `queue`, with several ports `time`.
        pub order: Option<Order> = None,
        /// Template of capture file names, without suffixes.
        pub name: String = NameTemplate::DEFAULT.into(),
        /// Operator's comment, written to the section header of pcapng files.
        pub comment: String = String::new(),
        /// Size of a capture file in bytes after which the next file starts; 0: never.
        pub rotate_size: Size = Size(0),
        /// Duration of a capture file after which the next file starts; 0: never.
        pub rotate_time: Span = Span::default(),
        /// Number of frames in a capture file after which the next file starts; 0: never.
        pub rotate_frames: u64 = 0,
        /// Bytes of finished capture files to keep, or a share of the disk; the oldest files are
        /// deleted first.
        pub keep: Keep = Keep::default(),
        /// Number of finished capture files to keep, after which the oldest are deleted; 0: no file
        /// is deleted.
        pub keep_files: u64 = 0,
        /// Age after which finished capture files are deleted; 0: never.
        pub keep_age: Span = Span::default(),
        /// Bytes of the file system that must stay free, or a share of it; the oldest capture files
        /// are deleted first, even if other programs fill the disk.
        pub keep_free: Keep = Keep::default(),
        /// Bytes of the buffers in which frames wait for the disk, of all queues together; absent:
        /// 256 MiB, on an ordinary network interface below 25 Gbit/s 48 MiB.
        pub buffer: Option<Size> = None,
        /// Action when no write buffer is free for a frame; absent: drop, or hold with a finite
        /// wire of the software NIC.
        pub on_full: Option<OnFull> = None,
        /// Treatment of VLAN tags that the NIC stripped: put back into the frame, or left out.
        pub vlan: Vlan = Vlan::Restore,
        /// Compression of capture files: none, zstd or lz4.
        pub compress: Compress = Compress::None,
        /// Directory for the index files of capture files; empty: no index is written.
        pub index_dir: PathBuf = PathBuf::new(),
        /// Path of the program to run after each finished capture file; empty: none.
        pub hook: PathBuf = PathBuf::new(),
        /// Path of the file with the encryption key for finished capture files; empty: no key file.
        pub encrypt_key: PathBuf = PathBuf::new(),
        /// Shell command that prints the encryption key of finished capture files; empty: no
        /// command.
        pub encrypt_key_command: String = String::new(),
    }
}

impl OutputConfig {
    /// Returns the source of the encryption key for finished capture files; `None`: files are not
    /// encrypted.
    #[must_use]
    pub fn key_source(&self) -> Option<KeySource> {
        let file = Some(&self.encrypt_key).filter(|it| !it.as_os_str().is_empty());
        let command = Some(&self.encrypt_key_command).filter(|it| !it.is_empty());
        let file = file.cloned().map(KeySource::File);
        file.or_else(|| command.cloned().map(KeySource::Command))
    }

    /// Returns `true` if captured frames go to stdout: by `output.stdout`, or by `output.dir =
    /// "-"`.
    #[must_use]
    pub fn is_stdout(&self) -> bool {
        self.stdout || self.dir.as_os_str() == "-"
    }

    /// Returns `true` if the frames of all queues are merged into one sequence by time.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.is_stdout() || self.order() == Order::Time
    }

    /// Returns the configured order of frames in capture files: by time, or as each queue received
    /// them.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order.unwrap_or_default()
    }
}

section! {
    /// `[flows]`: flow records as Parquet files.
    pub struct FlowsConfig {
        /// Directory for the files of flow records.
        pub dir: PathBuf = PathBuf::from("/var/lib/wqcap/flows"),
        /// Length of the interval for which one file of flow records is written.
        pub interval: Span = Span(Duration::from_secs(60)),
        /// Time since the start of a flow record after which the record ends, though the flow
        /// continues.
        pub active: Span = Span(Duration::from_secs(300)),
        /// Time without a frame after which the record of a flow ends.
        pub idle: Span = Span(Duration::from_secs(30)),
        /// Bytes of memory for the tables of active flows of all queues together.
        pub memory: Size = Size(256 << 20),
        /// Whether names, such as TLS server names, are read from the first payloads of flows.
        pub names: bool = false,
    }
}

section! {
    /// `[metrics]`: the HTTP endpoint for the metrics of a capture.
    pub struct MetricsConfig {
        /// Address of the HTTP endpoint for metrics, at which it listens.
        pub listen: Listen = SocketAddr::from(([127, 0, 0, 1], 9464)).into(),
    }
}

section! {
    /// `[ship]`: the object store to which `wqcap ship` sends finished files.
    pub struct ShipConfig {
        /// URL of the object store: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`,
        /// `az://CONTAINER/PREFIX` or `file:///DIRECTORY`.
        pub store: Option<String> = None,
        /// Name of this capture in the object store; absent: the host name.
        pub sensor: Option<Sensor> = None,
        /// Selection of capture files that are sent to the object store.
        pub packets: ShipPackets = ShipPackets::All,
        /// Size of one part of a multipart upload to the object store in bytes.
        pub part_size: Size = Size(16 << 20),
        /// Number of upload parts sent to the object store at the same time.
        pub concurrency: u32 = 4,
        /// Upload limit of `wqcap ship` in bytes per second; absent: no limit.
        pub bandwidth: Option<Size> = None,
        /// Directory of the journal in which `wqcap ship` records sent files.
        pub journal: PathBuf = PathBuf::from("/var/lib/wqcap/ship"),
        /// Address of the HTTP endpoint for metrics of `wqcap ship`; absent: no endpoint.
        pub metrics: Option<Listen> = None,
    }
}

section! {
    /// `[serve]`: packets, flow records and the state of the capture over HTTPS (`wqcap serve`).
    pub struct ServeConfig {
        /// Address at which `wqcap serve` listens.
        pub listen: Listen = SocketAddr::from(([127, 0, 0, 1], 9465)).into(),
        /// PEM file of the certificate chain of `wqcap serve`; absent: HTTP without TLS.
        pub tls_cert: Option<PathBuf> = None,
        /// PEM file of the private key that belongs to the certificate of `wqcap serve`.
        pub tls_key: Option<PathBuf> = None,
        /// PEM file of the authorities that sign client certificates; absent: clients do not
        /// authenticate by certificate.
        pub client_ca: Option<PathBuf> = None,
        /// File of the tokens by which callers of `wqcap serve` authenticate; absent: callers have
        /// none.
        pub tokens: Option<PathBuf> = None,
        /// Maximum number of requests to `wqcap serve` that read capture files at the same time.
        pub max_requests: u32 = 8,
        /// Bytes of packets in an answer of `wqcap serve` after which the answer ends as
        /// incomplete.
        pub max_bytes: Size = Size(4 << 30),
    }
}

section! {
    /// `[anonymize]`: anonymization of the files that `[ship]` sends.
    pub struct AnonymizeConfig {
        /// Path of the file with the secret key for anonymization.
        pub key: Option<PathBuf> = None,
        /// Protocol layer up to which each anonymized frame is kept; `whole`: all parsed headers,
        /// no payload.
        pub slice: Slice = Slice::Whole,
    }
}

section! {
    /// `[process]`: user and sandbox of the capture process.
    pub struct ProcessConfig {
        /// User that a capture process of root switches to, by name or number; empty: no switch.
        pub user: String = String::new(),
        /// Sandbox of the process of a running capture.
        pub sandbox: Sandbox = Sandbox::On,
    }
}
