//! `wqcap merge`: merges capture files into one, in time order.
//!
//! The summary goes to stderr, because stdout may carry the capture. With `--json` it goes to
//! stdout, and the capture must go to a file.

use crate::{
    args::MergeArgs,
    cmd::key,
    daemon::{self, signals},
    failure::Failure,
    term::{
        output,
        progress::ReadProgress,
        table::{bytes, counted, rate, scaled, span, thousands},
        terminal,
        text::Text,
    },
};
use std::{
    fmt::{Display, Write},
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Duration,
};
use wqcap_engine::{
    files::folder::{
        device_and_inode,
        open::{MOST_LIST, read_named},
    },
    format::secrets::{KeyLog, Secrets},
    frame::dedup::IgnoredFields,
    merge::{self, MergeError, MergePlan, MergeSummary, MergeTarget},
};

impl From<MergeError> for Failure {
    fn from(e: MergeError) -> Self {
        match e {
            MergeError::Refused(message) => Self::refused(message),
            e => Self::failed(e),
        }
    }
}

/// Merges capture files, and returns a failure with a message for each file that lost packet
/// records.
pub fn merge(args: &MergeArgs, quiet: bool) -> Result<(), Failure> {
    settle_stdout(&args.out, args.json)?;
    let secrets = args.inject_secrets.iter();
    let secrets = secrets.map(|it| ("--inject-secrets", it));
    spare_files(
        &args.out,
        secrets.chain(args.key.key.iter().map(|it| ("--key", it))),
    )?;
    let key = key::of_args(&args.key)?;
    // Many files may overlap in time.
    daemon::raise_descriptor_limit();
    let mut plan = MergePlan::new(&args.inputs, key.as_ref(), &args.out)?;
    for path in &args.inject_secrets {
        let log = key_log(path)?;
        plan.inject(log.secrets)?;
        if let Some(lines) = log.left_out {
            plan.add_note(format!(
                "--inject-secrets {}: {} left out, the first is line {}: not a line of a TLS key log",
                path.display(),
                counted(lines.count as u64, "line"),
                lines.first
            ));
        }
    }
    if let Some(window) = args.dedup {
        let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        plan.leave_out_repetitions(
            window_ns,
            IgnoredFields::from_iter(args.dedup_ignore.iter().copied()),
        )?;
    }
    let target = MergeTarget::new(&args.out, &plan)?;
    let stop = signals::catch()?;
    let mut reading = ReadProgress::with_size(quiet, plan.bytes().unwrap_or(0));
    let summary = merge::run(plan, target, |bytes| {
        reading.tick(Path::new(&args.out), bytes);
        !stop.load(Ordering::Relaxed)
    });
    reading.clear();
    let summary = summary?;
    if args.json {
        output::print_json(&summary)?;
    } else if !quiet {
        terminal::print_block(&text(&summary));
    }
    Failure::from_messages(summary.losses)
}

/// Reads the secrets in the TLS key log at `path`.
fn key_log(path: &Path) -> Result<KeyLog, Failure> {
    let refused = |reason: &dyn Display| {
        let shown = path.display();
        Failure::refused(format!("--inject-secrets {shown}: {reason}"))
    };
    let log = read_named(path, MOST_LIST).map_err(|e| refused(&e))?;
    Secrets::from_tls_key_log(&log).map_err(|e| refused(&e))
}

/// Checks that stdout carries either the capture or the JSON report, and that no capture goes to a
/// terminal.
pub fn settle_stdout(out: &Path, json: bool) -> Result<(), Failure> {
    let to_stdout = out.as_os_str() == "-";
    if to_stdout && json {
        return Err(Failure::refused(
            "-o - and --json both write to stdout; write to a file, or leave one out",
        ));
    }
    if to_stdout && io::stdout().is_terminal() {
        return Err(Failure::refused(
            "-o -: stdout is a terminal; pipe it, or name a file",
        ));
    }
    Ok(())
}

/// Checks that the output `out` is none of these files, each with the option that names it. Capture
/// files that are read are checked when the output is opened.
pub fn spare_files<'a>(
    out: &Path,
    mut files: impl Iterator<Item = (&'a str, &'a PathBuf)>,
) -> Result<(), Failure> {
    let replaced = device_and_inode(out);
    match files.find(|(_, path)| replaced.is_some() && device_and_inode(path) == replaced) {
        None => Ok(()),
        Some((option, _)) => Err(Failure::refused(format!(
            "{}: the output is the file of {option}; name another output",
            out.display()
        ))),
    }
}

/// Formats the summary of a merge of capture files as text.
fn text(summary: &MergeSummary) -> String {
    let time = Duration::from_secs_f64(summary.seconds);
    let mut text = format!(
        "{} from {} ({}) into {}: {}, {}, {}B/s\n",
        counted(summary.frames, "frame"),
        counted(summary.inputs.len() as u64, "file"),
        counted(summary.streams as u64, "stream"),
        Text(&summary.out),
        summary.format,
        bytes(summary.bytes),
        scaled(rate(summary.bytes_read, time))
    );
    if summary.deduplicated > 0 {
        let repetitions = counted(summary.deduplicated, "repetition");
        let _ = writeln!(text, "{repetitions} of frames left out (--dedup)");
    }
    for interface in &summary.interfaces {
        let number = |n: Option<u64>| n.map_or("not reported".into(), thousands);
        let _ = writeln!(
            text,
            "interface {}: {}; received {}, dropped {} according to the files' statistics",
            Text(&interface.name),
            counted(interface.frames, "frame"),
            number(interface.received),
            number(interface.dropped)
        );
    }
    let gaps = summary.gaps;
    if let (Some(min), Some(median), Some(max)) = (gaps.min_ns, gaps.median_ns, gaps.max_ns) {
        let _ = writeln!(
            text,
            "successive frames of different queues: {}; time between them: min {}, p50 {}, max {}",
            thousands(gaps.count),
            span(min),
            span(median),
            span(max)
        );
    }
    for input in &summary.inputs {
        let late = input.out_of_order;
        if late.frames > 0 {
            let _ = writeln!(
                text,
                "note: {}: {} out of time order, by {} at most",
                Text(&input.path),
                counted(late.frames, "frame"),
                span(late.most_ns)
            );
        }
        for note in &input.notes {
            let _ = writeln!(text, "note: {}: {}", Text(&input.path), Text(note));
        }
    }
    let late = summary.late;
    if late.frames > 0 {
        let _ = writeln!(
            text,
            "note: {} of the output out of time order, by {} at most",
            counted(late.frames, "frame"),
            span(late.most_ns)
        );
    }
    for note in &summary.notes {
        let _ = writeln!(text, "note: {}", Text(note));
    }
    text
}
