//! What a user may ask for: the whole TOML file as types, each key with its default and its range.
//!
//! Imports nothing of the engine but its error: a configuration means the same on every machine. What a device or a
//! machine makes of it is settled in [`crate::plan`].
//!
//! Invariant: a [`Config`] made by [`Config::parse`] or [`Config::with_overrides`] has no unknown key, and every value
//! is within the range that `docs/config.md` states.

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

pub use listen::Listen;
pub use problem::{ConfigError, Place, Problem};
pub use read::Reading;
pub use rule::{Mac, Net, Proto, RuleAction, RuleConfig};
pub use sections::{
    AnonymizeConfig, CaptureConfig, CutoffConfig, DeviceConfig, FlowsConfig, MetricsConfig,
    OutputConfig, PipelineConfig, ProcessConfig, RssConfig, ShipConfig, WqConfig,
};
pub use ship::{Sensor, ShipPackets};
pub use wqcap_core::settings::{
    Access, Clock, Compress, ControlConfig, CqeCompression, FileMode, Format, HashDepth, Idle,
    Keep, Mode, OnFull, OnLoss, OnPortDown, Order, PipelineMode, Receive, SampleBy, Sandbox, Size,
    Span, Timestamps, Vlan,
};
pub use wqcap_frame::Slice;

use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use toml::Value;

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which port to capture.
    pub device: DeviceConfig,
    /// How frames are received.
    pub capture: CaptureConfig,
    /// `mode = "filtered"`: what to take, as hardware rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rule: Vec<RuleConfig>,
    /// How much is kept of each flow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cutoff: Vec<CutoffConfig>,
    /// Creation flags of the WQs.
    pub wq: WqConfig,
    /// How frames are spread over queues.
    pub rss: RssConfig,
    /// Who works on a received frame.
    pub pipeline: PipelineConfig,
    /// Where frames go.
    #[serde(serialize_with = "effective")]
    pub output: OutputConfig,
    /// Flow records; absent: none.
    pub flows: Option<FlowsConfig>,
    /// Remote control; absent: none.
    pub control: Option<ControlConfig>,
    /// The metrics endpoint; absent: none.
    pub metrics: Option<MetricsConfig>,
    /// Where finished files are sent by `wqcap ship`; absent: nowhere.
    pub ship: Option<ShipConfig>,
    /// How that is anonymized; absent: not at all.
    pub anonymize: Option<AnonymizeConfig>,
    /// What the process may do.
    pub process: ProcessConfig,
}

impl Config {
    /// Reads a configuration file's text.
    ///
    /// # Errors
    /// Not TOML, unknown keys, wrong types, values out of range: all of them at once, each with its place.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::with_overrides(text, &[])
    }

    /// Reads a configuration file's text and then sets single keys, the last one winning: `("capture.queues", "4")`.
    /// A value is read as TOML; what is not TOML, or does not fit as such, is a string.
    ///
    /// # Errors
    /// As [`Config::parse`]; what is wrong with an override names its key and value.
    pub fn with_overrides(text: &str, overrides: &[(&str, &str)]) -> Result<Self, ConfigError> {
        Self::read(text, overrides)?.sound()
    }

    /// As [`Config::with_overrides`], and what is wrong does not hide the rest.
    ///
    /// # Errors
    /// The text is no TOML.
    pub fn read(text: &str, overrides: &[(&str, &str)]) -> Result<Reading, ConfigError> {
        read::read(text, overrides)
    }

    /// Defaults for a wire that ends: the run ends with it, and, if the wire waits for buffers (`lossless`), nothing is
    /// lost behind it either. What the user has set stays.
    pub fn for_finite_wire(&mut self, lossless: bool) {
        self.capture.on_port_down.get_or_insert(OnPortDown::Stop);
        if lossless {
            self.pipeline.on_full.get_or_insert(OnFull::Hold);
            self.output.on_full.get_or_insert(OnFull::Hold);
        }
    }

    /// Defaults for a wire of the software NIC that is a live interface: NIC, loop and whoever sends share the machine's
    /// cores. What the user has set stays.
    pub fn for_live_wire(&mut self) {
        self.capture.idle.get_or_insert(Idle::Sleep);
    }

    /// Whether live statistics are kept: unless `capture.statistics` says so itself, when there is somebody to ask for
    /// them.
    #[must_use]
    pub fn statistics(&self) -> bool {
        self.capture
            .statistics
            .unwrap_or(self.control.is_some() || self.metrics.is_some())
    }

    /// Writes the defaults out where a default depends on the run, so that [`Config::to_toml`] shows them.
    pub fn fill_in(&mut self) {
        self.pipeline.on_full.get_or_insert_default();
        self.output.on_full.get_or_insert_default();
        self.capture.on_port_down.get_or_insert_default();
        self.capture.idle.get_or_insert_default();
        self.capture.statistics = Some(self.statistics());
    }

    /// The configuration as TOML, every key that has a value and an effect.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|e| format!("# cannot be printed: {e}\n"))
    }
}

/// Of `[output]`, where frames are only counted: nothing that has no effect.
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
    fn what_is_printed_reads_back() {
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
        config.fill_in();
        assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once_with_its_place() {
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
            "line 3, column 1: capture.queus = 4: no such key; did you mean capture.queues?",
            "line 4, column 1: capture.idle = \"slep\": must be \"spin\" or \"sleep\"; did you mean \"sleep\"?",
            "line 5, column 1: capture.ring = 65536: must be 1 to 32768",
            "line 6, column 1: capture.promiscuous = 1: must be true or false",
            "line 8, column 1: rule 1: capture.mode = \"steal\" has no rules; set capture.mode = \"filtered\", or leave the \
             [[rule]]s out",
            &format!("line 11, column 1: rule 2: proto = \"tpc\": not a protocol; write {rule}"),
            "line 12, column 1: rule 2: vni = -1: must be a whole number (0 to 16777215)",
            "line 14, column 2: outptu: no such section; did you mean [output]?",
        ];
        assert_eq!(refused(text).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_follows_from_a_mistake_is_not_told() {
        let weights = "[rss]\nweights = [1, 2]\n[capture]\n";
        assert!(refused(&format!("{weights}queues = 3")).contains("one per queue"));
        assert_eq!(
            refused(&format!("{weights}queues = \"three\"")),
            "line 4, column 1: capture.queues = \"three\": must be a whole number (1 to 8192)"
        );
    }

    #[test]
    fn counting_takes_nothing_of_files() {
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
                ["rss.weights = [1]", "one per queue"],
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
    fn overrides_are_toml_or_else_text() {
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
    fn a_key_of_digits_is_still_text() {
        let digits = "1".repeat(80);
        assert_eq!(set(&[("rss.key", &digits)]).unwrap().rss.key, digits);
        let float = format!("1e1{}", "0".repeat(77));
        assert_eq!(set(&[("rss.key", &float)]).unwrap().rss.key, float);
    }

    #[test]
    fn overrides_are_refused_like_keys() {
        for (key, value, part) in [
            ("capture.queus", "4", "did you mean capture.queues?"),
            ("capture.queues", "four", "a whole number (1 to 8192)"),
            ("capture", "4", "write [capture]"),
            ("nothing.at.all", "1", "no such section"),
            (
                "capture.queues.x",
                "1",
                "no such key; capture.queues must be a whole number",
            ),
            ("capture..x", "1", "empty part"),
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
    fn overrides_win_over_the_text() {
        let text = "[capture]\nring = 100000\nqueues = 2\n";
        let config = Config::with_overrides(text, &[("capture.ring", "64")]).unwrap();
        assert_eq!((config.capture.ring, config.capture.queues), (64, Some(2)));
    }

    #[test]
    fn a_finite_wire_changes_defaults_alone() {
        let mut config = set(&[("output.on_full", "drop")]).unwrap();
        config.for_finite_wire(true);
        assert_eq!(config.output.on_full.unwrap_or_default(), OnFull::Drop);
        assert_eq!(config.pipeline.on_full.unwrap_or_default(), OnFull::Hold);
        assert_eq!(
            config.capture.on_port_down.unwrap_or_default(),
            OnPortDown::Stop
        );

        let mut lossy = Config::default();
        lossy.for_finite_wire(false);
        assert_eq!(lossy.output.on_full.unwrap_or_default(), OnFull::Drop);
        assert_eq!(
            lossy.capture.on_port_down.unwrap_or_default(),
            OnPortDown::Stop
        );
    }
}
