//! The sections of the file, with the default of every key. Ranges are in `check.rs`, meanings in `docs/config.md`.

use super::{
    Access, Clock, Format, HashDepth, Idle, Keep, Mode, OnFull, OnLoss, OnPortDown, Order,
    PipelineMode, SampleBy, Sandbox, Size, Span, Timestamps, Vlan,
};
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// `[device]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceConfig {
    /// Verbs name; absent: the only device there is.
    pub name: Option<String>,
    /// The device under this network interface, in place of `name`.
    pub netdev: Option<String>,
    /// Port number, from 1.
    pub port: u8,
    /// When the device goes away.
    pub on_loss: OnLoss,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            name: None,
            netdev: None,
            port: 1,
            on_loss: OnLoss::Stop,
        }
    }
}

/// `[capture]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaptureConfig {
    /// Which frames are taken.
    pub mode: Mode,
    /// Receive queues; absent: min(cores, 8).
    pub queues: Option<u16>,
    /// CPUs of the loops in turn; absent: the allowed CPUs of the NIC's NUMA node.
    pub cores: Option<Vec<usize>>,
    /// WRs per queue.
    pub ring: u32,
    /// Bytes of one scatter entry.
    pub buffer: Size,
    /// Scatter entries of one WR.
    pub max_sge: u32,
    /// Longest record; 0: whole frames.
    pub snaplen: Size,
    /// Where timestamps come from.
    pub timestamps: Timestamps,
    /// Which clock the files speak.
    pub clock: Clock,
    /// What a loop does when its queue is empty.
    pub idle: Idle,
    /// How a queue's ring is reached.
    pub access: Access,
    /// pcap-filter(7) expression; empty: everything.
    pub filter: String,
    /// Ask the e-switch for all frames, not only the port's own MAC.
    pub promiscuous: bool,
    /// Allow taking a port that carries the default route or a login session.
    pub steal_management: bool,
    /// When the port goes down; absent: wait, or stop with a finite wire.
    pub on_port_down: Option<OnPortDown>,
    /// Check each frame's FCS; needs `wq.scatter_fcs`.
    pub verify_fcs: bool,
    /// Cut frames by layer.
    pub slice: Slice,
    /// Keep one in N.
    pub sample: u32,
    /// What N counts.
    pub sample_by: SampleBy,
    /// Leave out repetitions within this time; 0: none.
    pub dedup: Span,
    /// Keep live statistics; absent: with `[control]` or `[metrics]`.
    pub statistics: Option<bool>,
}

impl Default for CaptureConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Steal,
            queues: None,
            cores: None,
            ring: 8192,
            buffer: Size(2048),
            max_sge: 1,
            snaplen: Size(0),
            timestamps: Timestamps::Hardware,
            clock: Clock::System,
            idle: Idle::Spin,
            access: Access::Auto,
            filter: String::new(),
            promiscuous: true,
            steal_management: false,
            on_port_down: None,
            verify_fcs: false,
            slice: Slice::Whole,
            sample: 1,
            sample_by: SampleBy::Frame,
            dedup: Span::default(),
            statistics: None,
        }
    }
}

impl CaptureConfig {
    /// The key's value, or its default.
    #[must_use]
    pub fn on_port_down(&self) -> OnPortDown {
        self.on_port_down.unwrap_or_default()
    }
}

/// Where `capture.slice` cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Slice {
    /// Nowhere: `""`.
    #[default]
    Whole,
    /// After the L3 header: `"l3"`.
    L3,
    /// After the L4 header: `"l4"`.
    L4,
    /// This many bytes after the L4 header: `"payload:64"`.
    Payload(u32),
}

impl TryFrom<String> for Slice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "" => Ok(Self::Whole),
            "l3" => Ok(Self::L3),
            "l4" => Ok(Self::L4),
            _ => text
                .strip_prefix("payload:")
                .and_then(|n| n.parse().ok())
                .map(Self::Payload)
                .ok_or_else(|| {
                    format!("{text:?} is not a slice; write \"\", \"l3\", \"l4\" or \"payload:N\"")
                }),
        }
    }
}

impl From<Slice> for String {
    fn from(slice: Slice) -> Self {
        match slice {
            Slice::Whole => Self::new(),
            Slice::L3 => "l3".into(),
            Slice::L4 => "l4".into(),
            Slice::Payload(n) => format!("payload:{n}"),
        }
    }
}

/// `[wq]`: `ibv_wq` creation flags.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WqConfig {
    /// The NIC strips the customer VLAN tag.
    pub cvlan_stripping: bool,
    /// The NIC delivers the FCS.
    pub scatter_fcs: bool,
    /// The NIC holds the wire for a while when buffers run out.
    pub delay_drop: bool,
    /// The NIC pads writes to whole cache lines.
    pub pci_write_end_padding: bool,
}

/// `[rss]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RssConfig {
    /// What is hashed.
    pub hash: HashDepth,
    /// `symmetric`, `microsoft`, or 80 hex digits.
    pub key: String,
    /// Hash the headers inside tunnels.
    pub inner: bool,
    /// Entries of the shared indirection table.
    pub table_size: u32,
    /// A share per queue; empty: equal shares.
    pub weights: Vec<u32>,
    /// Even out the load at run time.
    pub respread: bool,
}

impl Default for RssConfig {
    fn default() -> Self {
        Self {
            hash: HashDepth::L4,
            key: "symmetric".into(),
            inner: false,
            table_size: 128,
            weights: Vec::new(),
            respread: false,
        }
    }
}

/// `[pipeline]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PipelineConfig {
    /// Who parses.
    pub mode: PipelineMode,
    /// Parser threads behind each queue, with `mode = "fanout"`.
    pub parsers_per_queue: u16,
    /// When a parser's channel is full; absent: drop, or hold with a finite wire.
    pub on_full: Option<OnFull>,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self {
            mode: PipelineMode::Inline,
            parsers_per_queue: 1,
            on_full: None,
        }
    }
}

impl PipelineConfig {
    /// The key's value, or its default.
    #[must_use]
    pub fn on_full(&self) -> OnFull {
        self.on_full.unwrap_or_default()
    }
}

/// `[output]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputConfig {
    /// Folder of the capture files; it must exist.
    pub dir: PathBuf,
    /// File format.
    pub format: Format,
    /// One ordered stream on stdout in place of files.
    pub stdout: bool,
    /// Order of frames.
    pub order: Order,
    /// Next file after this many bytes; 0: never.
    pub rotate_size: Size,
    /// Next file after this time; 0: never.
    pub rotate_time: Span,
    /// Bytes of finished files to keep, or a share of the disk; the oldest go first.
    pub keep: Keep,
    /// Finished files to keep; 0: nothing is deleted.
    pub keep_files: u64,
    /// Write buffers of all queues together.
    pub buffer: Size,
    /// When no write buffer is free; absent: drop, or hold with a finite wire.
    pub on_full: Option<OnFull>,
    /// What happens to stripped tags.
    pub vlan: Vlan,
    /// Compression of files.
    pub compress: Compress,
    /// Folder of index files; empty: no index.
    pub index_dir: PathBuf,
    /// Program to run after each finished file; empty: none.
    pub hook: PathBuf,
}

impl Default for OutputConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("/var/lib/wqcap"),
            format: Format::Pcapng,
            stdout: false,
            order: Order::Queue,
            rotate_size: Size(0),
            rotate_time: Span::default(),
            keep: Keep::default(),
            keep_files: 0,
            buffer: Size(256 << 20),
            on_full: None,
            vlan: Vlan::Restore,
            compress: Compress::None,
            index_dir: PathBuf::new(),
            hook: PathBuf::new(),
        }
    }
}

impl OutputConfig {
    /// Whether frames go to stdout, said in either way.
    #[must_use]
    pub fn is_stdout(&self) -> bool {
        self.stdout || self.dir.as_os_str() == "-"
    }

    /// The key's value, or its default.
    #[must_use]
    pub fn on_full(&self) -> OnFull {
        self.on_full.unwrap_or_default()
    }
}

/// `output.compress`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Compress {
    /// `"none"`
    #[default]
    None,
    /// `"zstd"` or `"zstd:LEVEL"`, level 1 to 22.
    Zstd(Option<u8>),
    /// `"lz4"`
    Lz4,
}

impl Compress {
    /// What files have behind their format's ending: `.zst`, say.
    #[must_use]
    pub fn ending(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Zstd(_) => ".zst",
            Self::Lz4 => ".lz4",
        }
    }
}

impl TryFrom<String> for Compress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "none" => Ok(Self::None),
            "zstd" => Ok(Self::Zstd(None)),
            "lz4" => Ok(Self::Lz4),
            _ => text
                .strip_prefix("zstd:")
                .and_then(|level| level.parse().ok())
                .filter(|level| (1..=22).contains(level))
                .map(|level| Self::Zstd(Some(level)))
                .ok_or_else(|| {
                    format!("{text:?} is not a compression; write \"none\", \"lz4\", \"zstd\" or \"zstd:1\" to \"zstd:22\"")
                }),
        }
    }
}

impl From<Compress> for String {
    fn from(compress: Compress) -> Self {
        match compress {
            Compress::None => "none".into(),
            Compress::Zstd(None) => "zstd".into(),
            Compress::Zstd(Some(level)) => format!("zstd:{level}"),
            Compress::Lz4 => "lz4".into(),
        }
    }
}

/// `[flows]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlowsConfig {
    /// Folder of the records.
    pub dir: PathBuf,
    /// How often they are written.
    pub interval: Span,
    /// A record ends when its flow has lasted this long.
    pub active: Span,
    /// A record ends when nothing of its flow came for this long.
    pub idle: Span,
    /// Memory of all queues' tables together.
    pub memory: Size,
}

impl Default for FlowsConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("/var/lib/wqcap/flows"),
            interval: Span(Duration::from_secs(60)),
            active: Span(Duration::from_secs(300)),
            idle: Span(Duration::from_secs(30)),
            memory: Size(256 << 20),
        }
    }
}

/// `[metrics]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// Address of the HTTP endpoint.
    pub listen: SocketAddr,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9464)),
        }
    }
}

/// `[process]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessConfig {
    /// Who root becomes, by name or number; empty: nobody else.
    pub user: String,
    /// What a running capture is kept from.
    pub sandbox: Sandbox,
}
