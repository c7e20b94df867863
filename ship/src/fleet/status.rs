//! What a sensor tells of itself in the store: `status/sensor=NAME.json`, columns of which are in `docs/fleet.md`.
//!
//! Invariant: what others have written is bounded, and has no control characters.

use crate::ledger::DeliveryLedger;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The layout's number.
pub const VERSION: u32 = 1;
/// For so long a sensor's name is that of who has put a status last.
pub const HELD: Duration = Duration::from_secs(180);
/// No more problems than these are told.
pub(crate) const MOST_PROBLEMS: usize = 8;
/// Characters of a text, at most.
const LONGEST: usize = 400;
/// Seconds of a lag, at most: some centuries.
const LONGEST_LAG: f64 = 1e10;

/// Who ships, and when that was told last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// That of the journal.
    pub instance: String,
    /// The name of the machine.
    pub host: String,
    /// When the status was put.
    #[serde(with = "rfc3339")]
    pub time: Timestamp,
}

/// An object that the store has taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastObject {
    /// Its key.
    pub key: String,
    /// When it could be found.
    #[serde(with = "rfc3339")]
    pub time: Timestamp,
}

impl LastObject {
    /// It can be found from now on.
    #[must_use]
    pub fn now(key: &str) -> Self {
        Self {
            key: key.into(),
            time: Timestamp::now(),
        }
    }
}

/// A sensor's status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SensorStatus {
    /// The layout's number.
    pub version: u32,
    /// The sensor's name.
    pub sensor: String,
    /// Who has put it, and when.
    #[serde(flatten)]
    pub by: Instance,
    /// Its process, of many with one journal.
    pub run: String,
    /// The version of wqcap.
    pub wqcap: String,
    /// Where all captured frames are.
    pub ledger: DeliveryLedger,
    /// Finished files whose frames nobody has counted yet: they are not in the ledger.
    pub uncounted_files: u64,
    /// Files that were deleted before they were sent.
    pub expired_files: u64,
    /// Files of flow records, DNS and DHCP that were deleted before they were sent.
    pub expired_flow_files: u64,
    /// Of `expired_files`, those whose frames nobody had counted: they are not in the ledger.
    #[serde(default)]
    pub expired_uncounted_files: u64,
    /// Files that are not shipped yet.
    pub pending_files: u64,
    /// Their bytes.
    pub pending_bytes: u64,
    /// How long the oldest of them has been finished, in seconds.
    pub lag_s: f64,
    /// The object that was shipped last.
    pub last_object: Option<LastObject>,
    /// What cannot be done, and why.
    pub problems: Vec<String>,
    /// Whose name it was before; that one had not been heard of for [`HELD`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_over: Option<Instance>,
    /// Whose name it is: this one may not ship.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_by: Option<Instance>,
}

impl SensorStatus {
    /// Reads an object.
    ///
    /// # Errors
    /// It is no status, or one of another version.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let it = serde_json::from_slice::<Self>(text);
        let mut it = it.map_err(|e| format!("is no status of a sensor ({e})"))?;
        if it.version != VERSION {
            let version = it.version;
            return Err(format!(
                "is of version {version}, and this wqcap knows {VERSION}"
            ));
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

    /// Whether whoever has put it still has the sensor's name. A clock that is wrong by more does not hold it.
    #[must_use]
    pub fn holds(&self, now: Timestamp) -> bool {
        now.duration_since(self.by.time).unsigned_abs() < HELD
    }

    /// Whether it tells of anything but that time goes by.
    #[must_use]
    pub fn has_news_since(&self, before: &Self) -> bool {
        let at_its_time = Self {
            by: before.by.clone(),
            lag_s: before.lag_s,
            ..self.clone()
        };
        at_its_time != *before
    }
}

/// A text of somebody else's, for a terminal: on one line, and not endless.
pub(super) fn plain(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.take(LONGEST).collect()
}

/// Times as they are written in JSON, in UTC.
pub(super) mod rfc3339 {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(time)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }
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
        assert_eq!(SensorStatus::parse(&text), Ok(it.clone()));
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
    fn what_others_write_stays_on_its_line() {
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
    fn a_name_is_held_for_a_while() {
        let it = status("tap");
        let at = |s| it.by.time + SignedDuration::from_secs(s);
        assert_eq!(
            [0, 179, 181, -179, -181].map(|s| it.holds(at(s))),
            [true, true, false, true, false]
        );
    }

    #[test]
    fn time_alone_is_no_news() {
        let before = status("tap");
        let mut now = before.clone();
        now.by.time = Timestamp::now();
        now.lag_s += 1.0;
        assert!(!now.has_news_since(&before));
        now.pending_files += 1;
        assert!(now.has_news_since(&before));
    }
}
