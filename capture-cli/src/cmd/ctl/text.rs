//! Answers of the control service as text.

use super::traffic;
use crate::term::{
    table::{aligned, bytes, cells, counted, rate, scaled, thousands, valid_seconds},
    text::Text,
};
use serde_json::Value;
use std::fmt::Write;
use wqcap_control::protocol::{
    CaptureState, ControlStatus, Outlook, RdmaStatus, Stats, Status, TransportStatus,
};
use wqcap_engine::stats::{Counter, QueueLedger, Total};

/// Returns the text that an answer of the control service contains, or else the answer's JSON.
pub fn text_of(it: &Value) -> String {
    match it["text"].as_str() {
        Some(text) => text.to_owned(),
        None => format!("{it:#}\n"),
    }
}

/// Returns the printed name of a capture's state.
pub fn state(it: CaptureState) -> &'static str {
    match it {
        CaptureState::Running => "running",
        CaptureState::Drained => "drained",
        CaptureState::Stopped => "stopped",
        CaptureState::Lost => "device lost",
    }
}

/// Formats the status of the capture and of the control service, one line per item.
pub fn status(it: &Status) -> String {
    let capture = &it.capture;
    let mut text = String::new();
    let mut line = |what: &str, value: String| _ = writeln!(text, "{what:<10}{}", Text(value));
    line(
        "state",
        format!(
            "{}, {:.1} s, process {}",
            state(capture.state),
            capture.elapsed_s,
            capture.pid
        ),
    );
    line(
        "device",
        format!(
            "{} port {}, {}",
            capture.device,
            capture.port,
            counted(capture.queues.into(), "queue")
        ),
    );
    let filter = if capture.filter.is_empty() {
        "every frame"
    } else {
        &capture.filter
    };
    line("filter", filter.to_owned());
    line("log", capture.log.clone());
    line("frames", total(&capture.ledger));
    if let Some(outlook) = &capture.disk {
        line("disk", disk(outlook));
    }
    let ControlStatus { unix, rdma } = &it.control;
    if let Some(unix) = unix {
        line("unix", transport(unix));
    }
    if let Some(rdma) = rdma {
        line("rdma", transport(&rdma.transport));
        line("srq", srq(rdma));
    }
    line("wqcap", capture.wqcap.clone());
    text
}

/// Describes how long capture files stay before retention deletes them, or how long until the disk
/// is full.
pub fn disk(it: &Outlook) -> String {
    let time = match it.seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} seconds"),
        seconds if seconds < 7200.0 => format!("{:.0} minutes", seconds / 60.0),
        seconds => format!("{:.0} hours", seconds / 3600.0),
    };
    let rate = scaled(it.bytes_per_s);
    match it.deletes {
        true => format!(
            "the oldest files are deleted after {time} at the write rate of the last hour, {rate}B/s"
        ),
        false => {
            format!("the disk is full in {time} at the write rate of the last hour, {rate}B/s")
        }
    }
}

/// Describes the numbers of frames in a ledger; lines that are 0 are left out.
fn total(it: &Total) -> String {
    let mut text = format!(
        "{} received, {} captured, {}",
        thousands(it.received),
        thousands(it.captured),
        bytes(it.bytes)
    );
    for (name, n) in [
        ("filtered", it.filtered),
        ("sampled_out", it.sampled_out),
        ("deduplicated", it.deduplicated),
        ("cut_off", it.cut_off),
        ("dropped_pipeline", it.dropped_pipeline),
        ("dropped_storage", it.dropped_storage),
        ("late", it.late),
        ("errors", it.errors),
    ] {
        if n > 0 {
            let _ = write!(text, ", {} {name}", thousands(n));
        }
    }
    text
}

/// Describes the clients of a transport of the control service.
fn transport(it: &TransportStatus) -> String {
    format!(
        "{}, {} accepted, {} refused, {} expelled, {}",
        counted(it.clients, "client"),
        it.accepted,
        it.refused,
        it.expelled,
        counted(it.requests, "request")
    )
}

/// Describes the shared receive queue (SRQ) of the control service's RDMA clients.
fn srq(RdmaStatus { srq: it, .. }: &RdmaStatus) -> String {
    let not_ready = it
        .receiver_not_ready
        .map_or("unreadable".into(), |n| n.to_string());
    format!(
        "{} of {} WRs posted (cap {}, {}), limit {} armed {} and reached {}, grown {}, shrunk {}, \
         refused {}, receiver not ready {not_ready}, {} QPs",
        it.posted,
        it.max_wr,
        it.cap,
        if it.resizes {
            "resized as needed"
        } else {
            "fixed"
        },
        it.limit,
        counted(it.armed, "time"),
        counted(it.limit_events, "time"),
        it.grown,
        it.shrunk,
        it.resize_refused,
        it.qps
    )
}

/// Formats the frame ledger of each queue as a table, the totals since the start, and the live
/// statistics.
pub fn stats(it: &Stats) -> String {
    let heads = ["queue", "received", "captured", "left out", "lost", "bytes"];
    let mut rows = vec![cells(heads)];
    let mut row = |name: String, it: &QueueLedger| {
        let numbers = [it.received, it.captured, it.left_out(), it.lost(), it.bytes];
        rows.push([vec![name], numbers.map(thousands).to_vec()].concat());
    };
    for q in &it.ledger.queues {
        row(q.name(&it.ledger.ports), q);
    }
    row("total".into(), &it.ledger.total.into());
    let mut text = aligned(&rows) + &watched(None, it);
    if let Some(statistics) = &it.statistics {
        text.push('\n');
        text.push_str(&traffic::text(statistics));
    }
    text
}

/// Formats a line of `wqcap ctl watch`: the rates since the previous line, and the totals since the
/// start.
pub fn watched(before: Option<&Stats>, now: &Stats) -> String {
    let zero = Stats::default();
    let before = before.unwrap_or(&zero);
    let (was, is) = (&before.ledger.total, &now.ledger.total);
    // A new capture may have started since the previous line.
    let time = valid_seconds(now.elapsed_s - before.elapsed_s);
    let frames = is.received.saturating_sub(was.received);
    let octets = is.bytes.saturating_sub(was.bytes);
    let mut line = format!(
        "{:>9.1} s  {:>9}frames/s  {:>9}bit/s  received {}  captured {}  lost {}",
        now.elapsed_s,
        scaled(rate(frames, time)),
        scaled(rate(octets, time) * 8.0),
        thousands(is.received),
        thousands(is.captured),
        thousands(QueueLedger::from(*is).lost())
    );
    for (name, counter) in &now.nic {
        match counter {
            Counter::Value(0) => {}
            Counter::Value(n) => _ = write!(line, "  {name} {}", thousands(*n)),
            Counter::Unreadable(_) => _ = write!(line, "  {name} unreadable"),
        }
    }
    let heaviest = now.statistics.as_ref().map(|it| &it.talkers.by_bytes);
    if let Some(talker) = heaviest.and_then(|them| them.first()) {
        let _ = write!(line, "  most from {}", talker.address);
    }
    // Names and addresses are texts of the service.
    format!("{}\n", Text(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_names_what_was_lost() {
        let mut status_of = Status {
            capture: Default::default(),
            control: ControlStatus::default(),
        };
        status_of.capture.ledger.dropped_storage = 1234;
        let text = status(&status_of);
        assert!(text.contains("1,234 dropped_storage"), "{text}");
        assert!(
            text.contains("every frame") && !text.contains("errors"),
            "{text}"
        );
    }

    #[test]
    fn disk_time_is_in_hours() {
        let described = |seconds, deletes| {
            disk(&Outlook {
                bytes_per_s: 12_300_000.0,
                seconds,
                deletes,
            })
        };
        assert_eq!(
            described(51_000.0, true),
            "the oldest files are deleted after 14 hours at the write rate of the last hour, 12.3 MB/s"
        );
        assert_eq!(
            described(5400.0, false),
            "the disk is full in 90 minutes at the write rate of the last hour, 12.3 MB/s"
        );
        assert!(described(30.0, true).contains("after 30 seconds"));
    }

    #[test]
    fn answers_with_text_are_printed_as_text() {
        let shown = |it| text_of(&it);
        assert_eq!(shown(serde_json::json!({"text": "a\nb\n"})), "a\nb\n");
        assert!(shown(serde_json::json!({"devices": []})).contains("devices"));
    }
}
