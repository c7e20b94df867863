//! Arguments of the commands that read capture files: `rss`, `merge`, `extract`, `flows` and
//! `recover`.

use super::{ConfigArgs, seconds};
use crate::{failure::Failure, term::time::TimePoint};
use clap::builder::{
    NonEmptyStringValueParser, PossibleValuesParser, StringValueParser, TypedValueParser,
};
use std::{path::PathBuf, time::Duration};
use strum::VariantNames;
use wqcap_engine::{
    config::Slice,
    filter::{FileFilter, quoted_expression},
    frame::{NoCommunityId, check_community_id, dedup::MayDiffer},
};

/// Arguments of `wqcap rss`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Relevant keys: capture.queues, rss.hash, rss.key, rss.table_size, rss.weights.
A suggestion uses at most as many queues as are configured, or as this machine has CPUs.

Examples:
  wqcap rss trace.pcap --set capture.queues=8
  wqcap rss -c wqcap.toml monday-*.pcapng --suggest
  wqcap rss trace.pcap --set rss.hash=l3 --json | jq .skew
  zstd -dc trace.pcapng.zst | wqcap rss -")]
pub struct RssArgs {
    /// Capture files, pcap or pcapng, or directories of them; - is standard input. Files compressed
    /// with gzip, zstd or LZ4 are recognised
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Suggest the number of queues, the hash, the RSS key and the queue weights, with the reason
    /// for each
    #[arg(long)]
    pub suggest: bool,
    #[command(flatten)]
    pub key: KeyArgs,
    /// Print the prediction on stdout as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `wqcap merge`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The files of one queue in one directory, or below it, form one stream. Every other file is a separate \
stream.
Interfaces of one machine with the same name in one directory are one port, and become one interface \
of the output.
Files in a directory that wqcap merge or extract has written are skipped.
OUT gets its name when it is complete, and replaces an existing file.

Examples:
  wqcap merge -o all.pcapng /var/lib/wqcap
  wqcap merge -o tap.pcapng left/ right/
  wqcap merge -o a.pcapng --dedup 5ms --dedup-ignore mac,ttl near/ far/
  wqcap merge -o - cap/*.pcapng | tcpdump -nr -
  wqcap merge -o /dev/null --json a.pcap b.pcap | jq .gaps

Exit status: 1 also if OUT is complete except for records lost in a truncated or damaged input.")]
pub struct MergeArgs {
    /// Output capture file: pcap or pcapng by its extension, otherwise in the format of the inputs;
    /// - is standard output
    #[arg(short, long, value_name = "OUT")]
    pub out: PathBuf,
    /// Capture files to merge, or directories of capture files with any name; - is standard input
    #[arg(required = true, value_name = "IN")]
    pub inputs: Vec<PathBuf>,
    /// Write the TLS secrets of a key log (SSLKEYLOGFILE) into the output, so that programs that
    /// read it can decrypt; the output must be pcapng
    #[arg(long, value_name = "KEYLOG")]
    pub inject_secrets: Vec<PathBuf>,
    /// Leave out frames that repeat a frame of any input from less than TIME before, such as 5ms
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub dedup: Option<Duration>,
    /// Fields of the outermost headers that may differ between a frame and its repetition: mac
    /// (addresses), vlan (tags), ttl (or hop limit, and the checksum of the IPv4 header), checksum
    /// (of the IPv4 header, TCP, UDP and ICMP)
    #[arg(
        long,
        value_name = "WHAT,...",
        value_delimiter = ',',
        requires = "dedup",
        value_parser = PossibleValuesParser::new(MayDiffer::VARIANTS).try_map(|it| it.parse::<MayDiffer>())
    )]
    pub dedup_ignore: Vec<MayDiffer>,
    #[command(flatten)]
    pub key: KeyArgs,
    /// Print a report of the merge as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// Checks a Community ID in an option.
fn community_id(text: &str) -> Result<String, NoCommunityId> {
    check_community_id(text).map(|()| text.to_owned())
}

/// Option `--filter`: selection of frames by an expression.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct FilterArgs {
    /// Keep only frames that match this pcap-filter(7) expression [default: every frame]
    #[arg(
        long = "filter",
        value_name = "EXPR",
        default_value = "",
        hide_default_value = true
    )]
    pub expression: String,
}

impl FilterArgs {
    /// Compiles the expression of `--filter`.
    pub fn compile(&self) -> Result<FileFilter, Failure> {
        let it = &self.expression;
        FileFilter::compile(it)
            .map_err(|e| Failure::refused(format!("--filter {}: {e}", quoted_expression(it))))
    }
}

/// Options that name the key for encrypted capture files.
#[derive(Clone, Debug, clap::Args)]
pub struct KeyArgs {
    /// Decrypt capture files with the key in this file, as output.encrypt_key names it
    #[arg(long, value_name = "KEYFILE")]
    pub key: Option<PathBuf>,
    /// Decrypt capture files with the key that this shell command prints
    #[arg(long, value_name = "COMMAND", conflicts_with = "key")]
    pub key_command: Option<String>,
}

/// Arguments of `wqcap extract`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
T is one of
  2026-03-01T12:00:00Z, 2026-03-01T14:00:00.5+02:00   RFC 3339
  '2026-03-01 12:00:00', '2026-03-01', 12:00 (today)  local time
  1772366400, 1772366400.123456789                    seconds since 1970
  -10m, -1h30m, now                                   relative to now
--from is inclusive, --to is exclusive.
With --index, only the blocks of a file that may hold matching frames are read. Missing indexes are \
built first.
An index speeds up selection by time, and filters that join host, port and protocols by \"and\".

A store is filled by wqcap ship: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, \
file:///DIRECTORY, or a directory that contains blocks/dt=... directories. Frames of all sensors are \
extracted, and only blocks with frames of the given times are fetched. The region, endpoint and \
credentials of a bucket come from the environment, as for wqcap ship. The account must be allowed to \
list and get objects. Memory holds at most 256 MiB of blocks (or half a MiB for each queue of a \
sensor, if that is more) and 64 MiB of beginnings of files.
--ranges fetches the results of a query over blocks/ and flows/. --filter selects among their frames.

--anonymize replaces IP addresses so that common prefixes keep their length (Crypto-PAn), and MAC \
addresses. It covers all headers, tunnels, ARP, neighbour discovery and the packets that ICMP errors \
quote. The same key gives the same addresses. Checksums are corrected. Data that is not understood is \
cut off, and so is all payload, unless --slice payload:N keeps some of it. Names, comments, name \
resolution and decryption secrets of the files are left out. Times, lengths, ports and VLANs stay.

Examples:
  wqcap extract /var/lib/wqcap --from -10m -o found.pcapng \\
      --filter 'host 10.0.0.1 and tcp port 443'
  wqcap extract cap -o alert.pcapng \\
      --community-id '1:wCb3OG7yAFWelaUydu0D+125CLM='
  wqcap extract cap --mark 20260301T120000Z -o incident.pcapng
  wqcap extract cap --index idx --from '2026-03-01 12:00:00' \\
      --to '2026-03-01 12:05:00' -o - | tcpdump -nr -
  wqcap extract cap --anonymize key --from -10m -o share.pcapng
  wqcap extract cap --key-command 'pass show wqcap' -o plain.pcapng
  wqcap extract s3://captures/site1 --from -1h -o alert.pcapng \\
      --filter 'host 10.0.0.1 and tcp port 443'
  wqcap extract file:///srv/store --sensor tap1 --from -1h -o a.pcapng
  wqcap extract s3://captures/site1 --ranges found.csv -o found.pcapng
  wqcap extract https://sensor7:9465 --token-file token --from -10m \\
      --filter 'host 10.0.0.1' -o alert.pcapng

Exit status: 0 also if no frame matches: OUT then has none (--fail-if-empty makes it 1). 1 also if OUT \
is complete except for records lost in a truncated or damaged file, or in an object that is missing or \
has changed.")]
pub struct ExtractArgs {
    /// Directory of capture files (output.dir of the capture), including all directories below it;
    /// or a capture file, a store, or a sensor on which wqcap serve runs
    #[arg(value_name = "DIR|FILE|STORE|URL")]
    pub dir: PathBuf,
    /// Further sensors, whose frames are merged by time with those of the first one
    #[cfg(feature = "serve")]
    #[arg(value_name = "URL")]
    pub more: Vec<PathBuf>,
    /// Start of the extracted period, inclusive [default: the beginning]
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub from: Option<TimePoint>,
    /// End of the extracted period, exclusive [default: the end]
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub to: Option<TimePoint>,
    /// Use the times and the filter of this mark or pin, as `wqcap pin list` prints its id;
    /// --filter selects among its frames
    #[arg(long, value_name = "ID", conflicts_with_all = ["from", "to"])]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub mark: Option<String>,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Extract only the flow with this Community ID, as Zeek, Suricata and the flow records print
    /// it [default: every flow]
    #[arg(long, value_name = "ID", value_parser = community_id)]
    pub community_id: Option<String>,
    /// Replace addresses with this key, a file of 32 bytes or 64 hex digits, and cut off data that
    /// may hold more of them
    #[arg(long, value_name = "KEYFILE")]
    pub anonymize: Option<PathBuf>,
    /// Keep fewer headers, or some payload: l3, l4, or payload:N, as capture.slice does [default:
    /// every header and control message]
    #[arg(long, value_name = "SLICE", value_parser = StringValueParser::new().try_map(Slice::try_from), requires = "anonymize")]
    pub slice: Option<Slice>,
    /// Output capture file: pcap or pcapng by its extension, otherwise in the format of the inputs;
    /// - is standard output
    #[arg(short, long, value_name = "OUT")]
    pub out: PathBuf,
    /// Directory of indexes (output.index_dir of the capture) [default: files are selected by their
    /// first records]
    #[arg(long, value_name = "DIR")]
    pub index: Option<PathBuf>,
    #[cfg(feature = "serve")]
    #[command(flatten)]
    pub sensor: super::SensorArgs,
    #[cfg(feature = "ship")]
    #[command(flatten)]
    pub store: super::StoreArgs,
    #[command(flatten)]
    pub key: KeyArgs,
    /// Exit with status 1 if no frame matches [default: 0]
    #[arg(long)]
    pub fail_if_empty: bool,
    /// Print a report of the extraction as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `wqcap flows`.
#[cfg(feature = "flows")]
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The records are those of a capture with flows.dir, in the same Parquet files. Their times are the \
times of the frames in the capture files, which are read in time order.
Packets without an Ethernet header, such as Linux cooked ones, are counted with one.
Relevant keys: flows.active, flows.idle, flows.memory, flows.names, flows.interval.

Examples:
  wqcap flows old.pcap -o flows
  wqcap flows --names -o flows /var/lib/wqcap
  wqcap flows --set flows.idle=15s -o flows ring/ other.pcapng.gz

Exit status: 1 also if the records are complete except for frames lost in a truncated or damaged \
input.")]
pub struct FlowsArgs {
    /// Capture files, pcap or pcapng, or directories of them; - is standard input
    #[arg(required = true, value_name = "IN")]
    pub inputs: Vec<PathBuf>,
    /// Directory for the flow records, which is created if it is missing
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// Also read names, such as TLS server names, and write the tables of DNS and DHCP
    #[arg(long)]
    pub names: bool,
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub key: KeyArgs,
    /// Print a report on stdout as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `wqcap recover`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Truncates each .part file of a capture after its last complete record, and renames it to its final \
name. A file belongs to a capture if it has the default name, the mark of a capture in its pcap header, \
or wqcap's section header (pcapng).
Files of a running capture are skipped, and no file is overwritten.

Examples:
  wqcap recover /var/lib/wqcap
  wqcap recover . --json | jq '.files[] | select(.cut > 0)'

Exit status: 1 if a file could not be finished.")]
pub struct RecoverArgs {
    /// Directory of capture files (output.dir of the capture), including all directories below it
    pub dir: PathBuf,
    /// Print the outcome of each file on stdout as JSON
    #[arg(long)]
    pub json: bool,
}
