//! Status of a sensor in the store: `status/sensor=NAME.json`. Its columns are described in
//! `docs/fleet.md`.
//!
//! Invariant: texts of other machines are bounded, and contain no control characters.

use crate::ledger::DeliveryLedger;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Version of the layout of a sensor status.
pub(crate) const VERSION: u32 = 1;
/// Time for which a sensor name belongs to the instance that wrote the last status under it.
pub(crate) const HELD: Duration = Duration::from_secs(180);
/// Maximum number of problems that a sensor status lists.
pub(crate) const MOST_PROBLEMS: usize = 8;
/// Maximum length of a text in a sensor status, in characters.
const LONGEST: usize = 400;
/// Maximum shipping lag in seconds that is accepted from a sensor status: some centuries.
const LONGEST_LAG: f64 = 1e10;

/// Instance of `wqcap ship` that ships a sensor's files, and the time of its last status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Identifier of the delivery journal that the instance uses.
    pub instance: String,
    /// Name of the machine on which the instance runs.
    pub host: String,
    /// Time when the instance wrote the sensor status.
    pub time: Timestamp,
}

/// Object that a sensor shipped last, and the time when it was complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastObject {
    /// Key of the shipped object in the store.
    pub key: String,
    /// Time when shipping of the object was complete.
    pub time: Timestamp,
}

impl LastObject {
    /// Makes an entry for an object whose shipping is complete at the present time.
    pub(crate) fn now(key: &str) -> Self {
        Self {
            key: key.into(),
            time: Timestamp::now(),
        }
    }
}

/// Status of a sensor: delivery ledger, pending files and problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SensorStatus {
    /// Version of the layout of the sensor status.
    pub version: u32,
    /// Name of the sensor whose status this is.
    pub sensor: String,
    /// Instance that wrote the sensor status, and the time.
    #[serde(flatten)]
    pub by: Instance,
    /// Random identifier of the `wqcap ship` process; several processes may use one journal in
    /// turn.
    pub run: String,
    /// Version of the wqcap that wrote the sensor status.
    pub wqcap: String,
    /// Delivery ledger: numbers of all frames that the sensor captured, by delivery state.
    pub ledger: DeliveryLedger,
    /// Number of finished capture files whose frames are not counted yet: the delivery ledger does
    /// not include them.
    pub uncounted_files: u64,
    /// Number of capture files of the sensor that were deleted before they were sent to the store.
    pub expired_files: u64,
    /// Number of files of flow records, DNS and DHCP that were deleted before they were sent to the
    /// store.
    pub expired_flow_files: u64,
    /// Number of files in `expired_files` whose frames were not counted: the delivery ledger does
    /// not include them.
    #[serde(default)]
    pub expired_uncounted_files: u64,
    /// Number of the sensor's files that are not shipped yet.
    pub pending_files: u64,
    /// Total length of the sensor's unshipped files in bytes.
    pub pending_bytes: u64,
    /// Time in seconds since the oldest unshipped file was finished.
    pub lag_s: f64,
    /// Object that the sensor shipped last; `None`: it has shipped no object.
    pub last_object: Option<LastObject>,
    /// Current problems of shipping that the sensor reports, a line each.
    pub problems: Vec<String>,
    /// Previous owner of the sensor name; its last status was older than 180 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_over: Option<Instance>,
    /// Owner of the sensor name, because of which this instance may not ship.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_by: Option<Instance>,
}

/// Reason why the content of an object is not a sensor status.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SensorStatusError {
    /// The content is not JSON, or lacks values of a sensor status.
    #[error("the object is not a sensor status ({0})")]
    Json(#[from] serde_json::Error),
    /// The sensor status has the layout of a version that this wqcap does not read.
    #[error("the sensor status has version {0}; this wqcap reads version {VERSION}")]
    Version(u32),
}

impl SensorStatus {
    /// Parses the content of a status object in the store.
    ///
    /// # Errors
    /// The content is not a sensor status, or has another version.
    pub fn parse(text: &[u8]) -> Result<Self, SensorStatusError> {
        let mut it = serde_json::from_slice::<Self>(text)?;
        if it.version != VERSION {
            return Err(SensorStatusError::Version(it.version));
        }
        it.problems.truncate(MOST_PROBLEMS);
        it.lag_s = it.lag_s.clamp(0.0, LONGEST_LAG);
        let others = it.taken_over.iter_mut().chain(&mut it.refused_by);
        let named = others.chain([&mut it.by]);
        let named = named.flat_map(|it| [&mut it.instance, &mut it.host]);
        let object = it.last_object.iter_mut().map(|it| &mut it.key);
        let own = [&mut it.sensor, &mut it.run, &mut it.wqcap];
        let texts = named.chain(object).chain(&mut it.problems).chain(own);
        texts.for_each(|text| *text = plain(text));
        Ok(it)
    }

    /// Returns `true` if the instance of the sensor status still owns the sensor name at `now`. A
    /// status whose time differs by [`HELD`] or more does not hold the name.
    pub(crate) fn holds(&self, now: Timestamp) -> bool {
        now.duration_since(self.by.time).unsigned_abs() < HELD
    }

    /// Returns `true` if anything but time and lag differs from the earlier sensor status `before`.
    pub(crate) fn has_news_since(&self, before: &Self) -> bool {
        let at_its_time = Self {
            by: before.by.clone(),
            lag_s: before.lag_s,
            ..self.clone()
        };
        at_its_time != *before
    }
}

/// Returns a text from another machine in a form for a terminal: on one line, without control
/// characters, and at most [`LONGEST`] characters.
pub(super) fn plain(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::fixtures::status;
    use jiff::SignedDuration;

    #[test]
    fn a_status_is_read_as_it_was_written() {
        let mut it = status("tap");
        it.taken_over = Some(it.by.clone());
        it.last_object = Some(LastObject::now("packets/x.pcap"));
        let text = serde_json::to_vec(&it).expect("JSON");
        assert_eq!(SensorStatus::parse(&text).expect("a status"), it);
        let json: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(json["host"], "here");
        assert!(json["time"].as_str().is_some_and(|it| it.ends_with('Z')));
        let later = SensorStatus {
            version: VERSION + 1,
            ..it
        };
        let text = serde_json::to_vec(&later).expect("JSON");
        let bad: [&[u8]; 5] = [&text, b"", b"{", b"[]", b"{\"version\": 1}"];
        for text in bad {
            assert!(SensorStatus::parse(text).is_err());
        }
    }

    #[test]
    fn foreign_texts_are_one_line_and_bounded() {
        let mut it = status("tap");
        it.by.host = "\u{1b}[2Jhost\n".into();
        it.problems = vec!["x".repeat(LONGEST + 1); MOST_PROBLEMS + 1];
        it.lag_s = 1e300;
        let text = serde_json::to_vec(&it).expect("JSON");
        let read = SensorStatus::parse(&text).expect("a status");
        assert_eq!(read.by.host, " [2Jhost ");
        assert_eq!(read.problems, vec!["x".repeat(LONGEST); MOST_PROBLEMS]);
        assert_eq!(read.lag_s, LONGEST_LAG);
    }

    #[test]
    fn a_name_is_held_for_180_seconds() {
        let it = status("tap");
        let at = |s| it.by.time + SignedDuration::from_secs(s);
        assert_eq!(
            [0, 179, 181, -179, -181].map(|s| it.holds(at(s))),
            [true, true, false, true, false]
        );
    }

    #[test]
    fn a_change_of_time_is_not_news() {
        let before = status("tap");
        let mut now = before.clone();
        now.by.time = Timestamp::now();
        now.lag_s += 1.0;
        assert!(!now.has_news_since(&before));
        now.pending_files += 1;
        assert!(now.has_news_since(&before));
    }
}
