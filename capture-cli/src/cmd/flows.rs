//! `wqcap flows`: writes the flow records of stored capture files, without a NIC.
//!
//! The frames are read in the order of time over all files, and their times are those of the files.

use crate::{
    args::FlowsArgs,
    cmd::key,
    daemon::{self, signals},
    failure::Failure,
    term::{
        output,
        progress::ReadProgress,
        table::{counted, rate, scaled, thousands},
        terminal,
        text::Text,
    },
};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write, fs, io, sync::atomic::Ordering, time::Duration};
use wqcap_engine::{
    analysis::flows::{FlowWriter, FlowsPlan, FlowsReport, PortLabels},
    config::FlowsConfig,
    files::link::{EthernetFrames, link_type_name},
    frame::Headers,
    merge::{self, MergePlan, MergeSummary},
    pipeline::Frame,
};

/// Number of frames between two sweeps that end old flows in the flow table.
const BATCH: u64 = 64;
/// Maximum number of captured ports with a label, because flow records number ports with one byte.
const MOST_LABELS: usize = u8::MAX as usize;

/// JSON document that `wqcap flows --json` prints.
#[derive(Serialize)]
struct FlowsDocument<'a> {
    #[serde(flatten)]
    report: &'a FlowsReport,
    /// Number of frames in the capture files, including those without a flow record.
    frames_read: u64,
    /// Number of frames whose link type has no Ethernet frames, which have no flow record.
    other_link_types: u64,
    inputs: &'a [merge::InputFacts],
    notes: &'a [String],
    seconds: f64,
}

/// Writes the flow records of the capture files, and returns a failure with a message for each file
/// that lost frames.
pub fn flows(args: &FlowsArgs, quiet: bool) -> Result<(), Failure> {
    let key = key::of_args(&args.key)?;
    // Many files may overlap in time.
    daemon::raise_descriptor_limit();
    let config = args.config.load()?.flows.unwrap_or_default();
    let plan = MergePlan::for_reading(&args.inputs, key.as_ref())?;
    match fs::create_dir(&args.out) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Failure::refused(format!("{}: {e}", args.out.display())));
        }
        _ => {}
    }
    let flows = flows_plan(args, &config);
    let writer = FlowWriter::start(&flows, 1)?;
    let writer = writer.with_waiting_meters();
    let stop = signals::catch()?;
    let mut reading = ReadProgress::with_size(quiet, plan.bytes().unwrap_or(0));
    let counted = count(plan, &writer, |bytes| {
        reading.tick(&args.out, bytes);
        !stop.load(Ordering::Relaxed)
    });
    reading.clear();
    // Also after an error, so that no incomplete file stays.
    let report = writer.finish();
    let StoredFlows {
        summary,
        frames,
        foreign,
    } = counted?;
    let others: u64 = foreign.values().sum();
    let mut notes = summary.notes.clone();
    for (link_type, n) in &foreign {
        notes.push(format!(
            "{n} frames of {} have no flow record",
            link_type_name(*link_type)
        ));
    }
    if args.json {
        output::print_json(&FlowsDocument {
            report: &report,
            frames_read: frames,
            other_link_types: others,
            inputs: &summary.inputs,
            notes: &notes,
            seconds: summary.seconds,
        })?;
    } else if !quiet {
        terminal::print_block(&text(args, &report, &summary, frames, &notes));
    }
    let losses = summary.losses.into_iter();
    Failure::from_messages(losses.chain(report.failures).collect())
}

/// Returns the settings of the flow records: those of the config, with the directory of the option
/// `-o`.
fn flows_plan(args: &FlowsArgs, config: &FlowsConfig) -> FlowsPlan {
    FlowsPlan {
        dir: args.out.clone(),
        interval_ns: config.interval.nanos(),
        active_ns: config.active.nanos(),
        idle_ns: config.idle.nanos(),
        capacity: FlowsPlan::capacity_of(config.memory.0, None),
        names: config.names || args.names,
    }
}

/// Result of reading the capture files for flow records.
struct StoredFlows {
    summary: MergeSummary,
    /// Number of frames that were read from all capture files.
    frames: u64,
    /// Number of frames whose link type has no Ethernet frames, by link type.
    foreign: BTreeMap<u32, u64>,
}

/// Adds all frames of the capture files to flow records, in the order of time.
fn count(
    plan: MergePlan,
    writer: &FlowWriter,
    watch: impl FnMut(u64) -> bool,
) -> Result<StoredFlows, Failure> {
    let labels = plan.port_names().take(MOST_LABELS).map(Into::into);
    let labels: PortLabels = labels.collect::<Vec<_>>().into();
    let meter = writer.meter(0, 0, labels);
    let mut meter = meter.ok_or_else(|| Failure::failed("flow records have ended"))?();
    let mut ethernet = EthernetFrames::default();
    let (mut frames, mut foreign) = (0, BTreeMap::new());
    let summary = merge::visit(
        plan,
        |record| {
            frames += 1;
            let (bytes, len) = record.packet.without_fcs(record.fcs_len);
            let link_type = record.link_type;
            let Some((bytes, len)) = ethernet.convert(link_type, bytes, len) else {
                *foreign.entry(link_type).or_default() += 1;
                return;
            };
            let mut frame = Frame::new(bytes, len, record.packet.ns);
            frame.port = u8::try_from(record.port).unwrap_or(u8::MAX);
            let outer = Headers::parse(bytes);
            match outer.descend(bytes) {
                Some(_) => meter.count(&frame, &outer, &Headers::innermost(bytes)),
                None => meter.count(&frame, &outer, &outer),
            }
            if frames % BATCH == 0 {
                meter.batch();
            }
        },
        watch,
    )?;
    drop(meter);
    Ok(StoredFlows {
        summary,
        frames,
        foreign,
    })
}

/// Formats the result of `wqcap flows` as text.
fn text(
    args: &FlowsArgs,
    report: &FlowsReport,
    summary: &MergeSummary,
    frames: u64,
    notes: &[String],
) -> String {
    let time = Duration::from_secs_f64(summary.seconds);
    let mut text = format!(
        "{} of {} from {} into {}: {}, {}B/s\n",
        counted(report.totals.records, "flow record"),
        counted(frames, "frame"),
        counted(summary.inputs.len() as u64, "file"),
        Text(args.out.display()),
        counted(report.files.len(), "file"),
        scaled(rate(summary.bytes_read, time))
    );
    if let Some(names) = &report.names {
        let _ = writeln!(
            text,
            "names: {} with a name, {} of DNS, {} of DHCP",
            counted(names.flows, "flow record"),
            counted(names.dns, "row"),
            counted(names.dhcp, "row")
        );
    }
    let totals = &report.totals;
    for (n, what) in [
        (
            totals.evicted,
            "flow records ended early, because flows.memory was full",
        ),
        (totals.missed_frames, "frames are in no flow record"),
        (report.unwritten, "flow records could not be written"),
    ] {
        if n > 0 {
            let _ = writeln!(text, "note: {} {what}", thousands(n));
        }
    }
    for input in &summary.inputs {
        for note in &input.notes {
            let _ = writeln!(text, "note: {}: {}", Text(&input.path), Text(note));
        }
    }
    for note in notes {
        let _ = writeln!(text, "note: {}", Text(note));
    }
    text
}
