//! Selftest report as JSON. `docs/selftest.schema.json` is generated from these types.
//!
//! Invariant: a report contains no MAC or IP address, GUID, host name or interface name of the
//! user.

use nix::errno::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// Name of the schema file, which is in `docs/` next to the folder of reports.
const SCHEMA: &str = "selftest.schema.json";
/// Version of the selftest report format, raised when reports get other findings.
const VERSION: u32 = 2;

/// Report of a selftest of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SelftestReport {
    /// Schema of this selftest report, as a file name.
    #[serde(rename = "$schema")]
    pub schema: String,
    /// Version of the selftest report format: 2. Reports of version 1 have fewer findings and no
    /// verdicts.
    pub version: u32,
    /// Version of wqcap that made the selftest report.
    pub wqcap: String,
    /// Release of the kernel during the selftest.
    pub kernel: String,
    /// Version of rdma-core during the selftest; null if unknown.
    #[serde(default)]
    pub rdma_core: Option<String>,
    /// PCI vendor and part number of the tested device.
    pub part: (u32, u32),
    /// Firmware version of the tested device.
    pub firmware: String,
    /// True if the tested device is the software NIC.
    pub software: bool,
    /// True if the selftest also installed rules that match other traffic of the port, and changed
    /// the port's settings for a moment.
    pub disruptive: bool,
    /// Reason why the selftest ended early; null if it did not.
    pub ended_early: Option<String>,
    /// Duration of the selftest in milliseconds.
    pub duration_ms: u64,
    /// Findings of the selftest, in the order of the requests.
    pub findings: Vec<Finding>,
    /// Known differences between cards, and whether the tested device shows them.
    #[serde(default)]
    pub verdicts: Vec<CardVerdict>,
}

/// Difference that real cards, firmwares or kernels may show from the software NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CardDifference {
    /// Limit of a WQ.
    F1,
    /// Stamps of a CQ for ticks.
    F2,
    /// Network interface of the port.
    F3,
    /// Counter of a filler.
    F4,
    /// Strides that an error consumes.
    F5,
    /// Frames longer than their buffers.
    F6,
    /// Longest frame of the port.
    F7,
    /// Device folder after a restart of the driver.
    F8,
    /// FCS of frames.
    F9,
    /// Prefetch of frames.
    F10,
    /// RoCE packets.
    F11,
    /// Name of a LAG's device.
    F12,
    /// Start of the moderation period.
    F13,
    /// Padding in requests for rules.
    F14,
}

/// Verdict on one of the known differences between cards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CardVerdict {
    /// Difference that the verdict is about.
    pub difference: CardDifference,
    /// Name of the verdict's difference.
    pub name: String,
    /// Findings of the selftest about the difference, in short.
    #[serde(flatten)]
    pub shown: Shown,
}

/// Whether the tested device shows a difference from the software NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Shown {
    /// The device behaves as the software NIC does by default.
    AsExpected,
    /// The device behaves differently.
    Differs {
        /// Behaviour of the device.
        what: String,
    },
    /// The selftest has no finding about it.
    NotTested {
        /// Reason why nothing was found.
        reason: String,
    },
}

impl fmt::Display for CardVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}: ", self.difference, self.name)?;
        match &self.shown {
            Shown::AsExpected => write!(f, "as expected"),
            Shown::Differs { what } => write!(f, "this card differs: {what}"),
            Shown::NotTested { reason } => write!(f, "not tested: {reason}"),
        }
    }
}

/// Finding of a selftest: one request to the device, with its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Property of the device that the finding depends on.
    pub subject: String,
    /// Id of the finding's request, unique in a report.
    pub id: String,
    /// Duration of the finding's request in microseconds; 0 if nothing was requested from the
    /// device.
    pub us: u64,
    /// Outcome of the finding's request.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Outcome of a selftest's request to the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The device accepted the request of the selftest.
    Accepted,
    /// The device or its driver refused the request.
    Refused {
        /// Error number (errno) of the refusal.
        errno: i32,
        /// Name of the refusal's error number.
        error: String,
    },
    /// The device reported a value.
    Value {
        /// Value that the device reported: number, boolean or string.
        value: Value,
    },
    /// The result of the request is the one that the engine expects.
    AsExpected,
    /// The result of the request differs from the one that the engine expects.
    Differs {
        /// Result of the request that the engine expects.
        expected: Value,
        /// Result of the request that the selftest found.
        found: Value,
        /// Completion as the device wrote it, in hexadecimal digits; null if there was no
        /// completion, or if it is irrelevant.
        raw: Option<String>,
    },
    /// The selftest measured a quantity.
    Measured {
        /// Value that the selftest measured.
        value: f64,
        /// Unit of the measured value.
        unit: String,
        /// Uncertainty of the measured value. Two measurements agree if they differ by at most the
        /// sum of their uncertainties; null: the value is not compared.
        uncertainty: Option<f64>,
    },
    /// The selftest requested nothing from the device.
    NotAsked {
        /// Reason why nothing was requested from the device.
        reason: String,
    },
}

impl Outcome {
    /// Returns the outcome of a selftest's request that the device refused with the error number
    /// `errno`.
    pub fn refused(errno: i32) -> Self {
        Self::Refused {
            errno,
            error: format!("{:?}", Errno::from_raw(errno)),
        }
    }

    /// Formats the outcome of a selftest's request in a few words.
    pub fn text(&self) -> String {
        match self {
            Self::Accepted => "accepted".into(),
            Self::Refused { error, .. } => format!("refused: {error}"),
            Self::Value { value } => value.to_string(),
            Self::AsExpected => "as expected".into(),
            Self::Differs {
                expected, found, ..
            } => format!("DIFFERS: expected {expected}, found {found}"),
            Self::Measured { value, unit, .. } => format!("{value:.3} {unit}"),
            Self::NotAsked { reason } => format!("not asked: {reason}"),
        }
    }

    /// Returns the uncertainty of an outcome that is a measured value; `None`: other outcomes, or
    /// unknown.
    fn uncertainty(&self) -> Option<f64> {
        match self {
            Self::Measured { uncertainty, .. } => *uncertainty,
            _ => None,
        }
    }

    /// Returns `true` if two outcomes of one request count as equal when selftest reports are
    /// compared.
    pub fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            // The reason may differ.
            (Self::NotAsked { .. }, Self::NotAsked { .. }) => true,
            (Self::Measured { value: a, .. }, Self::Measured { value: b, .. }) => {
                let within = self.uncertainty().zip(other.uncertainty());
                within.is_none_or(|(of_a, of_b)| (a - b).abs() <= of_a + of_b)
            }
            _ => self == other,
        }
    }
}

/// Reason why a text is not a selftest report.
#[derive(Debug, thiserror::Error)]
pub enum SelftestReportError {
    /// The text is not JSON, or lacks values of a selftest report.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The selftest report has the format of a later version.
    #[error("the report has version {0}; this wqcap reads versions up to {VERSION}")]
    Version(u32),
}

impl SelftestReport {
    /// Creates a selftest report without findings.
    pub fn new(disruptive: bool) -> Self {
        let kernel = rustix::system::uname();
        Self {
            schema: SCHEMA.into(),
            version: VERSION,
            wqcap: env!("CARGO_PKG_VERSION").into(),
            kernel: kernel.release().to_string_lossy().into_owned(),
            part: (0, 0),
            rdma_core: None,
            firmware: String::new(),
            software: false,
            disruptive,
            ended_early: None,
            duration_ms: 0,
            findings: Vec::new(),
            verdicts: Vec::new(),
        }
    }

    /// Returns the number of findings whose outcome matches `which`.
    pub fn count(&self, which: fn(&Outcome) -> bool) -> usize {
        let findings = self.findings.iter();
        findings.filter(|it| which(&it.outcome)).count()
    }

    /// Parses a selftest report from JSON.
    pub fn parse(text: &str) -> Result<Self, SelftestReportError> {
        let report: Self = serde_json::from_str(text)?;
        match report.version {
            1..=VERSION => Ok(report),
            other => Err(SelftestReportError::Version(other)),
        }
    }
}

/// Returns the JSON Schema of selftest reports.
pub fn schema() -> Value {
    schemars::schema_for!(SelftestReport).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_schema_is_that_of_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/selftest.schema.json");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let documented: Value = serde_json::from_str(&text).unwrap_or_default();
        assert!(
            documented == schema(),
            "docs/selftest.schema.json differs from the types: write it with `wqcap selftest --schema`"
        );
    }

    #[test]
    fn a_written_report_is_read_back_unchanged() {
        let mut report = SelftestReport::new(false);
        for outcome in [
            Outcome::Accepted,
            Outcome::refused(libc::EOPNOTSUPP),
            Outcome::Value { value: 5.into() },
            Outcome::NotAsked { reason: "x".into() },
            Outcome::AsExpected,
            Outcome::Differs {
                expected: 1.into(),
                found: Value::Null,
                raw: None,
            },
            Outcome::Measured {
                value: 0.25,
                unit: "s".into(),
                uncertainty: None,
            },
        ] {
            report.findings.push(Finding {
                subject: "wq".into(),
                id: "wq/1".into(),
                us: 3,
                outcome,
            });
        }
        let text = serde_json::to_string(&report).unwrap();
        assert!(text.contains(r#""outcome":"refused","errno":95,"error":"EOPNOTSUPP""#));
        assert_eq!(SelftestReport::parse(&text).unwrap(), report);
        for other in [0, 3] {
            let text = text.replace("\"version\":2", &format!("\"version\":{other}"));
            let refused = SelftestReport::parse(&text);
            assert!(matches!(refused, Err(SelftestReportError::Version(it)) if it == other));
        }
        // Reports of version 1 have no verdicts.
        let older = text.replace("\"version\":2", "\"version\":1");
        let older = older
            .replace(",\"verdicts\":[]", "")
            .replace("\"rdma_core\":null,", "");
        assert!(!older.contains("verdicts") && !older.contains("rdma_core"));
        assert_eq!(SelftestReport::parse(&older).unwrap().version, 1);
    }
}
