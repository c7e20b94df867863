//! Live statistics as text.

use crate::term::table::{bytes, scaled, span, thousands};
use std::{collections::BTreeMap, fmt::Write};
use wqcap_engine::analysis::live::{Distribution, Talker, TrafficSnapshot, Volume};

/// Maximum number of senders that the text of the live statistics lists.
const TALKERS: usize = 5;

/// Formats the live statistics of the traffic, one line per kind of statistics. Kinds without data
/// are left out.
pub fn text(it: &TrafficSnapshot) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "{what:<10}{value}");
        }
    };
    line(
        "now",
        format!(
            "{}frames/s  {}bit/s",
            scaled(it.frames_per_s),
            scaled(it.bits_per_s)
        ),
    );
    if it.queues.len() > 1 {
        let rates = it
            .queues
            .iter()
            .map(|q| format!("q{} {}frames/s", q.queue, scaled(q.frames_per_s)));
        line("queues", joined(rates));
    }
    line("protocols", shares(&it.protocols, it.frames));
    line("traits", shares(&it.traits, it.frames));
    let mut from = 0;
    let sizes = it.sizes.iter().filter_map(|bin| {
        let first = std::mem::replace(
            &mut from,
            bin.up_to.map_or(0, |last| last.saturating_add(1)),
        );
        let name = match bin.up_to {
            Some(last) => format!("{first}-{last}"),
            None => format!("{first} and more"),
        };
        (bin.frames > 0).then(|| format!("{name} {}", percent(bin.frames, it.frames)))
    });
    line("sizes", joined(sizes));
    line(
        "gaps",
        it.inter_arrival.as_ref().map_or(String::new(), times),
    );
    line("held", it.hold.as_ref().map_or(String::new(), times));
    let over = format!("of the last {:.0} s", it.talkers.over_s);
    let sent = |talker: &Talker| format!("{} {}", talker.address, bytes(talker.count));
    let talkers = it.talkers.by_bytes.iter().take(TALKERS).map(sent);
    let talkers = joined(talkers);
    if !talkers.is_empty() {
        line("senders", format!("{talkers} ({over})"));
    }
    text
}

/// Joins the parts of a line of the statistics with commas.
fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// Formats each protocol's or trait's share of the traffic, the largest first.
fn shares(volumes: &BTreeMap<String, Volume>, of: u64) -> String {
    let mut volumes: Vec<_> = volumes.iter().filter(|(_, it)| it.frames > 0).collect();
    volumes.sort_by_key(|(_, it)| std::cmp::Reverse(it.frames));
    joined(
        volumes
            .into_iter()
            .map(|(name, it)| format!("{name} {}", percent(it.frames, of))),
    )
}

/// Formats `part` as a share of `of`, in percent.
fn percent(part: u64, of: u64) -> String {
    let percent = part as f64 * 100.0 / of.max(1) as f64;
    if percent > 0.0 && percent < 1.0 {
        "< 1 %".into()
    } else {
        format!("{percent:.0} %")
    }
}

/// Formats the percentiles and the maximum of a distribution of times.
fn times(it: &Distribution) -> String {
    format!(
        "p50 {}, p99 {}, max {}, of {}",
        span(it.p50_ns),
        span(it.p99_ns),
        span(it.max_ns),
        thousands(it.count)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use wqcap_engine::analysis::live::{QueueRate, SizeBin, TopTalkers};

    #[test]
    fn only_statistics_with_data_are_printed() {
        let volume = |frames| Volume { frames, bytes: 0 };
        let queue = |queue| QueueRate {
            queue,
            frames_per_s: 500.0,
            ..QueueRate::default()
        };
        let snapshot = TrafficSnapshot {
            frames: 1000,
            frames_per_s: 1000.0,
            queues: vec![queue(0), queue(1)],
            protocols: [
                ("tcp".into(), volume(1)),
                ("udp".into(), volume(999)),
                ("arp".into(), volume(0)),
            ]
            .into(),
            sizes: vec![
                SizeBin {
                    up_to: Some(60),
                    frames: 250,
                },
                SizeBin {
                    up_to: None,
                    frames: 750,
                },
            ],
            talkers: TopTalkers {
                over_s: 10.0,
                by_bytes: vec![Talker {
                    address: "10.0.0.1".into(),
                    count: 1536,
                    error: 0,
                }],
                by_frames: Vec::new(),
            },
            ..TrafficSnapshot::default()
        };
        assert_eq!(
            text(&snapshot),
            "now       1.00 kframes/s  0 bit/s\n\
             queues    q0 500 frames/s, q1 500 frames/s\n\
             protocols udp 100 %, tcp < 1 %\n\
             sizes     0-60 25 %, 61 and more 75 %\n\
             senders   10.0.0.1 1.5 KiB (of the last 10 s)\n"
        );
    }
}
