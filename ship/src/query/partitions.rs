//! Selection of the partitions and files that may hold frames of a time range.
//!
//! A file is in the partition of the hour in which it begins, and may be longer than an hour. The
//! hours of the time range are listed, and the hours before it up to the look back. Of the listed
//! files, those that ended before the range are excluded by their names and by the time at which the
//! store wrote them: a queue's file ends where the next one of that queue begins, or when it was
//! written, if that is later, as in [`wqcap_files::extract`] for the files of a folder. A file that
//! the store wrote before it began is of a sensor whose clock was ahead, and has no known end.
//!
//! Invariant: only files that cannot hold frames of the times are excluded, if no file is longer
//! than the look back.

use crate::key::{self, CaptureKey};
use jiff::tz::TimeZone;
use std::ops::{Range, RangeInclusive};

const HOUR_NS: u64 = 3_600_000_000_000;
/// Time in nanoseconds by which frames' time stamps may lie before the start of their capture file,
/// or after the start of the next file: a clock that follows another one may step back a little.
const SLACK_NS: u64 = 1_000_000_000;
/// Maximum time in nanoseconds by which the clock of the store is behind that of a sensor.
const CLOCKS_NS: u64 = 300 * SLACK_NS;

/// Returns the hours since 1970 in which a capture file with frames of the time range `times` may
/// begin.
pub(super) fn hours(times: &Range<u64>, lookback_ns: u64) -> RangeInclusive<u64> {
    let first = times.start.saturating_sub(lookback_ns);
    let last = times.end.saturating_sub(1).saturating_add(SLACK_NS);
    first / HOUR_NS..=last / HOUR_NS
}

/// Returns the partition folders of `root`, such as `blocks`, that a query lists. For each of the
/// `days` (`dt=2026-11-21`), all hours are listed or only those in `hours`, for all sensors if
/// `sensors` is empty.
pub(super) fn folders(
    root: &str,
    days: &[String],
    hours: &RangeInclusive<u64>,
    sensors: &[String],
) -> Vec<String> {
    let mut all = Vec::new();
    for name in days {
        let Some(day) = day_of(name) else { continue };
        let (first, last) = (day * 24, day * 24 + 23);
        if hours.contains(&first) && hours.contains(&last) {
            all.push(format!("{root}/{name}"));
            continue;
        }
        for hour in first.max(*hours.start())..=last.min(*hours.end()) {
            let folder = format!("{root}/{name}/hour={:02}", hour % 24);
            match sensors {
                [] => all.push(folder),
                some => all.extend(some.iter().map(|it| format!("{folder}/sensor={it}"))),
            }
        }
    }
    all
}

/// Returns the number of days from 1970 to the day of a folder with the name `dt=YYYY-MM-DD`.
fn day_of(name: &str) -> Option<u64> {
    let midnight = key::date_of(name)?
        .to_zoned(TimeZone::UTC)
        .ok()?
        .timestamp();
    u64::try_from(midnight.as_second())
        .ok()
        .map(|it| it / 86_400)
}

/// Returns the capture files that may have frames of the time range `times`, by the files' names
/// and the times at which the store wrote them.
pub(super) fn reaching(
    mut files: Vec<(CaptureKey, Option<u64>)>,
    times: &Range<u64>,
) -> Vec<CaptureKey> {
    fn chain(it: &CaptureKey) -> (&str, Option<u16>, &str) {
        (&it.sensor, it.queue, it.ending())
    }
    files.sort_by(|(a, _), (b, _)| (chain(a), a.start_ns).cmp(&(chain(b), b.start_ns)));
    files.dedup_by(|(a, _), (b, _)| a == b);
    let may_have = |at: usize| {
        let (it, written_ns) = &files[at];
        let next = files.get(at + 1).map(|(next, _)| next);
        let next = next.filter(|next| chain(next) == chain(it));
        // A file that was written before it began is of a sensor whose clock was ahead.
        let written = written_ns.map(|ns| ns.saturating_add(CLOCKS_NS));
        let written = written.filter(|ns| *ns >= it.start_ns);
        let ends = next.and_then(|next| Some(next.start_ns.max(written?)));
        let ends = ends.map_or(u64::MAX, |ends| ends.saturating_add(SLACK_NS));
        it.start_ns.saturating_sub(SLACK_NS) < times.end && ends >= times.start
    };
    let wanted: Vec<_> = (0..files.len()).map(may_have).collect();
    let files = files.into_iter().zip(wanted);
    files
        .filter_map(|((it, _), wanted)| wanted.then_some(it))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;
    use std::path::Path;
    use wqcap_files::name::FileName;

    /// Start of 2026-11-21 in hours since 1970.
    const MIDNIGHT: u64 = 20_778 * 24;

    fn days() -> Vec<String> {
        [
            "dt=2026-11-19",
            "dt=2026-11-20",
            "dt=2026-11-21",
            "dt=x",
            "y",
        ]
        .map(str::to_owned)
        .into()
    }

    #[test]
    fn hours_of_the_times_and_of_the_look_back_are_listed() {
        let minutes = 60_000_000_000;
        let times = MIDNIGHT * HOUR_NS + 70 * minutes..MIDNIGHT * HOUR_NS + 80 * minutes;
        let listed = |lookback, sensors: &[&str]| {
            let sensors: Vec<_> = sensors.iter().map(|it| (*it).to_owned()).collect();
            folders("blocks", &days(), &hours(&times, lookback), &sensors)
        };
        let day = "blocks/dt=2026-11-21";
        assert_eq!(listed(0, &[]), [format!("{day}/hour=01")]);
        assert_eq!(
            listed(HOUR_NS, &[]),
            [format!("{day}/hour=00"), format!("{day}/hour=01")]
        );
        assert_eq!(
            listed(HOUR_NS + 11 * minutes, &["a", "b"]),
            [
                "blocks/dt=2026-11-20/hour=23/sensor=a".to_owned(),
                "blocks/dt=2026-11-20/hour=23/sensor=b".to_owned(),
                format!("{day}/hour=00/sensor=a"),
                format!("{day}/hour=00/sensor=b"),
                format!("{day}/hour=01/sensor=a"),
                format!("{day}/hour=01/sensor=b"),
            ]
        );
        // One day back from 01:10: 23 hours of the previous day, and two of this one.
        assert_eq!(listed(24 * HOUR_NS, &[]).len(), 25);
        let two_days = listed(48 * HOUR_NS, &[]);
        assert_eq!(two_days.len(), 23 + 1 + 2);
        assert!(two_days.contains(&"blocks/dt=2026-11-20".to_owned()));
        // The last frame of an hour may be in a file that begins in the next hour, within the
        // tolerance.
        let end = (MIDNIGHT + 1) * HOUR_NS;
        assert_eq!(hours(&(end - 9..end), 0), MIDNIGHT..=MIDNIGHT + 1);
        let before = end - SLACK_NS;
        assert_eq!(hours(&(before - 9..before), 0), MIDNIGHT..=MIDNIGHT);
        let always = folders("blocks", &days(), &hours(&(0..u64::MAX), 0), &[]);
        assert_eq!(always.len(), 3);
    }

    #[test]
    fn a_file_ends_where_the_next_of_its_queue_begins_or_when_it_was_written() {
        /// Second from which the seconds of the test count.
        const BASE: u64 = 1000;
        let file = |sensor: &str, queue: u16, second: u64, ending: &str| {
            let name = format!("wqcap-q{queue:02}-{}.{ending}", (BASE + second) * SLACK_NS);
            let name = FileName::parse(Path::new(&name)).expect("a capture's");
            let key = CaptureKey::parse(&key::packets(&name, sensor)).expect("ours");
            (key, Some((BASE + second) * SLACK_NS - CLOCKS_NS))
        };
        let files = vec![
            file("a", 0, 100, "pcap"),
            file("a", 0, 300, "pcap"),
            file("a", 0, 200, "pcap"),
            file("a", 1, 150, "pcap"),
            file("b", 0, 250, "pcap"),
            // Another extension counts as another capture.
            file("a", 0, 120, "pcapng"),
            file("a", 0, 100, "pcap"),
        ];
        let found = |from: u64, to: u64| {
            let times = (BASE + from) * SLACK_NS..(BASE + to) * SLACK_NS;
            let found = reaching(files.clone(), &times).into_iter();
            let starts = found.map(|it| it.start_ns / SLACK_NS - BASE);
            let mut starts: Vec<_> = starts.collect();
            starts.sort_unstable();
            starts
        };
        assert_eq!(found(0, 50), [0; 0]);
        assert_eq!(found(110, 115), [100]);
        assert_eq!(found(210, 220), [120, 150, 200]);
        // The tolerance of one second on both sides.
        assert_eq!(found(201, 220), [100, 120, 150, 200]);
        assert_eq!(found(205, 250), [120, 150, 200, 250]);
        assert_eq!(found(400, 500), [120, 150, 250, 300]);
        assert_eq!(found(0, u64::MAX / SLACK_NS - BASE).len(), 6);
        // The first file was written while the second one was captured.
        let mut overlapping = vec![file("a", 0, 100, "pcap"), file("a", 0, 200, "pcap")];
        let times = (BASE + 300) * SLACK_NS..(BASE + 400) * SLACK_NS;
        assert_eq!(reaching(overlapping.clone(), &times).len(), 1);
        overlapping[0].1 = Some((BASE + 310) * SLACK_NS - CLOCKS_NS);
        assert_eq!(reaching(overlapping.clone(), &times).len(), 2);
        overlapping[0].1 = None;
        assert_eq!(reaching(overlapping.clone(), &times).len(), 2);
        // The clock of the sensor was ahead when it captured the first file.
        overlapping[0].1 = Some((BASE - 301) * SLACK_NS);
        assert_eq!(reaching(overlapping, &times).len(), 2);
    }
}
