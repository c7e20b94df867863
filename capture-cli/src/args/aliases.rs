//! Options as of tcpdump and dumpcap: each an alias of a key or of a limit of the run. What they mean is in
//! [`crate::aliases`].

use clap::ArgAction;
use std::path::PathBuf;

/// The options that `run` and `check` take beside the config.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Options as of tcpdump and dumpcap")]
pub struct AliasArgs {
    /// Capture from this RDMA device or network interface: device.name or device.netdev
    #[arg(short = 'i', long, value_name = "DEV")]
    pub interface: Option<String>,
    /// Write one file in time order (FILE; its ending is the format), a file per queue (DIR), or a stream to stdout (-)
    #[arg(short = 'w', value_name = "FILE|DIR|-")]
    pub write: Option<PathBuf>,
    /// Write a file per queue into this directory: output.dir
    #[arg(short = 'o', value_name = "DIR", conflicts_with = "write")]
    pub dir: Option<PathBuf>,
    /// Write at most so many bytes of a frame; 0: all of it: capture.snaplen
    #[arg(short = 's', long = "snapshot-length", value_name = "BYTES")]
    pub snaplen: Option<u64>,
    /// Next file every so many seconds: output.rotate_time
    #[arg(short = 'G', value_name = "SECONDS")]
    pub rotate_seconds: Option<u64>,
    /// Next file after so many million bytes, or a size with k, m or g: output.rotate_size
    #[arg(short = 'C', value_name = "MB")]
    pub rotate_size: Option<String>,
    /// Keep so many files (output.keep_files); with -G and without -C: stop after so many
    #[arg(short = 'W', value_name = "FILES")]
    pub most_files: Option<u64>,
    /// Stop after duration:SECONDS, filesize:KB, files:N or packets:N
    #[arg(short = 'a', long = "autostop", value_name = "CONDITION")]
    pub autostop: Vec<String>,
    /// Next file after duration:SECONDS or interval:SECONDS, filesize:KB or packets:N; keep files:N
    #[arg(short = 'b', long = "ring-buffer", value_name = "CONDITION")]
    pub ring_buffer: Vec<String>,
    /// Leave frames to other MAC addresses out: capture.promiscuous = false
    #[arg(short = 'p', long)]
    pub no_promiscuous_mode: bool,
    /// Keep the frames that match this filter: capture.filter
    #[arg(short = 'f', value_name = "FILTER", conflicts_with_all = ["words", "filter_file"])]
    pub filter: Option<String>,
    /// Read the filter from this file; - is standard input
    #[arg(short = 'F', value_name = "FILE", conflicts_with = "words")]
    pub filter_file: Option<PathBuf>,
    /// Write pcap: output.format
    #[arg(short = 'P')]
    pub pcap: bool,
    /// Put this comment into the section header of pcapng files: output.comment
    #[arg(long, value_name = "TEXT")]
    pub capture_comment: Option<String>,
    /// Become this user before anything is opened: process.user
    #[arg(short = 'Z', value_name = "USER")]
    pub user: Option<String>,
    /// Changes nothing: no address or port is looked up
    #[arg(short = 'n', action = ArgAction::Count)]
    pub numbers: u8,
    /// Changes nothing: every frame is on its way to the file within a second
    #[arg(short = 'U')]
    pub unbuffered: bool,
    /// A pcap-filter(7) expression, its words joined: capture.filter. A first word that names a file is the config
    #[arg(value_name = "FILTER")]
    pub words: Vec<String>,
}
