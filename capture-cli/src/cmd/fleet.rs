//! `wqcap fleet`: shows the statuses of all sensors of a store, and findings on missing data.

use crate::{
    args::{ConfigArgs, FleetArgs},
    failure::Failure,
    term::{
        output,
        table::{aligned, bytes, cells, counted, thousands},
        terminal,
    },
};
use wqcap_ship::{
    fleet::{self, Fleet, FleetError, SensorFacts, SurveyFinding},
    ledger::DeliveryLedger,
    store::FORMS,
};

/// Prints the status of all sensors of an object store, and returns a failure if anything is
/// missing.
pub fn fleet(args: &FleetArgs) -> Result<(), Failure> {
    let (from, url) = match &args.store {
        Some(url) => ("STORE", url.clone()),
        None => ("ship.store", configured(&args.config)?),
    };
    let fleet = fleet::survey(from, &url, args.stale.0).map_err(|e| match e {
        FleetError::Threads(_) => Failure::failed(e),
        e => Failure::refused(e),
    })?;
    if args.json {
        output::print_json(&fleet)?;
    } else {
        output::print(&in_words(&fleet))?;
    }
    let (missing, others): (Vec<_>, Vec<_>) = fleet.findings.iter().partition(|it| it.is_missing());
    for it in others {
        terminal::print_note(format_args!("{}", message(it, &url)));
    }
    Failure::from_messages(missing.into_iter().map(|it| message(it, &url)).collect())
}

/// Returns the URL of the object store that the config names (`ship.store`).
fn configured(config: &ConfigArgs) -> Result<String, Failure> {
    let url = config.load()?.ship.and_then(|it| it.store);
    url.ok_or_else(|| {
        Failure::refused(format!(
            "no store is given; name a store ({FORMS}), or a config with ship.store (-c CONFIG)"
        ))
    })
}

/// Formats the sensors and their delivery ledgers as two tables.
fn in_words(fleet: &Fleet) -> String {
    if fleet.sensors.is_empty() {
        return String::new();
    }
    let heads = ["sensor", "host", "last seen", "last object", "lag", "left"];
    let mut seen = vec![cells(heads)];
    let above = ["", "", "", "", "not", "expired", ""];
    let heads = [
        "sensor",
        "captured",
        "shipped",
        "pending",
        "selected",
        "unshipped",
        "sum",
    ];
    let mut ledgers = vec![cells(above), cells(heads)];
    for it in &fleet.sensors {
        seen.push(seen_row(it, fleet));
        let sum = sum(it.adds_up, it.status.uncounted_files);
        ledgers.push(ledger_row(name(it), &it.status.ledger, sum));
    }
    let all_add_up = fleet.sensors.iter().all(|it| it.adds_up);
    let uncounted = fleet.sensors.iter().map(|it| it.status.uncounted_files);
    let uncounted = uncounted.fold(0, u64::saturating_add);
    let sum = sum(all_add_up, uncounted);
    ledgers.push(ledger_row("total".into(), &fleet.total, sum));
    format!("{}\n{}", aligned(&seen), aligned(&ledgers))
}

/// Returns the printed name of a sensor, which is marked if the status is of an instance that may
/// not ship, because another instance ships under this name.
fn name(it: &SensorFacts) -> String {
    match it.status.refused_by {
        Some(_) => format!("{} (refused)", it.status.sensor),
        None => it.status.sensor.clone(),
    }
}

/// Returns the row of a sensor in the table of sensors.
fn seen_row(it: &SensorFacts, fleet: &Fleet) -> Vec<String> {
    let status = &it.status;
    let object = status.last_object.as_ref();
    let object = object.map(|it| fleet.time.duration_since(it.time).as_secs_f64());
    let left = match status.pending_files {
        0 => "-".into(),
        files => format!(
            "{}, {}",
            counted(files, "file"),
            bytes(status.pending_bytes)
        ),
    };
    vec![
        name(it),
        status.by.host.clone(),
        rough(it.age_s),
        object.map_or("-".into(), |it| rough(it.max(0.0))),
        rough(status.lag_s),
        left,
    ]
}

/// Returns the row of a sensor in the table of delivery ledgers.
fn ledger_row(name: String, ledger: &DeliveryLedger, sum: String) -> Vec<String> {
    let numbers = ledger.lines().map(|(_, frames)| thousands(frames));
    [vec![name], numbers.to_vec(), vec![sum]].concat()
}

/// Formats the check of a delivery ledger: `ok` if its lines sum up to the captured frames, `no` if
/// not, or the number of files whose frames are not counted yet.
fn sum(adds_up: bool, uncounted_files: u64) -> String {
    match (adds_up, uncounted_files) {
        (false, _) => "no".into(),
        (true, 0) => "ok".into(),
        (true, files) => format!("+{}", counted(files, "file")),
    }
}

/// Formats a finding of `wqcap fleet` with its remedy as a message.
fn message(it: &SurveyFinding, url: &str) -> String {
    match it {
        SurveyFinding::Nobody => format!(
            "{url}: the store has no status of a sensor; name the ship.store of `wqcap ship`, and check that `wqcap ship` runs"
        ),
        SurveyFinding::Stale { sensor, age_s } => format!(
            "{sensor}: the sensor has stored no status for {} (--stale); check that `wqcap ship` runs there and reaches the store",
            rough(*age_s)
        ),
        SurveyFinding::Ahead { sensor, ahead_s } => format!(
            "{sensor}: the time of the sensor's status is {} ahead of this machine's clock, so its age is unknown; correct the clock that is wrong",
            rough(*ahead_s)
        ),
        SurveyFinding::Expired {
            sensor,
            frames,
            files,
            uncounted_files,
            flow_files,
        } => format!(
            "{sensor}: {} in {} and {} of flow records were deleted before they were shipped (expired_unshipped){}",
            counted(*frames, "frame"),
            counted(*files, "file"),
            counted(*flow_files, "file"),
            match uncounted_files {
                0 => String::new(),
                n => format!("; {} of these files had uncounted frames", thousands(*n)),
            }
        ),
        SurveyFinding::DoesNotAddUp { sensor } => format!(
            "{sensor}: the delivery ledger does not add up: captured is not the sum of shipped, pending, not_selected and expired_unshipped"
        ),
        SurveyFinding::Refused { sensor, host, by } => format!(
            "{sensor}: host {host:?} ships nothing, because host {:?} ships under this name; give each host its own ship.sensor and ship.journal",
            by.host
        ),
        SurveyFinding::TakenOver { sensor, host, from } => format!(
            "{sensor}: host {:?} (instance {}) shipped under this name until {}, and host {host:?} does now; if both capture, give each host its own ship.sensor and ship.journal",
            from.host, from.instance, from.time
        ),
        SurveyFinding::Problem { sensor, problem } => format!("{sensor}: {problem}"),
        SurveyFinding::NoStatus { sensor, partition } => format!(
            "{sensor}: the sensor has packets ({partition}) but no status; check that its wqcap is not older than this one, and may write and read status/"
        ),
        SurveyFinding::Unreadable { object, problem } => format!("{object}: {problem}"),
    }
}

/// Formats a duration in seconds, rounded to a suitable unit: `12 s`, `14 min`, `3 h`, `5 days`.
fn rough(seconds: f64) -> String {
    match seconds {
        it if it < 120.0 => format!("{it:.0} s"),
        it if it < 7200.0 => format!("{:.0} min", it / 60.0),
        it if it < 172_800.0 => format!("{:.0} h", it / 3600.0),
        it => format!("{:.0} days", it / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use wqcap_ship::{
        fleet::{LastObject, SensorStatus},
        ledger::FrameState,
    };

    /// Returns the facts of a sensor that shipped `frames` frames.
    fn sensor(name: &str, frames: u64) -> SensorFacts {
        let text = json!({
            "version": 1, "sensor": name, "instance": "1", "host": "db7", "time": "2026-03-01T12:00:00Z", "run": "1",
            "wqcap": "0.1.0", "uncounted_files": 0, "expired_files": 0, "expired_flow_files": 0, "pending_files": 3,
            "pending_bytes": 3 << 29, "lag_s": 2.4, "last_object": null, "problems": [],
            "ledger": {"captured": 0, "shipped": 0, "pending": 0, "not_selected": 0, "expired_unshipped": 0},
        });
        let status = SensorStatus::parse(text.to_string().as_bytes());
        let mut status = status.expect("a valid status");
        status.ledger.add_frames(FrameState::Shipped, frames);
        SensorFacts {
            adds_up: status.ledger.adds_up(),
            status,
            age_s: 12.0,
            stale: false,
        }
    }

    /// Returns a fleet of these sensors without findings.
    fn fleet_of(sensors: Vec<SensorFacts>) -> Fleet {
        let time = sensors[0].status.by.time;
        let ledgers = sensors.iter().map(|it| it.status.ledger);
        Fleet {
            time,
            total: ledgers.fold(DeliveryLedger::default(), |a, b| a.sum_with(&b)),
            sensors,
            findings: Vec::new(),
        }
    }

    #[test]
    fn tables_fit_80_columns_with_billions_of_frames() {
        let mut first = sensor("dc1-tap1", 1_234_567_890);
        first.status.ledger.add_frames(FrameState::Pending, 56_789);
        let key = "packets/x".into();
        let time = first.status.by.time;
        first.status.last_object = Some(LastObject { key, time });
        let mut second = sensor("dc1-tap2", 7);
        second.status.pending_files = 0;
        second.status.uncounted_files = 2;
        let text = in_words(&fleet_of(vec![first, second]));
        let expected = "\
sensor    host  last seen  last object  lag              left
dc1-tap1   db7       12 s          0 s  2 s  3 files, 1.5 GiB
dc1-tap2   db7       12 s            -  2 s                 -

                                                      not    expired
sensor         captured        shipped  pending  selected  unshipped       sum
dc1-tap1  1,234,624,679  1,234,567,890   56,789         0          0        ok
dc1-tap2              7              7        0         0          0  +2 files
total     1,234,624,686  1,234,567,897   56,789         0          0  +2 files
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|it| it.len() < 80), "{text}");
    }

    #[test]
    fn refused_sensors_and_ledgers_that_do_not_add_up_are_marked() {
        let mut it = sensor("tap", 1);
        it.status.refused_by = Some(it.status.by.clone());
        it.status.ledger.captured = 0;
        it.adds_up = false;
        let text = in_words(&fleet_of(vec![it]));
        let row = text.lines().find(|it| it.ends_with("no"));
        assert!(
            row.is_some_and(|it| it.starts_with("tap (refused)")),
            "{text}"
        );
    }

    #[test]
    fn a_finding_has_a_remedy() {
        let sensor = || "tap".to_owned();
        let by = self::sensor("tap", 0).status.by;
        let findings = [
            (SurveyFinding::Nobody, "ship.store"),
            (
                SurveyFinding::Stale {
                    sensor: sensor(),
                    age_s: 10_800.0,
                },
                "tap: the sensor has stored no status for 3 h",
            ),
            (
                SurveyFinding::Expired {
                    sensor: sensor(),
                    frames: 1234,
                    files: 2,
                    uncounted_files: 1,
                    flow_files: 0,
                },
                "1,234 frames in 2 files and 0 files of flow records were deleted before they were shipped (expired_unshipped); 1 of these files had uncounted frames",
            ),
            (
                SurveyFinding::Refused {
                    sensor: sensor(),
                    host: "db8".into(),
                    by: by.clone(),
                },
                "host \"db8\" ships nothing, because host \"db7\"",
            ),
            (
                SurveyFinding::TakenOver {
                    sensor: sensor(),
                    host: "db8".into(),
                    from: by,
                },
                "until 2026-03-01T12:00:00Z",
            ),
        ];
        for (finding, part) in findings {
            let text = message(&finding, "s3://b");
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
    }

    #[test]
    fn rough_times_grow_with_their_units() {
        let texts = [0.4, 119.0, 840.0, 10_800.0, 432_000.0].map(rough);
        assert_eq!(texts, ["0 s", "119 s", "14 min", "3 h", "5 days"]);
    }
}
