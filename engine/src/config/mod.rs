//! What a user may ask for: the whole TOML file as types, each key with its default and its range.
//!
//! Imports nothing of the engine but its error: a configuration means the same on every machine. What a device or a
//! machine makes of it is settled in [`crate::plan`].
//!
//! Invariant: a [`Config`] made by [`Config::parse`] or [`Config::with_overrides`] has no unknown key, and every value
//! is within the range that `docs/config.md` states.

mod check;
mod keep;
#[cfg(test)]
mod reference;
mod rule;
mod sections;
mod size;
mod span;
mod words;

pub use keep::Keep;
pub use rule::{Mac, Net, Proto, RuleAction, RuleConfig};
pub use sections::{
    CaptureConfig, Compress, DeviceConfig, FlowsConfig, MetricsConfig, OutputConfig,
    PipelineConfig, ProcessConfig, RssConfig, Slice, WqConfig,
};
pub use size::Size;
pub use span::Span;
pub use words::{
    Access, Clock, CqeCompression, Format, HashDepth, Idle, Mode, OnFull, OnLoss, OnPortDown,
    Order, PipelineMode, Receive, SampleBy, Sandbox, Timestamps, Vlan,
};
pub use wqcap_control::server::{ControlConfig, FileMode};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

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
    /// Creation flags of the WQs.
    pub wq: WqConfig,
    /// How frames are spread over queues.
    pub rss: RssConfig,
    /// Who works on a received frame.
    pub pipeline: PipelineConfig,
    /// Where frames go.
    pub output: OutputConfig,
    /// Flow records; absent: none.
    pub flows: Option<FlowsConfig>,
    /// Remote control; absent: none.
    pub control: Option<ControlConfig>,
    /// The metrics endpoint; absent: none.
    pub metrics: Option<MetricsConfig>,
    /// What the process may do.
    pub process: ProcessConfig,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML, an unknown key, or a value of the wrong type; the text shows line and column.
    #[error("{}", .0.to_string().trim_end())]
    Toml(#[from] toml::de::Error),
    /// A value out of range, or what is wrong with an override.
    #[error("{key} = {value}: {problem}")]
    Value {
        /// The dotted key.
        key: String,
        /// Its value, as given.
        value: String,
        /// What is wrong: the limit, and what to do.
        problem: String,
    },
}

impl Config {
    /// Reads a configuration file's text.
    ///
    /// # Errors
    /// Not TOML, an unknown key, a wrong type (each with line and column), or a value out of range.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text)?;
        check::check(&config)?;
        Ok(config)
    }

    /// Reads a configuration file's text and then sets single keys, the last one winning: `("capture.queues", "4")`.
    /// A value is read as TOML; what is not TOML, or does not fit as such, is a string.
    ///
    /// # Errors
    /// As [`Config::parse`]; what is wrong with an override names its key and value.
    pub fn with_overrides(text: &str, overrides: &[(&str, &str)]) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text)?;
        let mut table: Table = toml::from_str(text)?;
        for (key, value) in overrides {
            config =
                override_one(&mut table, key, value).map_err(|problem| ConfigError::Value {
                    key: (*key).into(),
                    value: (*value).into(),
                    problem,
                })?;
        }
        check::check(&config)?;
        Ok(config)
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
        self.capture.statistics = Some(self.statistics());
    }

    /// The configuration as TOML, every key that has a value.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|e| format!("# cannot be printed: {e}\n"))
    }
}

/// Puts one override into `table`, as TOML if it fits as such, else as a string.
fn override_one(table: &mut Table, key: &str, text: &str) -> Result<Config, String> {
    let mut first_problem = None;
    let candidates = [text.parse::<Value>().ok(), Some(Value::String(text.into()))];
    for value in candidates.into_iter().flatten() {
        let mut tried = table.clone();
        insert(&mut tried, key, value)?;
        match tried.clone().try_into::<Config>() {
            Ok(config) => {
                *table = tried;
                return Ok(config);
            }
            Err(e) => _ = first_problem.get_or_insert_with(|| e.message().to_owned()),
        }
    }
    Err(first_problem.unwrap_or_default())
}

/// Sets the dotted `key`, with the tables on the way to it.
fn insert(table: &mut Table, key: &str, value: Value) -> Result<(), String> {
    let (first, rest) = key
        .split_once('.')
        .map_or((key, None), |(first, rest)| (first, Some(rest)));
    if first.is_empty() {
        return Err("the key has an empty part; write section.key=value".into());
    }
    let Some(rest) = rest else {
        table.insert(first.into(), value);
        return Ok(());
    };
    match table
        .entry(first)
        .or_insert_with(|| Value::Table(Table::new()))
    {
        Value::Table(inner) => insert(inner, rest, value),
        _ => Err(format!(
            "{first} is no table, so {rest} cannot be set in it; set {first} as a whole"
        )),
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
        check::check(&Config::default()).unwrap();
    }

    #[test]
    fn sections_that_are_present_have_their_defaults() {
        let config = Config::parse("[flows]\n[control]\n[metrics]\n").unwrap();
        assert_eq!(config.flows, Some(FlowsConfig::default()));
        assert_eq!(config.control, Some(ControlConfig::default()));
        assert_eq!(config.metrics, Some(MetricsConfig::default()));
    }

    #[test]
    fn what_is_printed_reads_back() {
        let text = "
            [device]
            name = \"mlx5_0\"
            [capture]
            cores = [1, 2]
            slice = \"payload:64\"
            dedup = \"5ms\"
            [[rule]]
            proto = 89
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
    fn unknown_keys_and_wrong_types_are_refused_with_their_place() {
        let message = refused("[capture]\nqueus = 4\n");
        assert!(
            message.contains("line 2, column 1") && message.contains("`queus`"),
            "{message}"
        );
        assert!(message.contains("`queues`"), "{message}");
        let message = refused("[capture]\nqueues = \"four\"\n");
        assert!(message.contains("line 2, column 10"), "{message}");
        assert!(refused("[capure]\n").contains("`capure`"));
        assert!(refused("[metrics]\nport = 1\n").contains("`port`"));
        assert!(refused("[output]\nrotate_time = 60\n").contains("with its unit"));
        assert!(refused("[capture\n").contains("line 1"));
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
                ["rss.weights", "one per queue"],
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
                ["output.rotate_time = 1ms", "at least 100ms"],
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
            ("output.format", "none"),
            ("device.name", "7"),
            ("metrics", "{}"),
            ("capture.queues", "8"),
        ])
        .unwrap();
        assert_eq!(config.capture.queues, Some(8));
        assert_eq!(config.capture.cores, Some(vec![2, 3]));
        assert_eq!(config.output.dir, PathBuf::from("/tmp/x"));
        assert_eq!(config.output.rotate_size, Size(4 << 30));
        assert_eq!(config.output.format, Format::None);
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
            ("capture.queus", "4", "`queus`"),
            ("capture.queues", "four", "u16"),
            ("capture", "4", "struct CaptureConfig"),
            ("nothing.at.all", "1", "`nothing`"),
            ("capture.queues.x", "1", "u16"),
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
