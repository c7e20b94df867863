//! The sections of the file, with the default of every key. Ranges are in `check.rs`, meanings in `docs/config.md`.

use super::{
    Access, Clock, Compress, CqeCompression, Format, HashDepth, Idle, Keep, Listen, Mode, OnFull,
    OnLoss, OnPortDown, Order, PipelineMode, Receive, SampleBy, Sandbox, Sensor, ShipPackets, Size,
    Span, Timestamps, Vlan, cores,
};
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, path::PathBuf, time::Duration};
use wqcap_core::section;
use wqcap_files::{name::NameTemplate, sealed::KeySource};
use wqcap_frame::{Slice, dedup::MayDiffer};

section! {
    /// `[device]`
    pub struct DeviceConfig {
        /// Verbs name; absent: the only device there is.
        pub name: Option<String> = None,
        /// The device under this network interface, in place of `name`.
        pub netdev: Option<String> = None,
        /// Port number, from 1.
        pub port: u8 = 1,
        /// When the device goes away.
        pub on_loss: OnLoss = OnLoss::Stop,
    }
}

section! {
    /// `[capture]`
    pub struct CaptureConfig {
        /// Which frames are taken.
        pub mode: Mode = Mode::Steal,
        /// Receive queues; absent: min(cores, 8).
        pub queues: Option<u16> = None,
        /// CPUs of the loops in turn; absent: the allowed CPUs of the NIC's NUMA node.
        #[serde(deserialize_with = "cores::read")]
        pub cores: Option<Vec<usize>> = None,
        /// WRs per queue.
        pub ring: u32 = 8192,
        /// Bytes of one scatter entry.
        pub buffer: Size = Size(2048),
        /// Scatter entries of one WR.
        pub max_sge: u32 = 1,
        /// Longest record; 0: whole frames.
        pub snaplen: Size = Size(0),
        /// Where timestamps come from.
        pub timestamps: Timestamps = Timestamps::Hardware,
        /// Which clock the files speak.
        pub clock: Clock = Clock::System,
        /// What a loop does when its queue is empty; absent: spin, or sleep on a live interface of the software NIC.
        pub idle: Option<Idle> = None,
        /// How a queue's ring is reached.
        pub access: Access = Access::Auto,
        /// How frames lie in a ring's memory.
        pub receive: Receive = Receive::Auto,
        /// Bytes of a stride; absent: the device's smallest.
        pub stride: Option<Size> = None,
        /// Strides of a buffer; absent: for a few dozen of the longest frames.
        pub strides: Option<u32> = None,
        /// Whether the device may compress completions.
        pub cqe_compression: CqeCompression = CqeCompression::Auto,
        /// pcap-filter(7) expression; empty: everything.
        pub filter: String = String::new(),
        /// Ask the e-switch for all frames, not only the port's own MAC.
        pub promiscuous: bool = true,
        /// Allow taking a port that carries the default route or a login session.
        pub steal_management: bool = false,
        /// When the port goes down; absent: wait, or stop with a finite wire.
        pub on_port_down: Option<OnPortDown> = None,
        /// Check each frame's FCS; needs `wq.scatter_fcs`.
        pub verify_fcs: bool = false,
        /// Cut frames by layer.
        pub slice: Slice = Slice::Whole,
        /// Keep one in N.
        pub sample: u32 = 1,
        /// What N counts.
        pub sample_by: SampleBy = SampleBy::Frame,
        /// Leave out repetitions within this time; 0: none.
        pub dedup: Span = Span::default(),
        /// What a repetition may differ in.
        pub dedup_ignore: Vec<MayDiffer> = Vec::new(),
        /// After how long without a frame a flow's cutoff begins anew.
        pub cutoff_idle: Span = Span(Duration::from_secs(60)),
        /// Memory of all queues' tables of flows that may be cut off.
        pub cutoff_memory: Size = Size(256 << 20),
        /// Keep live statistics; absent: with `[control]` or `[metrics]`.
        pub statistics: Option<bool> = None,
    }
}

section! {
    /// `[[cutoff]]`: how much of a flow is kept. Of both limits the first that is reached holds; without any, all is kept.
    pub struct CutoffConfig {
        /// pcap-filter(7) expression for a flow's first frame; empty: every flow.
        pub filter: String = String::new(),
        /// Bytes on the wire, each way.
        pub bytes: Option<Size> = None,
        /// Packets, each way.
        pub packets: Option<u64> = None,
    }
}

section! {
    /// `[wq]`: `ibv_wq` creation flags.
    pub struct WqConfig {
        /// The NIC strips the customer VLAN tag.
        pub cvlan_stripping: bool = false,
        /// The NIC delivers the FCS.
        pub scatter_fcs: bool = false,
        /// The NIC holds the wire for a while when buffers run out.
        pub delay_drop: bool = false,
        /// The NIC pads writes to whole cache lines.
        pub pci_write_end_padding: bool = false,
    }
}

section! {
    /// `[rss]`
    pub struct RssConfig {
        /// What is hashed.
        pub hash: HashDepth = HashDepth::L4,
        /// `symmetric`, `microsoft`, or 80 hex digits.
        pub key: String = "symmetric".into(),
        /// Hash the headers inside tunnels.
        pub inner: bool = false,
        /// Entries of the shared indirection table.
        pub table_size: u32 = 128,
        /// A share per queue; empty: equal shares.
        pub weights: Vec<u32> = Vec::new(),
        /// Even out the load at run time.
        pub respread: bool = false,
    }
}

section! {
    /// `[pipeline]`
    pub struct PipelineConfig {
        /// Who parses.
        pub mode: PipelineMode = PipelineMode::Inline,
        /// Parser threads behind each queue, with `mode = "fanout"`.
        pub parsers_per_queue: u16 = 1,
        /// When a parser's channel is full; absent: drop, or hold with a finite wire.
        pub on_full: Option<OnFull> = None,
    }
}

section! {
    /// `[output]`
    pub struct OutputConfig {
        /// Folder of the capture files; it must exist.
        pub dir: PathBuf = PathBuf::from("/var/lib/wqcap"),
        /// File format.
        pub format: Format = Format::Pcapng,
        /// One ordered stream on stdout in place of files.
        pub stdout: bool = false,
        /// Order of frames.
        pub order: Order = Order::Queue,
        /// Files' names, without their endings.
        pub name: String = NameTemplate::DEFAULT.into(),
        /// What the operator says of the capture, for pcapng's section header.
        pub comment: String = String::new(),
        /// Next file after this many bytes; 0: never.
        pub rotate_size: Size = Size(0),
        /// Next file after this time; 0: never.
        pub rotate_time: Span = Span::default(),
        /// Next file after this many frames; 0: never.
        pub rotate_frames: u64 = 0,
        /// Bytes of finished files to keep, or a share of the disk; the oldest go first.
        pub keep: Keep = Keep::default(),
        /// Finished files to keep; 0: nothing is deleted.
        pub keep_files: u64 = 0,
        /// How long finished files are kept; 0: for ever.
        pub keep_age: Span = Span::default(),
        /// Bytes that stay free on the file system, or a share of it, whoever fills it; the oldest files go first.
        pub keep_free: Keep = Keep::default(),
        /// Write buffers of all queues together.
        pub buffer: Size = Size(256 << 20),
        /// When no write buffer is free; absent: drop, or hold with a finite wire.
        pub on_full: Option<OnFull> = None,
        /// What happens to stripped tags.
        pub vlan: Vlan = Vlan::Restore,
        /// Compression of files.
        pub compress: Compress = Compress::None,
        /// Folder of index files; empty: no index.
        pub index_dir: PathBuf = PathBuf::new(),
        /// Program to run after each finished file; empty: none.
        pub hook: PathBuf = PathBuf::new(),
        /// File of the key that finished files are encrypted with; empty: they are not.
        pub encrypt_key: PathBuf = PathBuf::new(),
        /// Shell command that prints that key; empty: it is in a file.
        pub encrypt_key_command: String = String::new(),
    }
}

impl OutputConfig {
    /// Where the key comes from that finished files are encrypted with; `None`: they are not.
    #[must_use]
    pub fn key_source(&self) -> Option<KeySource> {
        let file = Some(&self.encrypt_key).filter(|it| !it.as_os_str().is_empty());
        let command = Some(&self.encrypt_key_command).filter(|it| !it.is_empty());
        let file = file.cloned().map(KeySource::File);
        file.or_else(|| command.cloned().map(KeySource::Command))
    }

    /// Whether frames go to stdout, said in either way.
    #[must_use]
    pub fn is_stdout(&self) -> bool {
        self.stdout || self.dir.as_os_str() == "-"
    }

    /// Whether the frames of all queues come in one row, by their time.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.is_stdout() || self.order == Order::Time
    }
}

section! {
    /// `[flows]`
    pub struct FlowsConfig {
        /// Folder of the records.
        pub dir: PathBuf = PathBuf::from("/var/lib/wqcap/flows"),
        /// How often they are written.
        pub interval: Span = Span(Duration::from_secs(60)),
        /// A record ends when its flow has lasted this long.
        pub active: Span = Span(Duration::from_secs(300)),
        /// A record ends when nothing of its flow came for this long.
        pub idle: Span = Span(Duration::from_secs(30)),
        /// Memory of all queues' tables together.
        pub memory: Size = Size(256 << 20),
        /// Read names from the first payloads of flows.
        pub names: bool = false,
    }
}

section! {
    /// `[metrics]`
    pub struct MetricsConfig {
        /// Address of the HTTP endpoint.
        pub listen: Listen = SocketAddr::from(([127, 0, 0, 1], 9464)).into(),
    }
}

section! {
    /// `[ship]`
    pub struct ShipConfig {
        /// Where finished files go: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `file:///DIRECTORY`.
        pub store: Option<String> = None,
        /// What this capture is called there; absent: the name of the host.
        pub sensor: Option<Sensor> = None,
        /// Which files of frames are sent.
        pub packets: ShipPackets = ShipPackets::All,
        /// Bytes of a part of an object.
        pub part_size: Size = Size(16 << 20),
        /// Parts that are sent at a time.
        pub concurrency: u32 = 4,
        /// Bytes a second; absent: as many as go.
        pub bandwidth: Option<Size> = None,
        /// Folder of the journal.
        pub journal: PathBuf = PathBuf::from("/var/lib/wqcap/ship"),
        /// Address of the HTTP endpoint for metrics; absent: none.
        pub metrics: Option<Listen> = None,
    }
}

section! {
    /// `[anonymize]`: of what leaves the machine by `[ship]`.
    pub struct AnonymizeConfig {
        /// File of the key.
        pub key: Option<PathBuf> = None,
        /// How much of frames is kept, beyond headers; whole: no payload.
        pub slice: Slice = Slice::Whole,
    }
}

section! {
    /// `[process]`
    pub struct ProcessConfig {
        /// Who root becomes, by name or number; empty: nobody else.
        pub user: String = String::new(),
        /// What a running capture is kept from.
        pub sandbox: Sandbox = Sandbox::On,
    }
}
