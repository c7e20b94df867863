//! Configuration of a capture: the TOML file as types, each key with its default and its range.
//!
//! Imports nothing of the engine but its error type: a configuration has the same meaning on every
//! machine. [`crate::plan`] resolves it for a device and a machine.
//!
//! Invariant: a [`Config`] made by [`Config::parse`] or [`Config::with_overrides`] has no unknown
//! key, and every value is within the range that `docs/config.md` states.

mod check;
mod cores;
mod listen;
mod misfit;
mod problem;
mod read;
#[cfg(test)]
mod reference;
mod rule;
mod sections;
mod ship;
mod value_error;

pub use listen::Listen;
pub use problem::{ConfigError, Problem, TextPosition};
pub use read::ParsedConfig;
pub use rule::{Mac, Net, Proto, RuleAction, RuleConfig};
pub use sections::{
    AnonymizeConfig, CaptureConfig, CutoffConfig, DeviceConfig, FlowsConfig, MetricsConfig,
    OutputConfig, PipelineConfig, PortConfig, ProcessConfig, RssConfig, ServeConfig, ShipConfig,
    WqConfig,
};
pub use ship::{Sensor, ShipPackets};
pub use value_error::ConfigValueError;
pub use wqcap_core::settings::{
    Access, Backend, Clock, Compress, ControlConfig, CqeCompression, Direction, FileMode, Format,
    HashDepth, Idle, Keep, Loops, Mode, OnFull, OnLoss, OnPortDown, Order, PipelineMode, Receive,
    SampleBy, Sandbox, SettingError, Size, Span, Timestamps, Vlan,
};
pub use wqcap_frame::Slice;

use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use toml::Value;

/// Complete configuration of a capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[device]`: RDMA device and port to capture.
    pub device: DeviceConfig,
    /// List `[[port]]` of captured ports, if there are several; empty: the port of
    /// [`Config::device`] is captured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub port: Vec<PortConfig>,
    /// `[capture]`: reception of frames, with mode, queues, rings and filter.
    pub capture: CaptureConfig,
    /// Hardware flow rules that select the frames for `mode = "filtered"`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rule: Vec<RuleConfig>,
    /// Limits on how much of each flow is kept (`[[cutoff]]`); later frames of the flow are left
    /// out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cutoff: Vec<CutoffConfig>,
    /// Creation flags of the receive WQs.
    pub wq: WqConfig,
    /// Distribution of received frames over the queues (RSS).
    pub rss: RssConfig,
    /// Threads that process received frames: the queue's loop or parser threads.
    pub pipeline: PipelineConfig,
    /// `[output]`: destination and format of captured frames.
    #[serde(serialize_with = "effective")]
    pub output: OutputConfig,
    /// Flow records; `None`: no flow records are written.
    pub flows: Option<FlowsConfig>,
    /// Remote control of the capture; `None`: no control service.
    pub control: Option<ControlConfig>,
    /// HTTP endpoint for metrics; `None`: no endpoint.
    pub metrics: Option<MetricsConfig>,
    /// Object store to which `wqcap ship` sends finished files; `None`: no store.
    pub ship: Option<ShipConfig>,
    /// Packets and states over HTTPS by `wqcap serve`; `None`: the defaults of that command.
    pub serve: Option<ServeConfig>,
    /// Anonymization of the files that `wqcap ship` sends; `None`: they are sent unchanged.
    pub anonymize: Option<AnonymizeConfig>,
    /// User and sandbox of the capture process.
    pub process: ProcessConfig,
}

impl OutputConfig {
    /// Default of `output.buffer` on an RDMA device.
    pub const BUFFER: Size = Size(256 << 20);
}

impl Config {
    /// Parses the text of a configuration file.
    ///
    /// # Errors
    /// Text that is not TOML, unknown keys, wrong types, values out of range. All problems are
    /// returned at once, each with its line and column.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::with_overrides(text, &[])
    }

    /// Parses the text of a configuration file, then sets the single keys of `overrides`, such as
    /// `("capture.queues", "4")`. A later override of a key replaces an earlier one. A value is
    /// parsed as TOML; if it is not TOML, or has the wrong type as TOML, it is read as a string.
    ///
    /// # Errors
    /// The errors of [`Config::parse`]. A problem of an override names its key and value.
    pub fn with_overrides(text: &str, overrides: &[(&str, &str)]) -> Result<Self, ConfigError> {
        Self::read(text, overrides)?.into_config()
    }

    /// Reads a configuration like [`Config::with_overrides`], but returns the valid keys together
    /// with all problems.
    ///
    /// # Errors
    /// The text is not TOML.
    pub fn read(text: &str, overrides: &[(&str, &str)]) -> Result<ParsedConfig, ConfigError> {
        read::read(text, overrides)
    }

    /// Sets configuration defaults for a finite wire (traffic source of the software NIC): the run
    /// ends when the wire ends. If the wire waits for buffers (`lossless`), the steps after
    /// reception wait too instead of dropping frames. Values set by the user stay.
    pub fn set_finite_wire_defaults(&mut self, lossless: bool) {
        self.capture.on_port_down.get_or_insert(OnPortDown::Stop);
        if lossless {
            self.pipeline.on_full.get_or_insert(OnFull::Hold);
            self.output.on_full.get_or_insert(OnFull::Hold);
        }
    }

    /// Sets configuration defaults for a software NIC on a live interface, where NIC, loops and
    /// senders share the machine's cores. Values set by the user stay.
    pub fn set_live_wire_defaults(&mut self) {
        self.capture.idle.get_or_insert(Idle::Sleep);
    }

    /// Returns `true` if the capture keeps live statistics: `capture.statistics` decides; if it is
    /// absent, statistics are kept if there is a section `[control]` or `[metrics]`.
    #[must_use]
    pub fn statistics(&self) -> bool {
        self.capture
            .statistics
            .unwrap_or(self.control.is_some() || self.metrics.is_some())
    }

    /// Returns one configuration for each captured port: a copy of this one, in which `[device]`
    /// selects that port.
    #[must_use]
    pub fn of_ports(&self) -> Vec<Self> {
        if self.port.is_empty() {
            return vec![self.clone()];
        }
        let of_port = |port: &PortConfig| Self {
            device: DeviceConfig {
                name: port.device.clone(),
                netdev: port.interface.clone(),
                backend: port.backend,
                port: port.port,
                on_loss: self.device.on_loss,
            },
            port: Vec::new(),
            ..self.clone()
        };
        self.port.iter().map(of_port).collect()
    }

    /// Sets the optional configuration keys whose default depends on other keys or the run, so that
    /// [`Config::to_toml`] prints them.
    pub fn set_defaults(&mut self) {
        self.pipeline.on_full.get_or_insert_default();
        self.output.on_full.get_or_insert_default();
        self.output.buffer.get_or_insert(OutputConfig::BUFFER);
        self.capture.on_port_down.get_or_insert_default();
        self.capture.idle.get_or_insert_default();
        self.capture.statistics = Some(self.statistics());
    }

    /// Returns the configuration as TOML: every key that has a value and an effect.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|e| format!("# cannot print the configuration: {e}\n"))
    }
}

/// Serializes the section `[output]`; with `format = "none"` only the keys that have an effect
/// without files.
fn effective<S: Serializer>(output: &OutputConfig, serializer: S) -> Result<S::Ok, S::Error> {
    match output.format {
        Format::None => BTreeMap::from([
            (read::FORMAT, Value::from(<&str>::from(output.format))),
            (read::VLAN, Value::from(<&str>::from(output.vlan))),
        ])
        .serialize(serializer),
        Format::Pcap | Format::Pcapng => output.serialize(serializer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn refused(text: &str) -> String {
        Config::parse(text).expect_err(text).to_string()
    }

    fn set(overrides: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::with_overrides("", overrides)
    }

    #[test]
    fn empty_text_is_the_defaults() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        assert_eq!(check::check(&Config::default()), []);
    }

    #[test]
    fn sections_that_are_present_have_their_defaults() {
        let config = Config::parse("[flows]\n[control]\n[metrics]\n[ship]\n").unwrap();
        assert_eq!(config.flows, Some(FlowsConfig::default()));
        assert_eq!(config.ship, Some(ShipConfig::default()));
        assert_eq!(config.control, Some(ControlConfig::default()));
        assert_eq!(config.metrics, Some(MetricsConfig::default()));
    }

    #[test]
    fn printed_configuration_parses_to_the_same_value() {
        let text = "
            [device]
            name = \"mlx5_0\"
            [capture]
            mode = \"filtered\"
            cores = [1, 2]
            slice = \"payload:64\"
            dedup = \"5ms\"
            dedup_ignore = [\"mac\", \"ttl\"]
            [[rule]]
            proto = 89
            [[cutoff]]
            filter = \"port 53\"
            [[cutoff]]
            bytes = \"10KiB\"
            packets = 20
            [output]
            rotate_size = \"4GiB\"
            compress = \"zstd:3\"
            [flows]
            [control]
            rdma = \"[::1]:7471\"
            [metrics]";
        let mut config = Config::parse(text).unwrap();
        assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
        config.set_defaults();
        assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
    }

    #[test]
    fn all_problems_are_reported_at_once_with_line_and_column() {
        let text = "
[capture]
queus = 4
idle = \"slep\"
ring = 65536
promiscuous = 1

[[rule]]
vlan = 4
[[rule]]
proto = \"tpc\"
vni = -1

[outptu]
dir = \"/nowhere\"
";
        let rule = "one of icmp, tcp, udp, gre, esp, ah, icmp6, sctp, or a number";
        let expected = [
            "line 3, column 1: capture.queus = 4: unknown key; did you mean capture.queues?",
            "line 4, column 1: capture.idle = \"slep\": must be \"spin\" or \"sleep\"; did you mean \"sleep\"?",
            "line 5, column 1: capture.ring = 65536: must be 1 to 32768",
            "line 6, column 1: capture.promiscuous = 1: must be true or false",
            "line 8, column 1: rule 1: capture.mode = \"steal\" uses no [[rule]] sections; set capture.mode = \"filtered\", or \
             remove them",
            &format!("line 11, column 1: rule 2: proto = \"tpc\": not a protocol; write {rule}"),
            "line 12, column 1: rule 2: vni = -1: must be a whole number (0 to 16777215)",
            "line 14, column 2: outptu: unknown section; did you mean [output]?",
        ];
        assert_eq!(refused(text).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn of_many_problems_the_first_are_listed_and_the_others_counted() {
        const COUNT: usize = 200_000;
        let all = |line: &dyn Fn(usize) -> String| (0..COUNT).map(line).collect::<String>();
        let pairs = all(&|i| format!("k{i} = 1, "));
        let texts = [
            format!("[capture]\n{}", all(&|i| format!("k{i} = 1\n"))),
            format!("capture = {{ {} }}\n", pairs.trim_end_matches(", ")),
            all(&|i| format!("[s{i}]\n")),
            all(&|i| format!("[[rule]]\nk{i} = 1\n")),
        ];
        for text in texts {
            let started = std::time::Instant::now();
            let error = Config::parse(&text).expect_err("unknown keys");
            // Each key took as long as the text before it, and the search for similar ones.
            assert!(started.elapsed().as_secs() < 60, "{:.20}", text);
            let lines: Vec<_> = error.problems().iter().map(ToString::to_string).collect();
            let [first @ .., last] = &lines[..] else {
                panic!("no problems");
            };
            assert_eq!(first.len(), 100);
            assert!(last.contains("199900 further problems"), "{last}");
            for (i, line) in first.iter().enumerate() {
                let names = ["k", "s"].map(|it| format!("{it}{i}"));
                let mut words = line.split(|c: char| !c.is_alphanumeric());
                assert!(
                    words.any(|it| names.iter().any(|name| name == it)),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn consequences_of_a_mistake_are_not_reported() {
        let weights = "[rss]\nweights = [1, 2]\n[capture]\n";
        assert!(refused(&format!("{weights}queues = 3")).contains("one weight per queue"));
        assert_eq!(
            refused(&format!("{weights}queues = \"three\"")),
            "line 4, column 1: capture.queues = \"three\": must be a whole number (1 to 8192)"
        );
    }

    #[test]
    fn format_none_refuses_keys_of_files() {
        let text = "[output]\nformat = \"none\"\nkeep_files = 3\nvlan = \"lost\"\n";
        assert!(
            refused(text).starts_with("line 3, column 1: output.keep_files = 3: has no effect")
        );
        let counting =
            Config::with_overrides("[output]\nkeep_files = 3\n", &[("output.format", "none")])
                .unwrap();
        assert_eq!(counting.output.keep_files, 0);
        assert_eq!(Config::parse(&counting.to_toml()).unwrap(), counting);
        let after = [("output.format", "none"), ("output.dir", "x")];
        let message = set(&after).unwrap_err().to_string();
        assert!(
            message.starts_with("output.dir = x: has no effect"),
            "{message}"
        );
    }

    #[test]
    fn ranges_name_key_value_and_limit() {
        for (text, parts) in [
            (
                "[capture]\nring = 65536",
                ["capture.ring = 65536", "1 to 32768"],
            ),
            ("[capture]\nqueues = 0", ["capture.queues = 0", "1 to 8192"]),
            (
                "[capture]\nbuffer = 32",
                ["capture.buffer = 32", "64 to 256KiB"],
            ),
            ("[capture]\ncores = []", ["capture.cores", "at least one"]),
            ("[device]\nport = 0", ["device.port = 0", "1 to 254"]),
            (
                "[device]\nname = \"a\"\nnetdev = \"b\"",
                ["device.netdev", "device.name"],
            ),
            ("[rss]\nkey = \"6d5a\"", ["rss.key", "80 hex digits"]),
            (
                "[rss]\ntable_size = 100",
                ["rss.table_size = 100", "power of two"],
            ),
            (
                "[rss]\nweights = [1]\n[capture]\nqueues = 2",
                ["rss.weights = [1]", "one weight per queue"],
            ),
            (
                "[rss]\ntable_size = 2\n[capture]\nqueues = 4",
                ["rss.table_size", "capture.queues"],
            ),
            (
                "[output]\nbuffer = 1",
                ["output.buffer = 1", "64KiB to 1TiB"],
            ),
            (
                "[output]\nrotate_time = \"1ms\"",
                ["output.rotate_time = \"1ms\"", "at least 100ms"],
            ),
            ("[output]\ndir = \"\"", ["output.dir", "format = \"none\""]),
        ] {
            let message = refused(text);
            for part in parts {
                assert!(message.contains(part), "{message:?} lacks {part:?}");
            }
        }
    }

    #[test]
    fn overrides_are_parsed_as_toml_or_taken_as_text() {
        let config = set(&[
            ("capture.queues", "4"),
            ("capture.cores", "[2, 3]"),
            ("output.dir", "/tmp/x"),
            ("output.rotate_size", "4GiB"),
            ("output.format", "pcap"),
            ("device.name", "7"),
            ("metrics", "{}"),
            ("capture.queues", "8"),
        ])
        .unwrap();
        assert_eq!(config.capture.queues, Some(8));
        assert_eq!(config.capture.cores, Some(vec![2, 3]));
        assert_eq!(config.output.dir, PathBuf::from("/tmp/x"));
        assert_eq!(config.output.rotate_size, Size(4 << 30));
        assert_eq!(config.output.format, Format::Pcap);
        assert_eq!(config.device.name.as_deref(), Some("7"));
        assert!(config.metrics.is_some());
    }

    #[test]
    fn an_rss_key_of_digits_is_text() {
        let digits = "1".repeat(80);
        assert_eq!(set(&[("rss.key", &digits)]).unwrap().rss.key, digits);
        let float = format!("1e1{}", "0".repeat(77));
        assert_eq!(set(&[("rss.key", &float)]).unwrap().rss.key, float);
    }

    #[test]
    fn invalid_overrides_are_refused() {
        for (key, value, part) in [
            ("capture.queus", "4", "did you mean capture.queues?"),
            ("capture.queues", "four", "a whole number (1 to 8192)"),
            ("capture", "4", "write [capture]"),
            ("nothing.at.all", "1", "unknown section"),
            (
                "capture.queues.x",
                "1",
                "unknown key; capture.queues must be a whole number",
            ),
            ("capture..x", "1", "empty part"),
            (&"a.".repeat(100_000), "1", "empty part"),
            (&["a"; 100_000].join("."), "1", "too many parts"),
        ] {
            let message = set(&[(key, value)]).expect_err(key).to_string();
            assert!(
                message.starts_with(&format!("{key} = {value}")),
                "{message}"
            );
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
    }

    #[test]
    fn overrides_replace_values_of_the_text() {
        let text = "[capture]\nring = 100000\nqueues = 2\n";
        let config = Config::with_overrides(text, &[("capture.ring", "64")]).unwrap();
        assert_eq!((config.capture.ring, config.capture.queues), (64, Some(2)));
    }

    #[test]
    fn a_finite_wire_changes_only_defaults() {
        let mut config = set(&[("output.on_full", "drop")]).unwrap();
        config.set_finite_wire_defaults(true);
        assert_eq!(config.output.on_full.unwrap_or_default(), OnFull::Drop);
        assert_eq!(config.pipeline.on_full.unwrap_or_default(), OnFull::Hold);
        assert_eq!(
            config.capture.on_port_down.unwrap_or_default(),
            OnPortDown::Stop
        );

        let mut lossy = Config::default();
        lossy.set_finite_wire_defaults(false);
        assert_eq!(lossy.output.on_full.unwrap_or_default(), OnFull::Drop);
        assert_eq!(
            lossy.capture.on_port_down.unwrap_or_default(),
            OnPortDown::Stop
        );
    }
}
