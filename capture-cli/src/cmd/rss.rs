//! `wqcap rss`: predicts which queue RSS selects for each flow of a capture, without a NIC.

use crate::{
    args::RssArgs,
    cmd::key,
    failure::Failure,
    term::{
        output,
        progress::ReadProgress,
        table::{aligned, bytes, cells, counted, thousands},
        terminal,
        text::Text,
    },
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashSet},
    fmt::Write,
    fs::Metadata,
    os::unix::fs::MetadataExt,
};
use wqcap_engine::{
    files::link::{EthernetFrames, link_type_name},
    format::ETHERNET,
    merge::{FolderRemarks, files_and_folders, linked_twice},
    plan::simulate::{ByReason, SimulatedQueue, Simulation, SimulationReport, Suggestion},
    read::{FileEnd, FileRanges, ReadError},
};

/// Facts about one input file of `wqcap rss`.
#[derive(Debug, Serialize)]
struct FileFacts {
    /// Path of the capture file.
    path: String,
    /// Number of the file's frames that RSS spreads over queues.
    frames: u64,
    /// Number of frames whose link type has no Ethernet frames, which are not spread over queues.
    other_link_types: u64,
    /// Notes for the user about the input file.
    notes: Vec<String>,
}

/// JSON document that `wqcap rss --json` prints.
#[derive(Serialize)]
struct Document<'a> {
    files: &'a [FileFacts],
    #[serde(flatten)]
    report: &'a SimulationReport,
}

/// Runs `wqcap rss`: reads capture files, and prints the predicted load of each queue.
pub fn rss(args: &RssArgs, quiet: bool) -> Result<(), Failure> {
    if let Some(it) = args.config.model().first() {
        return Err(Failure::refused(format!(
            "--set model.{}={}: wqcap rss does not run the software NIC; leave this option out",
            it.key, it.value
        )));
    }
    let key = key::of_args(&args.key)?;
    let config = args.config.load()?;
    let mut simulation = Simulation::new(&config, args.suggest)?;
    let mut remarks = FolderRemarks::default();
    let inputs = files_and_folders(&args.files, key.as_ref(), None, &mut remarks)?;
    let FolderRemarks {
        mut notes,
        mut losses,
    } = remarks;
    let paths: Vec<_> = inputs.iter().map(|it| it.path().to_owned()).collect();
    let mut reading = ReadProgress::new(quiet, &paths);
    let mut files = Vec::new();
    let mut seen = HashSet::new();
    for file in &inputs {
        let metadata = file.path().metadata().ok().filter(Metadata::is_file);
        let is_new = metadata.is_none_or(|it| seen.insert((it.dev(), it.ino())));
        if !is_new && file.may_be_lost() {
            notes.push(linked_twice(&file.path().display().to_string()));
            continue;
        }
        files.extend(read(file, &mut simulation, &mut reading, &mut losses)?);
    }
    reading.clear();
    for note in notes {
        terminal::print_note(format_args!("{note}"));
    }
    if files.is_empty() {
        return Failure::from_messages(losses);
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let report = simulation.report(u16::try_from(cpus).unwrap_or(u16::MAX));
    let others: u64 = files.iter().map(|f| f.other_link_types).sum();
    if report.frames == 0 && others > 0 {
        return Err(Failure::refused(format!(
            "the input has no Ethernet frame (link type 1) among {}; rules of a NIC match only Ethernet frames",
            counted(others, "frame")
        )));
    }
    if args.json {
        output::print_json(&Document {
            files: &files,
            report: &report,
        })?;
    } else {
        output::print(&text(&files, &report, &Canvas::of_stdout()))?;
    }
    Failure::from_messages(losses)
}

/// Adds the frames of a capture file to the RSS simulation. Returns a failure if a file that the
/// user named cannot be opened; a file of a folder is left out with a message in `losses`. If a
/// file is damaged later, adds a message to `losses` and keeps the frames before the damage.
fn read(
    file: &FileRanges,
    simulation: &mut Simulation,
    reading: &mut ReadProgress,
    losses: &mut Vec<String>,
) -> Result<Option<FileFacts>, Failure> {
    let shown = file.path().display();
    let mut unreadable = |problem: &str| {
        let message = format!("{shown}: {problem}");
        if !file.may_be_lost() {
            return Err(Failure::refused(message));
        }
        losses.push(message);
        Ok(None)
    };
    let mut reader = match file.open() {
        Ok(reader) => reader,
        Err(e) => return unreadable(&opening_error(&e)),
    };
    let (mut frames, mut other_link_types) = (0, 0);
    let mut converted: BTreeMap<u32, u64> = BTreeMap::new();
    let mut ethernet = EthernetFrames::default();
    let mut notes = Vec::new();
    loop {
        match reader.advance() {
            Ok(true) => {}
            Ok(false) => break,
            // Damage before the first frame means that this is not a capture file, whatever its
            // first bytes are.
            Err(e @ ReadError::Damaged { .. }) if frames + other_link_types == 0 => {
                return unreadable(&e.to_string());
            }
            Err(e) => {
                losses.push(format!(
                    "{shown}: {e}; the result includes only {} before this error",
                    counted(frames, "frame")
                ));
                break;
            }
        }
        let Some(packet) = reader.packet() else { break };
        let Some(interface) = reader.interfaces().get(packet.interface) else {
            break;
        };
        let link_type = interface.link_type;
        let (bytes, len) = packet.without_fcs(interface.fcs_len);
        if let Some((frame, len)) = ethernet.convert(link_type, bytes, len) {
            frames += 1;
            simulation.frame(frame, len, packet.ns);
            if link_type != ETHERNET {
                *converted.entry(link_type).or_default() += 1;
            }
        } else {
            other_link_types += 1;
        }
        if (frames + other_link_types).is_multiple_of(1 << 14) {
            reading.tick(file.path(), reader.offset());
        }
    }
    reading.done(reader.offset());
    notes.extend(
        reader
            .end()
            .filter(|end| *end != FileEnd::Clean)
            .map(|end| end.to_string()),
    );
    for (link_type, n) in converted {
        notes.push(format!(
            "{} of {} have no Ethernet header; the result is that of the same packets with one",
            counted(n, "frame"),
            link_type_name(link_type)
        ));
    }
    if other_link_types > 0 {
        notes.push(format!(
            "the result does not include {} that are not Ethernet frames",
            counted(other_link_types, "frame")
        ));
    }
    let raised = reader.anomalies().longer_than_frame;
    if raised > 0 {
        notes.push(format!(
            "the file has {} with more bytes than the length that their records state; the result uses the bytes in the file",
            counted(raised, "record")
        ));
    }
    Ok(Some(FileFacts {
        path: shown.to_string(),
        frames,
        other_link_types,
        notes,
    }))
}

/// Formats the error of an input file that cannot be opened, without a byte offset of 0.
fn opening_error(e: &ReadError) -> String {
    match e {
        ReadError::Io { offset: 0, source } => source.to_string(),
        other => other.to_string(),
    }
}

/// Properties of stdout that determine how the report's bars and lines are drawn.
struct Canvas {
    /// Width in columns to which the report is formatted: that of stdout, or 80.
    columns: usize,
    /// `true` if lines longer than `columns` are cut, as on a terminal.
    cut: bool,
    /// Character that forms the bars: a block on a UTF-8 terminal, otherwise `#`.
    full: char,
}

impl Canvas {
    /// Returns the width, and the character for bars, of stdout.
    fn of_stdout() -> Self {
        let terminal = terminal::stdout_columns();
        Self {
            columns: terminal.unwrap_or(80),
            cut: terminal.is_some(),
            full: if terminal.is_some() && terminal::is_utf8() {
                '█'
            } else {
                '#'
            },
        }
    }
}

/// Formats the report of `wqcap rss` as text.
fn text(files: &[FileFacts], report: &SimulationReport, canvas: &Canvas) -> String {
    let mut text = String::new();
    let spread = &report.spread;
    let weights = if spread.weights.is_empty() {
        String::new()
    } else {
        format!(", weights {:?}", spread.weights)
    };
    let _ = writeln!(
        text,
        "{}, {}, {} in {:.3} s; hash {}{}, key {}, table of {}{weights}",
        counted(report.frames, "frame"),
        bytes(report.bytes),
        counted(report.flows, "flow"),
        report.seconds,
        spread.hash,
        if spread.inner { " inside tunnels" } else { "" },
        spread.key,
        spread.table_size
    );
    if report.further_flows.frames > 0 {
        let _ = writeln!(
            text,
            "note: {} are of further flows, which the counts of flows and the heaviest flows do not include",
            counted(report.further_flows.frames, "frame")
        );
    }
    for note in &spread.notes {
        let _ = writeln!(text, "note: {}", Text(note));
    }
    for file in files {
        for note in &file.notes {
            let _ = writeln!(text, "note: {}: {}", Text(&file.path), Text(note));
        }
    }
    text.push('\n');
    text.push_str(&bars(report, canvas));
    let skew = |skew: Option<f64>| skew.map_or("-".into(), |skew| format!("{skew:.2}"));
    let _ = writeln!(
        text,
        "\nskew (busiest over mean): {} by frames, {} by bytes",
        skew(report.skew.frames),
        skew(report.skew.bytes)
    );
    let directions = report.directions;
    let _ = writeln!(
        text,
        "both directions seen: {}, {}",
        counted(directions.both, "flow"),
        match directions.split {
            0 => "each on one queue".into(),
            n => format!(
                "the two directions of {} of these flows are on two queues",
                thousands(n)
            ),
        }
    );
    reasons(
        &mut text,
        "catch-all (queue 0, not hashed)",
        &report.catch_all,
    );
    reasons(
        &mut text,
        "hashed by addresses alone",
        &report.addresses_only,
    );
    for (what, load) in [
        ("dropped by rules", report.dropped),
        ("taken by no rule, left to the kernel", report.left),
    ] {
        if load.frames > 0 {
            let frames = counted(load.frames, "frame");
            let _ = writeln!(text, "{what}: {frames}, {}", bytes(load.bytes));
        }
    }
    heaviest(&mut text, report, canvas);
    if let Some(suggestion) = &report.suggestion {
        suggest(&mut text, suggestion);
    }
    text
}

/// Formats `n` as a share of `of`, in percent.
fn share(n: u64, of: u64) -> String {
    match of {
        0 => "-".into(),
        of => format!("{:.1}%", n as f64 * 100.0 / of as f64),
    }
}

/// Formats the predicted load of the queues, each with a bar whose length is proportional to its
/// bytes.
fn bars(report: &SimulationReport, canvas: &Canvas) -> String {
    let mut rows = vec![cells(["queue", "flows", "frames", "", "bytes", ""])];
    rows.extend(report.queues.iter().map(|q| {
        vec![
            q.queue.to_string(),
            thousands(q.flows),
            thousands(q.load.frames),
            share(q.load.frames, report.frames),
            thousands(q.load.bytes),
            share(q.load.bytes, report.bytes),
        ]
    }));
    let plain = aligned(&rows);
    let widest = plain.lines().map(|l| l.chars().count()).max().unwrap_or(0);
    let room = canvas.columns.saturating_sub(widest + 3).min(60);
    let most = report
        .queues
        .iter()
        .map(|q| q.load.bytes)
        .max()
        .unwrap_or(0);
    let bar = |q: &SimulatedQueue| {
        if most == 0 || room < 5 {
            return String::new();
        }
        // A queue that is not empty has at least one mark.
        let length = (q.load.bytes as f64 / most as f64 * room as f64).round() as usize;
        let length = length.max(usize::from(q.load.bytes > 0));
        canvas.full.to_string().repeat(length)
    };
    let mut text = String::new();
    let mut lines = plain.lines();
    if let Some(head) = lines.next() {
        let _ = writeln!(text, "{head}");
    }
    for (line, queue) in lines.zip(&report.queues) {
        let line = format!("{line:<widest$}  {}", bar(queue));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Formats the number of simulated frames of the kind `what`, and their number for each reason.
fn reasons(text: &mut String, what: &str, by: &ByReason) {
    let parts: Vec<_> = by
        .reasons
        .iter()
        .filter(|(_, load)| load.frames > 0)
        .map(|(name, load)| format!("{} {}", name.replace('_', " "), thousands(load.frames)))
        .collect();
    let list = if parts.is_empty() {
        String::new()
    } else {
        format!(": {}", parts.join(", "))
    };
    let _ = writeln!(text, "{what}: {}{list}", counted(by.load.frames, "frame"));
}

/// Formats the flows of the RSS simulation with the most traffic.
fn heaviest(text: &mut String, report: &SimulationReport, canvas: &Canvas) {
    if report.heaviest.is_empty() {
        return;
    }
    text.push_str("\nheaviest flows\n");
    let rows: Vec<_> = report
        .heaviest
        .iter()
        .map(|flow| {
            let queues: Vec<_> = flow.queues.iter().map(|q| format!("q{q}")).collect();
            vec![
                queues.join("+"),
                share(flow.load.bytes, report.bytes),
                bytes(flow.load.bytes),
                thousands(flow.load.frames),
            ]
        })
        .collect();
    let most = if canvas.cut {
        canvas.columns
    } else {
        usize::MAX
    };
    for (line, flow) in aligned(&rows).lines().zip(&report.heaviest) {
        let id = flow.community_id.as_deref().unwrap_or_default();
        let line = format!("  {line}  {}  {id}", flow.flow);
        let line: String = line.trim_end().chars().take(most).collect();
        let _ = writeln!(text, "{line}");
    }
}

/// Formats the settings for RSS that the simulation suggests.
fn suggest(text: &mut String, suggestion: &Suggestion) {
    let _ = writeln!(text, "\nsuggested");
    for setting in &suggestion.settings {
        let _ = writeln!(
            text,
            "  {} = {}{}: {}",
            setting.key,
            setting.value,
            if setting.changes { "" } else { " (unchanged)" },
            setting.why
        );
    }
    let changes: Vec<_> = suggestion
        .settings
        .iter()
        .filter(|s| s.changes)
        .map(|s| format!("--set {}={}", s.key, quoted(&s.value)))
        .collect();
    if changes.is_empty() {
        let _ = writeln!(text, "  no change would improve the spread");
    } else {
        let _ = writeln!(
            text,
            "  the busiest queue has {:.1} % of the load now, and would have {:.1} %: {}",
            suggestion.busiest_now * 100.0,
            suggestion.busiest_then * 100.0,
            changes.join(" ")
        );
    }
}

/// Quotes the value of a suggested setting for a shell.
fn quoted(value: &str) -> String {
    if value.contains([' ', '[']) {
        format!("'{value}'")
    } else {
        value.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wqcap_engine::config::Config;

    /// Returns the report for `frames` UDP frames, each of a separate flow.
    fn report(queues: &str, frames: u16) -> SimulationReport {
        let config = Config::with_overrides("", &[("capture.queues", queues)]).unwrap();
        let mut simulation = Simulation::new(&config, true).unwrap();
        for i in 0..frames {
            let mut frame = vec![0; 60];
            frame[12..15].copy_from_slice(&[8, 0, 0x45]);
            frame[23] = 17;
            frame[34..36].copy_from_slice(&i.to_be_bytes());
            simulation.frame(&frame, 60, u64::from(i));
        }
        simulation.report(2)
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for columns in [60, 80, 200] {
            let canvas = Canvas {
                columns,
                cut: true,
                full: '#',
            };
            let report = report("4", 1000);
            let drawn = bars(&report, &canvas);
            assert!(
                drawn.lines().all(|l| l.chars().count() < columns),
                "{drawn}"
            );
            assert_eq!(drawn.lines().count(), 5);
            assert!(drawn.contains("####"), "{drawn}");
        }
    }

    #[test]
    fn without_frames_skew_and_bars_are_empty() {
        let canvas = Canvas {
            columns: 80,
            cut: false,
            full: '#',
        };
        let text = text(&[], &report("2", 0), &canvas);
        assert!(
            text.contains("skew (busiest over mean): - by frames") && !text.contains('#'),
            "{text}"
        );
    }

    #[test]
    fn settings_are_ready_for_a_shell() {
        assert_eq!(quoted("[1, 2]"), "'[1, 2]'");
        assert_eq!(quoted("4"), "4");
    }
}
