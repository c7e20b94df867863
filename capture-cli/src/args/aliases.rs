//! Options of tcpdump and dumpcap. Each is an alias of a configuration key or of a limit of the
//! run; [`crate::aliases`] translates them.

use clap::ArgAction;
use std::path::PathBuf;

/// Options of tcpdump and dumpcap that `run` and `check` accept in addition to the config.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Options of tcpdump and dumpcap")]
pub struct AliasArgs {
    /// Capture from this RDMA device or network interface (sets device.name or device.netdev).
    /// Several times: from all of them, into one file in time order; any: from every interface that
    /// is up
    #[arg(short = 'i', long, value_name = "DEV")]
    pub interface: Vec<String>,
    /// Write frames to FILE in time order (its extension selects the format), to one file per queue
    /// in DIR, or as a stream to stdout (-)
    #[arg(short = 'w', value_name = "FILE|DIR|-")]
    pub write: Option<PathBuf>,
    /// Write one capture file per queue into this directory (sets output.dir)
    #[arg(short = 'o', value_name = "DIR", conflicts_with = "write")]
    pub dir: Option<PathBuf>,
    /// Write at most this many bytes of each frame; 0 writes whole frames (sets capture.snaplen)
    #[arg(short = 's', long = "snapshot-length", value_name = "BYTES")]
    pub snaplen: Option<u64>,
    /// Start a new capture file after this many seconds (sets output.rotate_time)
    #[arg(short = 'G', value_name = "SECONDS")]
    pub rotate_seconds: Option<u64>,
    /// Start a new capture file after this size: millions of bytes, or a number with k, m or g for
    /// powers of 1024 (sets output.rotate_size)
    #[arg(short = 'C', value_name = "MB")]
    pub rotate_size: Option<String>,
    /// Keep at most this many capture files (sets output.keep_files). With -G and without -C, stop
    /// after this many files instead
    #[arg(short = 'W', value_name = "FILES")]
    pub most_files: Option<u64>,
    /// Stop the run after duration:SECONDS, filesize:KB, files:N or packets:N. With -b, filesize:KB
    /// starts a new file instead
    #[arg(short = 'a', long = "autostop", value_name = "CONDITION")]
    pub autostop: Vec<String>,
    /// Start a new capture file after duration:SECONDS, interval:SECONDS, filesize:KB or packets:N.
    /// files:N keeps at most N files
    #[arg(short = 'b', long = "ring-buffer", value_name = "CONDITION")]
    pub ring_buffer: Vec<String>,
    /// Leave out frames to MAC addresses other than those of the port (sets capture.promiscuous =
    /// false)
    #[arg(short = 'p', long)]
    pub no_promiscuous_mode: bool,
    /// Keep only frames that match this pcap-filter(7) expression (sets capture.filter)
    #[arg(short = 'f', value_name = "FILTER", conflicts_with_all = ["words", "filter_file"])]
    pub filter: Option<String>,
    /// Read the capture filter from this file; - is standard input (sets capture.filter)
    #[arg(short = 'F', value_name = "FILE", conflicts_with = "words")]
    pub filter_file: Option<PathBuf>,
    /// Write capture files in pcap format (sets output.format)
    #[arg(short = 'P')]
    pub pcap: bool,
    /// Write this comment into the section header of pcapng files (sets output.comment)
    #[arg(long, value_name = "TEXT")]
    pub capture_comment: Option<String>,
    /// Run as this user, from before anything is opened (sets process.user)
    #[arg(short = 'Z', value_name = "USER")]
    pub user: Option<String>,
    /// Accepted and ignored: addresses and ports are never resolved to names
    #[arg(short = 'n', action = ArgAction::Count)]
    pub numbers: u8,
    /// Accepted and ignored: every frame is on its way to the file within a second
    #[arg(short = 'U')]
    pub unbuffered: bool,
    /// pcap-filter(7) expression for the capture; its words are joined with blanks (sets
    /// capture.filter). If the first word is the path of a config, that config is read
    #[arg(value_name = "FILTER")]
    pub words: Vec<String>,
}
