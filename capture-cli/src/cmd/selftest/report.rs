//! What a selftest has found, as JSON: the types are the one source of `docs/selftest.schema.json`.
//!
//! Invariant: no MAC or IP address, GUID, host or interface name of the user's is in it.

use nix::errno::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The file beside which reports lie in `docs/`.
const SCHEMA: &str = "selftest.schema.json";
/// Raised when a report means something else than before.
const VERSION: u32 = 1;

/// The report of a selftest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SelftestReport {
    /// The schema of this file.
    #[serde(rename = "$schema")]
    pub schema: String,
    /// The version of the report's form: 1.
    pub version: u32,
    /// The version of wqcap.
    pub wqcap: String,
    /// The kernel's release.
    pub kernel: String,
    /// PCI vendor and part number of the device.
    pub part: (u32, u32),
    /// The device's firmware.
    pub firmware: String,
    /// It is the software NIC.
    pub software: bool,
    /// Rules that see other traffic of the port were installed too, and its settings changed for a moment.
    pub disruptive: bool,
    /// Why the test ended early; null: it did not.
    pub ended_early: Option<String>,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// What was found, in the order in which it was asked.
    pub findings: Vec<Finding>,
}

/// One thing that was asked of the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The property of the device that it depends on.
    pub subject: String,
    /// What was asked; once in a report.
    pub id: String,
    /// How long the answer took, in microseconds; 0 where nothing was asked of the device.
    pub us: u64,
    /// The answer.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The device made it.
    Accepted,
    /// The device or its driver refused it.
    Refused {
        /// The errno.
        errno: i32,
        /// Its name.
        error: String,
    },
    /// What the device says of itself.
    Value {
        /// A number, a boolean or a string.
        value: Value,
    },
    /// What was sent arrived as the engine expects it.
    AsExpected,
    /// It did not.
    Differs {
        /// What the engine expects.
        expected: Value,
        /// What was found.
        found: Value,
        /// The completion as the device wrote it, in hexadecimal digits; null: none came, or it does not matter.
        raw: Option<String>,
    },
    /// A measurement.
    Measured {
        /// How much.
        value: f64,
        /// Of what.
        unit: String,
        /// Two measurements agree if they differ by less than the sum of these; null: they are not compared.
        uncertainty: Option<f64>,
    },
    /// It was not asked.
    NotAsked {
        /// Why not.
        reason: String,
    },
}

impl Outcome {
    /// A refusal with this errno.
    pub fn refused(errno: i32) -> Self {
        Self::Refused {
            errno,
            error: format!("{:?}", Errno::from_raw(errno)),
        }
    }

    /// In a few words.
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

    fn uncertainty(&self) -> Option<f64> {
        match self {
            Self::Measured { uncertainty, .. } => *uncertainty,
            _ => None,
        }
    }

    /// Whether it says the same of a device.
    pub fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            // Why is the report's own affair.
            (Self::NotAsked { .. }, Self::NotAsked { .. }) => true,
            (Self::Measured { value: a, .. }, Self::Measured { value: b, .. }) => {
                let within = self.uncertainty().zip(other.uncertainty());
                within.is_none_or(|(of_a, of_b)| (a - b).abs() <= of_a + of_b)
            }
            _ => self == other,
        }
    }
}

impl SelftestReport {
    /// A report without findings.
    pub fn new(disruptive: bool) -> Self {
        let kernel = rustix::system::uname();
        Self {
            schema: SCHEMA.into(),
            version: VERSION,
            wqcap: env!("CARGO_PKG_VERSION").into(),
            kernel: kernel.release().to_string_lossy().into_owned(),
            part: (0, 0),
            firmware: String::new(),
            software: false,
            disruptive,
            ended_early: None,
            duration_ms: 0,
            findings: Vec::new(),
        }
    }

    /// Reads a report.
    pub fn parse(text: &str) -> Result<Self, String> {
        let report: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        match report.version {
            VERSION => Ok(report),
            other => Err(format!(
                "version {other} of the report; this wqcap reads {VERSION}"
            )),
        }
    }
}

/// The JSON Schema of reports.
pub fn schema() -> Value {
    schemars::schema_for!(SelftestReport).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_in_the_documentation_is_that_of_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/selftest.schema.json");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let documented: Value = serde_json::from_str(&text).unwrap_or_default();
        assert!(
            documented == schema(),
            "docs/selftest.schema.json differs from the types: write it with `wqcap selftest --schema`"
        );
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
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
        assert_eq!(SelftestReport::parse(&text), Ok(report));
        let newer = text.replace("\"version\":1", "\"version\":2");
        assert!(
            SelftestReport::parse(&newer)
                .unwrap_err()
                .contains("version 2")
        );
    }
}
