//! Ranges of the keys that hold on every machine, and keys that exclude each other. The plan checks
//! the limits of the device.

use super::{
    Config, DeviceConfig, Format, Mode, OnLoss, OutputConfig, Problem, RssConfig, RuleConfig, Size,
    Span,
};
use crate::text::counted;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use wqcap_files::name::NameTemplate;

/// Largest number of WRs in a receive ring: the RQ's producer index has 16 bits, and libmlx5 rounds
/// a ring up to a power of two.
const MAX_RING: u64 = 32_768;
/// Largest length of a frame that pcap readers accept (libpcap's `MAXIMUM_SNAPLEN`).
const MAX_FRAME: u64 = 262_144;
/// Largest `output.comment` in bytes; it must fit into the header of a capture file.
const MOST_COMMENT: usize = 1000;
/// Maximum length of the label of a captured port (`label` of `[[port]]`) in bytes.
const MOST_LABEL: usize = 64;
/// Largest number of `[[cutoff]]` sections, which limit how much of a flow is kept; all of them may
/// be tested against the first frame of a flow.
const MOST_CUTOFFS: usize = 1000;
/// Largest number of entries of the RSS indirection table on mlx5: 2^13.
const MAX_TABLE: u64 = 1 << 13;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Allowed range of the values of one configuration key.
struct KeyRange {
    key: &'static str,
    unit: Unit,
    least: u64,
    most: u64,
    /// Reads the configuration key's value in its unit; `None`: the key is not set.
    of: fn(&Config) -> Option<u64>,
}

/// Unit of a configuration key's range, which selects how its limits are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Number,
    Bytes,
    /// Range of a time in nanoseconds.
    Time,
    /// Range of a number of bytes; the value 0 means never.
    BytesOrNever,
    /// Range of a time in nanoseconds; the value 0 means never.
    TimeOrNever,
}

/// Value of a configuration key that has a range, in the range's unit; `None`: the key is not set.
trait Amount {
    fn amount(self) -> Option<u64>;
}

macro_rules! amounts {
    ($($type:ty: $it:ident => $amount:expr;)*) => {$(
        impl Amount for $type {
            fn amount(self) -> Option<u64> {
                let $it = self;
                Some($amount)
            }
        }
    )*};
}

amounts! {
    u8: it => it.into();
    u16: it => it.into();
    u32: it => it.into();
    Size: it => it.0;
    Span: it => it.nanos();
    Duration: it => Span(it).nanos();
}

impl<T: Amount> Amount for Option<T> {
    fn amount(self) -> Option<u64> {
        self?.amount()
    }
}

macro_rules! ranges {
    ($it:ident: $($key:literal: $unit:ident $least:expr, $most:expr => $value:expr;)*) => {
        const RANGES: &[KeyRange] = &[$(KeyRange {
            key: $key,
            unit: Unit::$unit,
            least: $least,
            most: $most,
            of: |$it| $value.amount(),
        }),*];
    };
}

ranges! {
    it:
    "device.port": Number 1, 254 => it.device.port;
    "capture.queues": Number 1, MAX_TABLE => it.capture.queues;
    "capture.ring": Number 1, MAX_RING => it.capture.ring;
    "capture.buffer": Bytes 64, MAX_FRAME => it.capture.buffer;
    "capture.max_sge": Number 1, 32 => it.capture.max_sge;
    "capture.snaplen": Bytes 0, MAX_FRAME => it.capture.snaplen;
    "capture.sample": Number 1, u32::MAX as u64 => it.capture.sample;
    "capture.cutoff_idle": Time SECOND / 10, DAY => it.capture.cutoff_idle;
    "capture.cutoff_memory": Bytes 64 * KIB, TIB => it.capture.cutoff_memory;
    "pipeline.parsers_per_queue": Number 1, 64 => it.pipeline.parsers_per_queue;
    "rss.table_size": Number 1, MAX_TABLE => it.rss.table_size;
    "output.buffer": Bytes 64 * KIB, TIB => it.output.buffer;
    "output.rotate_size": BytesOrNever 64 * KIB, u64::MAX => it.output.rotate_size;
    "output.rotate_time": TimeOrNever SECOND / 10, u64::MAX => it.output.rotate_time;
    "flows.interval": Time SECOND, DAY => it.flows.as_ref()?.interval;
    "flows.active": Time SECOND / 10, DAY => it.flows.as_ref()?.active;
    "flows.idle": Time SECOND / 10, DAY => it.flows.as_ref()?.idle;
    "flows.memory": Bytes 64 * KIB, TIB => it.flows.as_ref()?.memory;
    "ship.part_size": Bytes 5 * MIB, GIB => it.ship.as_ref()?.part_size;
    "ship.concurrency": Number 1, 64 => it.ship.as_ref()?.concurrency;
    "ship.bandwidth": Bytes 64 * KIB, TIB => it.ship.as_ref()?.bandwidth;
    "serve.max_requests": Number 1, 256 => it.serve.as_ref()?.max_requests;
    "serve.max_bytes": Bytes MIB, TIB => it.serve.as_ref()?.max_bytes;
    "control.srq": Number 1, 1 << 16 => it.control.as_ref()?.srq;
    "control.srq_max": Number 1, 1 << 16 => it.control.as_ref()?.srq_max;
    "control.srq_calm": Time SECOND, DAY => it.control.as_ref()?.srq_calm;
}

impl KeyRange {
    /// Returns the range of a configuration key as text, for messages.
    fn text(&self) -> String {
        let [least, most] = [self.least, self.most].map(|it| self.unit.format(it));
        if self.unit.has_never() {
            format!("0 (never) or at least {least}")
        } else {
            format!("{least} to {most}")
        }
    }

    fn holds(&self, value: u64) -> bool {
        (self.unit.has_never() && value == 0) || (self.least..=self.most).contains(&value)
    }

    fn check(&self, config: &Config) -> Option<Problem> {
        let value = (self.of)(config).filter(|it| !self.holds(*it))?;
        let problem = format!("must be {}", self.text());
        let shown = match self.unit.format(value) {
            text if text.bytes().all(|it| it.is_ascii_digit()) => text,
            text => format!("\"{text}\""),
        };
        Some(Problem::new(self.key, shown, problem))
    }
}

impl Unit {
    fn has_never(self) -> bool {
        [Self::BytesOrNever, Self::TimeOrNever].contains(&self)
    }

    fn format(self, value: u64) -> String {
        match self {
            Self::Number => value.to_string(),
            Self::Bytes | Self::BytesOrNever => Size(value).to_string(),
            Self::Time | Self::TimeOrNever => Span(Duration::from_nanos(value)).to_string(),
        }
    }
}

/// Field of a configured flow rule: its name, its largest value, and the function that reads it.
type RuleField = (&'static str, u32, fn(&RuleConfig) -> Option<u32>);

/// Fields of a configured flow rule that have fewer bits than their Rust types.
const RULE_FIELDS: [RuleField; 2] = [
    ("vlan", (1 << 12) - 1, |it| it.vlan.map(Into::into)),
    ("vni", (1 << 24) - 1, |it| it.vni),
];

/// Returns the range of a configuration key as text; `None`: only its type limits it.
pub(super) fn range_of(key: &str) -> Option<String> {
    if let Some((_, field)) = key.split_once(": ") {
        let field = RULE_FIELDS.iter().find(|it| it.0 == field);
        return field.map(|(_, most, _)| format!("0 to {most}"));
    }
    RANGES.iter().find(|it| it.key == key).map(KeyRange::text)
}

/// Returns a problem for each configuration value out of range and for keys that exclude each
/// other.
pub(super) fn check(config: &Config) -> Vec<Problem> {
    let mut found: Vec<_> = RANGES.iter().filter_map(|it| it.check(config)).collect();
    device(config, &mut found);
    ports(config, &mut found);
    capture(config, &mut found);
    cutoff(config, &mut found);
    rss(config, &mut found);
    output(config, &mut found);
    ship(config, &mut found);
    serve(config, &mut found);
    found
}

fn device(Config { device, output, .. }: &Config, found: &mut Vec<Problem>) {
    if device.on_loss == OnLoss::Retry && output.is_stdout() && output.format == Format::Pcap {
        let problem = "output.stdout with output.format = \"pcap\" cannot continue after a loss, since a pcap stream has one \
                       header; choose pcapng, which begins a new section";
        found.push(
            Problem::new("device.on_loss", "\"retry\"", problem).involving(&[
                "output.stdout",
                "output.format",
                "output.dir",
            ]),
        );
    }
    if let (Some(name), Some(netdev)) = (&device.name, &device.netdev) {
        let problem = format!(
            "device.netdev and device.name = {name:?} are both set; set only one of the two keys"
        );
        let value = format!("{netdev:?}");
        found.push(Problem::new("device.netdev", value, problem).involving(&["device.name"]));
    }
}

/// Maximum number of ports that one run captures.
const MOST_PORTS: usize = 64;

/// Checks that each `[[port]]` names one interface or device, and that no port is named twice.
fn ports(config: &Config, found: &mut Vec<Problem>) {
    let Config { device, port, .. } = config;
    let usual = DeviceConfig {
        on_loss: device.on_loss,
        ..DeviceConfig::default()
    };
    if !port.is_empty() && *device != usual {
        let problem =
            "[[port]] names the captured ports; leave the keys of [device] out, except on_loss";
        found
            .push(Problem::new("port 1", "", problem).involving(&["device.name", "device.netdev"]));
    }
    if port.len() > MOST_PORTS {
        let problem =
            format!("the number of [[port]] sections is limited to {MOST_PORTS}; remove sections");
        return found.push(Problem::new("port", port.len().to_string(), problem));
    }
    for (i, it) in port.iter().enumerate() {
        let number = i + 1;
        if it.interface.is_some() == it.device.is_some() {
            let problem = "set either interface or device";
            found.push(Problem::new(format!("port {number}"), "", problem));
        }
        if it.label().len() > MOST_LABEL {
            let key = format!("port {number}: label");
            let problem =
                format!("the label of a port can have at most {MOST_LABEL} bytes; shorten it");
            found.push(Problem::new(key, format!("{:?}", it.label()), problem));
        }
        for (j, other) in port[..i].iter().enumerate() {
            let other_number = j + 1;
            if (&it.interface, &it.device, it.port) == (&other.interface, &other.device, other.port)
            {
                let key = format!("port {number}");
                let problem = format!(
                    "port {other_number} is the same port of the machine; remove one of the two sections"
                );
                found.push(Problem::new(key, "", problem));
            } else if it.label() == other.label() {
                let key = format!("port {number}: label");
                let problem = format!("port {other_number} has this label too; choose another one");
                found.push(Problem::new(key, format!("{:?}", it.label()), problem));
            }
        }
    }
}

fn capture(Config { capture, rule, .. }: &Config, found: &mut Vec<Problem>) {
    if capture.cores.as_ref().is_some_and(Vec::is_empty) {
        let problem =
            "name at least one CPU, or leave the key out for the CPUs of the NIC's NUMA node";
        found.push(Problem::new("capture.cores", "[]", problem));
    }
    power_of_two("capture.ring", capture.ring, found);
    if capture.mode != Mode::Filtered && !rule.is_empty() {
        let problem = format!(
            "capture.mode = \"{}\" uses no [[rule]] sections; set capture.mode = \"filtered\", or remove them",
            capture.mode
        );
        found.push(Problem::new("rule 1", "", problem).involving(&["capture.mode"]));
    }
    for (number, rule) in (1..).zip(rule) {
        for (field, most, of) in RULE_FIELDS {
            if let Some(value) = of(rule).filter(|it| *it > most) {
                let key = format!("rule {number}: {field}");
                found.push(Problem::new(key, value, format!("must be 0 to {most}")));
            }
        }
    }
}

fn cutoff(Config { cutoff, .. }: &Config, found: &mut Vec<Problem>) {
    if cutoff.len() > MOST_CUTOFFS {
        let key = format!("cutoff {}", MOST_CUTOFFS + 1);
        found.push(Problem::new(
            key,
            "",
            format!(
                "the number of [[cutoff]] sections is limited to {MOST_CUTOFFS}; remove sections"
            ),
        ));
    }
    let general = cutoff.iter().position(|it| it.filter.trim().is_empty());
    if let Some(general) = general.filter(|it| it + 1 < cutoff.len()) {
        let problem = format!(
            "this cutoff is never reached: cutoff {} has no filter and matches every flow; put the one without a filter last",
            general + 1
        );
        found.push(Problem::new(format!("cutoff {}", general + 2), "", problem));
    }
}

fn rss(Config { rss, capture, .. }: &Config, found: &mut Vec<Problem>) {
    let hex = rss.key.len() == 80 && rss.key.bytes().all(|b| b.is_ascii_hexdigit());
    if !hex && !["symmetric", "microsoft"].contains(&rss.key.as_str()) {
        let problem = "must be \"symmetric\", \"microsoft\" or exactly 80 hex digits (40 bytes)";
        found.push(Problem::new("rss.key", format!("{:?}", rss.key), problem));
    }
    power_of_two("rss.table_size", rss.table_size, found);
    // The plan checks the default, which does not apply to ordinary interfaces.
    if let Some(queues) = capture.queues
        && u32::from(queues) > rss.table_size
        && rss.table_size != RssConfig::default().table_size
    {
        let problem = format!(
            "the indirection table has fewer entries than capture.queues = {queues}: some queues would never get a frame"
        );
        let problem = Problem::new("rss.table_size", rss.table_size, problem);
        found.push(problem.involving(&["capture.queues"]));
    }
    weights(&rss.weights, capture.queues, found);
}

fn weights(weights: &[u32], queues: Option<u16>, found: &mut Vec<Problem>) {
    let mut refuse = |problem: String| {
        let problem = Problem::new("rss.weights", format!("{weights:?}"), problem);
        found.push(problem.involving(&["capture.queues"]));
    };
    if weights.is_empty() {
        return;
    }
    if weights.iter().all(|w| *w == 0) {
        refuse("at least one weight must be above 0".into());
    }
    if let Some(queues) = queues.filter(|it| weights.len() != usize::from(*it)) {
        let count = weights.len();
        refuse(format!(
            "the list has {}, but capture.queues = {queues}; write one weight per queue",
            counted(count, "weight")
        ));
    }
}

fn output(config: &Config, found: &mut Vec<Problem>) {
    let output = &config.output;
    if output.dir.as_os_str().is_empty() && output.format != Format::None {
        let problem = "name a directory, or set output.format = \"none\" to count frames only";
        found.push(Problem::new("output.dir", "\"\"", problem).involving(&["output.format"]));
    } else if output.index_dir == output.dir {
        let value = format!("{:?}", output.index_dir);
        let problem = "output.dir holds capture files only: name another directory";
        found.push(Problem::new("output.index_dir", value, problem).involving(&["output.dir"]));
    }
    if !output.encrypt_key.as_os_str().is_empty() && !output.encrypt_key_command.is_empty() {
        let value = format!("{:?}", output.encrypt_key_command);
        let problem = "output.encrypt_key names the key already; leave one of the two out";
        found.push(
            Problem::new("output.encrypt_key_command", value, problem)
                .involving(&["output.encrypt_key"]),
        );
    }
    let comment = output.comment.len();
    if comment > MOST_COMMENT {
        let problem = format!(
            "the comment of the capture files has {comment} bytes; at most {MOST_COMMENT} are allowed"
        );
        found.push(Problem::new("output.comment", "\"...\"", problem));
    }
    if let Some(problem) = name(output) {
        let value = format!("{:?}", output.name);
        found.push(Problem::new("output.name", value, problem).involving(&["output.order"]));
    }
    if output.is_stdout() {
        stdout(output, found);
    }
    if let Some(control) = config.control.as_ref().filter(|it| it.srq_max < it.srq) {
        let problem = format!(
            "the maximum size of the control service's SRQ must be at least control.srq = {}",
            control.srq
        );
        found.push(
            Problem::new("control.srq_max", control.srq_max, problem).involving(&["control.srq"]),
        );
    }
}

fn ship(config: &Config, found: &mut Vec<Problem>) {
    if let Some(it) = config.anonymize.as_ref().filter(|_| config.ship.is_none()) {
        let value = format!("{:?}", it.key.clone().unwrap_or_default());
        let problem = "[anonymize] changes only the files that [ship] sends, never a capture's own: set [ship], or leave [anonymize] out";
        found.push(Problem::new("anonymize.key", value, problem).involving(&["ship"]));
    }
    let Some(ship) = &config.ship else { return };
    if config.output.name != OutputConfig::default().name {
        let value = format!("{:?}", config.output.name);
        let problem =
            "[ship] recognizes capture files by their default names; leave output.name out";
        found.push(Problem::new("output.name", value, problem).involving(&["ship"]));
    }
    if let Some(source) = config.output.key_source() {
        let problem = "wqcap ship does not open encrypted files: leave this key or [ship] out, and let the store encrypt";
        found.push(Problem::new(source.config_key(), source, problem).involving(&["ship"]));
    }
    let store = ship.store.as_deref();
    let store = store.and_then(|it| it.strip_prefix("file://"));
    let flows = config.flows.as_ref().map(|it| &it.dir);
    for (key, dir) in [
        ("output.dir", Some(&config.output.dir)),
        ("output.index_dir", Some(&config.output.index_dir)),
        ("flows.dir", flows),
    ] {
        let mut refuse = |place: &'static str, value: String| {
            let problem = format!("this directory is also that of {key}; name another directory");
            found.push(Problem::new(place, value, problem).involving(&[key]));
        };
        let Some(dir) = dir else { continue };
        if *dir == ship.journal {
            refuse("ship.journal", format!("{:?}", ship.journal));
        }
        if let Some(store) = store.filter(|it| Path::new(it) == dir) {
            refuse("ship.store", format!("\"file://{store}\""));
        }
    }
}

/// Checks that the keys of `[serve]` for TLS, which name files, are set together.
fn serve(config: &Config, found: &mut Vec<Problem>) {
    let Some(it) = &config.serve else { return };
    let mut need = |key: &'static str, value: &Option<PathBuf>, others: &[&'static str]| {
        if let Some(path) = value {
            let problem = format!("TLS needs {} too", others.join(" and "));
            let value = format!("{path:?}");
            found.push(Problem::new(key, value, problem).involving(others));
        }
    };
    match (&it.tls_cert, &it.tls_key) {
        (Some(_), Some(_)) => {}
        (None, None) => need(
            "serve.client_ca",
            &it.client_ca,
            &["serve.tls_cert", "serve.tls_key"],
        ),
        (cert @ Some(_), None) => need("serve.tls_cert", cert, &["serve.tls_key"]),
        (None, key) => need("serve.tls_key", key, &["serve.tls_cert"]),
    }
}

fn name(output: &OutputConfig) -> Option<String> {
    let template = match output.name.parse::<NameTemplate>() {
        Ok(template) => template,
        Err(e) => return Some(e.to_string()),
    };
    let per_queue = !output.is_ordered();
    (per_queue && !template.distinguishes_queues()).then(|| {
        "there is a file for each queue: put {queue} into the name, or set output.order = \"time\"".into()
    })
}

/// Checks that no configuration key that needs files is set together with `output.stdout`.
fn stdout(output: &OutputConfig, found: &mut Vec<Problem>) {
    let files = OutputConfig::default();
    macro_rules! changed {
        ($($key:ident)*) => {
            [$((concat!("output.", stringify!($key)), output.$key != files.$key)),*]
        };
    }
    let keys = changed! {
        rotate_size rotate_time rotate_frames name keep keep_files keep_age
        keep_free compress index_dir hook encrypt_key encrypt_key_command
    };
    if output.format == Format::None {
        let problem = "output.format = \"none\" only counts frames; choose pcap or pcapng";
        found.push(Problem::new("output.stdout", true, problem).involving(&["output.format"]));
    }
    for (key, _) in keys.iter().filter(|(_, set)| *set) {
        let problem = format!(
            "{key} applies only to files, and stdout is not a file; leave one of the two keys out"
        );
        found.push(Problem::new("output.stdout", true, problem).involving(&[*key]));
    }
}

/// Checks that the value of a configuration key is a power of two, if it is within its range.
fn power_of_two(key: &'static str, value: u32, found: &mut Vec<Problem>) {
    let range = RANGES.iter().find(|it| it.key == key);
    if !value.is_power_of_two() && range.is_some_and(|it| it.holds(value.into())) {
        let nearest = value.next_power_of_two();
        let problem = format!("the value must be a power of two, such as {nearest}");
        found.push(Problem::new(key, value, problem));
    }
}
