//! Report at the end of a run: `--summary` as JSON, a table as text, and the check that the ledger
//! adds up.

use crate::{
    failure::Failure,
    term::output,
    term::table::{aligned, counted, rate, scaled, thousands},
    term::text::Text,
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File, Permissions},
    io::{self, BufWriter, Write as _},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use wqcap_engine::{
    analysis::{flows::FlowsReport, limits::CutoffReport, live},
    capture::{End, Report},
    config::Backend,
    file_list::FileList,
    files::name::FileName,
    notes::RunNotes,
    pipeline::reduce::FcsReport,
    plan::{Plan, PortPlan, Stamps},
    recover::RecoveredFile,
    sink::{Deleted, EncryptionReport, HookReport, PinnedFiles},
    stats::{
        ClockReport, Counter, LINES, NicCounters, QueueLedger, Total, Unreadable, outage::Outage,
    },
};
use wqcap_supervisor::StatusSnapshot;

/// JSON document that `wqcap run --summary` writes at the end of a run.
#[derive(Debug, Serialize)]
pub struct Summary<'a> {
    /// Frame ledger of the run: numbers of received, captured and lost frames.
    ledger: RunLedger<'a>,
    /// Counters of the NIC during the run, by the names of the NIC's counters.
    nic: &'a NicCounters,
    /// Numbers of malformed frames by class; null if the capture did not parse frames.
    malformed: Option<&'a BTreeMap<&'static str, u64>>,
    /// Live statistics of the traffic at the end of the run; null if they were off.
    statistics: Option<&'a live::TrafficSnapshot>,
    /// Report on the frames whose FCS was checked; null if none was checked.
    fcs: Option<FcsReport>,
    /// Report on the frames that flow cutoffs left out of the files; null without a cutoff.
    cutoff: Option<CutoffReport>,
    /// Totals and files of the flow records; null without flow records.
    flows: Option<&'a FlowsReport>,
    /// Finished capture files of the run.
    files: &'a FileList,
    /// Capture files that an earlier run left open, with the outcome of their recovery.
    recovered: &'a [RecoveredFile],
    /// Old capture files that retention deleted; null without retention.
    deleted: Option<Deleted>,
    /// Capture files that pins protect from deletion; null without retention.
    pinned: Option<PinnedFiles>,
    /// Report on the encryption of capture files; null without encryption.
    encryption: Option<EncryptionReport>,
    /// Outcomes of the hooks that the run started; null without a hook.
    hooks: Option<HookReport>,
    /// Periods of the run in which no frame could be received.
    outages: OutagesSummary<'a>,
    /// Duration of the run's capture in seconds.
    duration_s: f64,
    /// Time from the start of the run to the first ready queue, in seconds.
    startup_s: f64,
    /// Clock that stamped the frames of the run.
    stamps: Stamps,
    /// Comparison of the device's clock with the system clock; null with software time stamps.
    clock: Option<ClockReport>,
    /// Time in microseconds that the NIC holds frames for a WQ without buffers; null without delay
    /// drop.
    delay_drop_timeout_us: Option<Counter>,
    /// Reason for the end of the run, as a keyword.
    end: &'static str,
    /// Error that ended the run; null without an error.
    error: Option<&'a str>,
    /// Notes for the user about the run.
    notes: &'a RunNotes,
    /// Name of the captured device or interface.
    device: &'a str,
    /// Number of the captured port of the device.
    port: u8,
    /// Captured ports, if there are several, in the order of the queues' `port`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<PortSummary<'a>>,
    /// Version of wqcap that ran the capture.
    wqcap: &'static str,
}

/// Frame ledger of a run in its summary.
#[derive(Debug, Serialize)]
struct RunLedger<'a> {
    /// Frame ledger of the run, summed over all queues.
    total: Total,
    /// Frame ledger of each receive queue.
    queues: &'a [QueueLedger],
}

/// Captured port in the summary of a run with several ports.
#[derive(Debug, Serialize)]
struct PortSummary<'a> {
    /// Name of the port in files, counters and flow records.
    label: &'a str,
    /// Name of the port's device or interface.
    device: &'a str,
    /// Number of the captured port of the device.
    port: u8,
    /// Backend by which the port's frames were received.
    backend: Backend,
    /// Frame ledger of the port, summed over its queues.
    ledger: Total,
}

impl<'a> PortSummary<'a> {
    /// Returns the summaries of all captured ports of a run.
    fn all(plan: &'a Plan, report: &Report) -> Vec<Self> {
        let ledger = |index: usize| {
            let queues = report.queues.iter();
            let of_port: Vec<_> = queues
                .filter(|it| usize::from(it.port) == index)
                .copied()
                .collect();
            QueueLedger::total(&of_port).into()
        };
        let summary = |(index, port): (usize, &'a PortPlan)| Self {
            label: &port.label,
            device: &port.device.name,
            port: port.number,
            backend: port.backend,
            ledger: ledger(index),
        };
        plan.ports().enumerate().map(summary).collect()
    }
}

/// Outages of a run in its summary.
#[derive(Debug, Serialize)]
struct OutagesSummary<'a> {
    /// Number of outages of the run.
    count: u64,
    /// Total duration of the run's outages in seconds.
    seconds: f64,
    /// Last outages of the run, at most 100.
    last: Vec<&'a Outage>,
}

impl<'a> Summary<'a> {
    /// Creates the summary of a finished run.
    pub fn new(plan: &'a Plan, report: &'a Report, recovered: &'a [RecoveredFile]) -> Self {
        let (end, _, error) = end(&report.end);
        Self {
            ledger: RunLedger {
                total: QueueLedger::total(&report.queues).into(),
                queues: &report.queues,
            },
            nic: &report.nic,
            malformed: report.malformed.as_ref(),
            statistics: report.statistics.as_ref(),
            fcs: report.fcs,
            cutoff: report.cutoff,
            flows: report.flows.as_ref(),
            files: &report.files,
            recovered,
            deleted: report.deleted,
            pinned: report.pinned,
            encryption: report.encryption,
            hooks: report.hooks,
            outages: OutagesSummary {
                count: report.outages.count(),
                seconds: report.outages.seconds(),
                last: report.outages.last().collect(),
            },
            duration_s: report.duration.as_secs_f64(),
            startup_s: report.startup.as_secs_f64(),
            stamps: plan.port.stamps,
            clock: report.clock,
            delay_drop_timeout_us: plan.port.delays_drop().then(|| timeout(plan)),
            end,
            error,
            notes: &report.notes,
            device: &plan.port.device.name,
            port: plan.port.number,
            ports: match plan.has_several_ports() {
                true => PortSummary::all(plan, report),
                false => Vec::new(),
            },
            wqcap: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// Returns the delay drop timeout of the plan's port, in microseconds, which the driver publishes.
fn timeout(plan: &Plan) -> Counter {
    let unreadable = Counter::Unreadable(Unreadable::Unreadable);
    let facts = plan.port.device.delay_drop;
    facts.map_or(unreadable, |it| Counter::Value(it.timeout_us))
}

/// Returns the reason for the end of a run as a keyword and as text, and the text of an error if
/// the run failed.
fn end(end: &End) -> (&'static str, &'static str, Option<&str>) {
    match end {
        End::Stopped => ("stopped", "stopped", None),
        End::Count => ("count", "--count reached", None),
        End::Duration => ("duration", "--duration over", None),
        End::Bytes => ("bytes", "--bytes reached", None),
        End::Files => ("files", "--files reached", None),
        End::PortDown => {
            let words = "the port went down; this is also the end of a finite wire";
            ("port_down", words, None)
        }
        End::DeviceLost(text) => ("device_lost", "the device was lost", Some(text)),
        End::Storage(text) => ("storage", "a file can no longer be written", Some(text)),
        End::Failed(text) => ("failed", "failed", Some(text)),
        End::ReaderLeft => ("reader_left", "the reader of stdout exited", None),
    }
}

/// Checks for each queue that every received frame is counted in exactly one ledger line.
pub fn balance(queues: &[QueueLedger]) -> Result<(), Failure> {
    queues
        .iter()
        .try_for_each(QueueLedger::check)
        .map_err(Failure::failed)
}

/// Formats the counters of a running capture, which SIGUSR1 requests.
pub fn counters(now: &StatusSnapshot) -> String {
    let Some(snapshot) = &now.snapshot else {
        return format!(
            "counters: the capture is {}, and nothing is counted yet\n",
            now.state
        );
    };
    let seconds = snapshot.elapsed.as_secs_f64();
    let mut text = format!(
        "counters after {seconds:.3} s (the capture is {}):\n",
        now.state
    );
    text += &aligned(&rows(
        &snapshot.queues,
        &snapshot.ports,
        &QueueLedger::total(&snapshot.queues),
    ));
    if let Some(nic) = nic_in_words(&snapshot.nic) {
        let _ = writeln!(text, "nic      {nic}");
    }
    text
}

/// Formats the NIC's counters that are not 0 on one line; `None`: the NIC has no counters.
fn nic_in_words(nic: &NicCounters) -> Option<String> {
    let words = nic.iter().filter_map(|(name, counter)| match counter {
        Counter::Value(0) => None,
        Counter::Value(n) => Some(format!("{name} {}", thousands(*n))),
        Counter::Unreadable(_) => Some(format!("{name} unreadable")),
    });
    let words = words.reduce(|all, it| all + ", " + &it);
    let counters = nic.iter().count() as u64;
    (counters > 0).then(|| {
        words.unwrap_or_else(|| format!("no losses: {} are 0", counted(counters, "counter")))
    })
}

/// Maximum number of capture files that the final table of a run lists.
const MOST_FILES: usize = 10;

/// Formats the final table of a run: its ledger, counters, files and end.
pub fn text(report: &Report) -> String {
    let total = QueueLedger::total(&report.queues);
    let mut text = aligned(&rows(&report.queues, &report.ports, &total));
    let mut line = |what: &str, value: &str| {
        let _ = writeln!(text, "{what:<9}{}", Text(value));
    };
    if let Some(nic) = nic_in_words(&report.nic) {
        line("nic", &nic);
    }
    if let Some(fcs) = report.fcs {
        line(
            "fcs",
            &format!(
                "{} checked, {} bad",
                thousands(fcs.checked),
                thousands(fcs.bad)
            ),
        );
    }
    if let Some(cutoff) = report.cutoff {
        let flows = counted(cutoff.flows, "flow");
        let mut value = format!("{} of {flows} left out", counted(cutoff.bytes, "byte"));
        if cutoff.untracked_frames > 0 {
            let frames = counted(cutoff.untracked_frames, "frame");
            let _ = write!(value, "; {frames} kept beyond capture.cutoff_memory");
        }
        line("cutoff", &value);
    }
    for (i, file) in report.files.iter().take(MOST_FILES).enumerate() {
        line(
            if i == 0 { "files" } else { "" },
            &file.display().to_string(),
        );
    }
    if report.files.iter().nth(MOST_FILES).is_some() {
        let more = thousands(report.files.len() - MOST_FILES as u64);
        line(
            "",
            &format!("and {more} more files; --summary lists all of them"),
        );
    }
    if let Some(deleted) = report.deleted.filter(|it| it.files > 0) {
        let mut text = format!(
            "{} of {}, the oldest",
            counted(deleted.files, "file"),
            counted(deleted.bytes, "byte")
        );
        if deleted.unshipped > 0 {
            let _ = write!(text, "; {}", counted(deleted.unshipped, "file"));
            // Finished files always have frames. A count of 0 means that the frames were not
            // counted.
            if deleted.unshipped_frames > 0 {
                let _ = write!(text, " of {}", counted(deleted.unshipped_frames, "frame"));
            }
            text += " not shipped yet";
        }
        line("deleted", &text);
    }
    if let Some(pinned) = report.pinned.filter(|it| it.files > 0) {
        let text = format!(
            "pins protect {} of {} from deletion",
            counted(pinned.files, "file"),
            counted(pinned.bytes, "byte")
        );
        line("pinned", &text);
    }
    if let Some(it) = report.encryption {
        let text = format!(
            "{} of {}, {} failed, {} left",
            counted(it.files, "file"),
            counted(it.bytes, "byte"),
            it.failed,
            it.left
        );
        line("encrypt", &text);
    }
    if let Some(hooks) = report.hooks {
        let mut text = format!(
            "runs of output.hook: {} succeeded, {} failed, {} were left out",
            hooks.succeeded, hooks.failed, hooks.not_run
        );
        if hooks.refused > 0 {
            let _ = write!(text, ", {} refused", hooks.refused);
        }
        line("hooks", &text);
    }
    if let Some(flows) = &report.flows {
        line("flows", &flows_in_words(flows));
    }
    line(
        "time",
        &format!(
            "the run took {:.3} s with {}frames/s and {}bit/s; the first queue was ready after {:.3} s",
            report.duration.as_secs_f64(),
            scaled(rate(total.received, report.duration)),
            scaled(rate(total.bytes, report.duration) * 8.0),
            report.startup.as_secs_f64()
        ),
    );
    if report.outages.count() > 0 {
        let outages = &report.outages;
        let text = format!("{}, {:.3} s together", outages.count(), outages.seconds());
        line("outages", &text);
    }
    line("end", end(&report.end).1);
    for (i, note) in report.notes.lines().enumerate() {
        line(if i == 0 { "notes" } else { "" }, &note);
    }
    text
}

/// Formats the numbers of a run's flow records and their files, and the numbers of missing records,
/// frames and names.
fn flows_in_words(flows: &FlowsReport) -> String {
    let mut text = format!(
        "{} in {}",
        counted(flows.totals.records, "record"),
        counted(flows.files.len(), "file")
    );
    for (what, count) in [
        (
            "ended early because the flow table was full",
            flows.totals.evicted,
        ),
        ("frames in no record", flows.totals.missed_frames),
        ("not written", flows.unwritten),
    ] {
        if count > 0 {
            let _ = write!(text, ", {} {what}", thousands(count));
        }
    }
    if let Some(names) = &flows.names {
        let (named, rows) = (thousands(names.flows), counted(names.dns, "row"));
        let dhcp = thousands(names.dhcp);
        let _ = write!(text, "; {named} with names, {rows} of DNS, {dhcp} of DHCP");
        for (what, count) in [
            ("payloads unreadable", names.unreadable),
            ("missed", names.missed),
            ("rows not written", names.unwritten),
        ] {
            if count > 0 {
                let _ = write!(text, ", {} {what}", thousands(count));
            }
        }
    }
    text
}

/// Returns the table rows of a run's ledger: received, captured, every line with a total above 0,
/// and bytes.
fn rows(queues: &[QueueLedger], ports: &[String], total: &QueueLedger) -> Vec<Vec<String>> {
    let shown: Vec<_> = LINES
        .iter()
        .filter(|(name, of)| *name == "captured" || of(total) > 0)
        .collect();
    let mut head = vec!["queue".to_owned(), "received".to_owned()];
    head.extend(shown.iter().map(|(name, _)| (*name).to_owned()));
    head.push("bytes".to_owned());
    let row = |name: String, it: &QueueLedger| {
        let mut row = vec![name, thousands(it.received)];
        row.extend(shown.iter().map(|(_, of)| thousands(of(it))));
        row.push(thousands(it.bytes));
        row
    };
    let mut rows = vec![head];
    rows.extend(queues.iter().map(|it| row(it.name(ports), it)));
    rows.push(row("total".to_owned(), total));
    rows
}

/// Target file of the option `--summary`. It is checked before the run, so that a path that cannot
/// be written is reported early.
#[derive(Debug)]
pub struct SummaryFile {
    /// Path of the summary file; for a link, the path of its target.
    path: PathBuf,
    /// `true` if the summary goes to a pipe or a device, which is written directly. Regular files
    /// are replaced.
    in_place: bool,
}

impl SummaryFile {
    /// Checks that the summary file at `path` can be written.
    pub fn new(path: &Path) -> Result<Self, Failure> {
        let refused = |e: io::Error| Failure::refused(format!("--summary {}: {e}", path.display()));
        if FileName::has_capture_ending(path) {
            return Err(Failure::refused(format!(
                "--summary {}: this is the name of a capture file, which the summary would replace; name a JSON file",
                path.display()
            )));
        }
        let there = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(refused(io::ErrorKind::IsADirectory.into()));
            }
            Ok(metadata) => Some(metadata),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(refused(e)),
        };
        let in_place = there.as_ref().is_some_and(|metadata| !metadata.is_file());
        let path = match there {
            // The target of a link is replaced, not the link.
            Some(_) if !in_place => fs::canonicalize(path).map_err(refused)?,
            _ => path.to_owned(),
        };
        let file = Self { path, in_place };
        if !file.in_place {
            file.temporary().map_err(|e| {
                Failure::refused(format!(
                    "--summary {}: cannot write the summary to this path: {}",
                    file.path.display(),
                    // The full error names a temporary file, which means nothing to the user.
                    e.kind()
                ))
            })?;
        }
        Ok(file)
    }

    /// Returns the path of the summary file if it is replaced; `None`: it is a pipe or a device.
    pub fn replaced(&self) -> Option<&Path> {
        (!self.in_place).then_some(&*self.path)
    }

    /// Writes the summary of a run. Readers see either the old file or the complete new one. The
    /// summary is as long as its list of files, and is never in memory as a whole.
    pub fn write(&self, summary: &impl Serialize) -> Result<(), Failure> {
        self.write_by(|out| {
            let mut out = BufWriter::new(out);
            output::write_json(&mut out, summary)?;
            out.flush()
        })
    }

    /// Writes the output of `content` to the summary file, as [`SummaryFile::write`] does. If it
    /// fails, a regular file stays as it was.
    pub fn write_by(
        &self,
        content: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let write = || {
            if self.in_place {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "the user chose the path, and it is a pipe or a device"
                )]
                let mut file = File::options().write(true).open(&self.path)?;
                return content(&mut file);
            }
            let mut file = self.temporary()?;
            content(&mut file)?;
            file.as_file().sync_all()?;
            file.persist(&self.path).map(drop).map_err(|e| e.error)
        };
        write().map_err(|e| Failure::failed(format!("--summary {}: {e}", self.path.display())))
    }

    /// Creates the temporary file of the summary, in the directory of the target file.
    fn temporary(&self) -> io::Result<tempfile::NamedTempFile> {
        let dir = self
            .path
            .parent()
            .filter(|dir| !dir.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        // The umask decides who may read it, as for any new file.
        tempfile::Builder::new()
            .prefix(".wqcap-summary-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use wqcap_engine::{
        sink::Written,
        stats::{Unreadable, outage::Outages},
    };

    /// Returns the ledger of a queue with 7 errors.
    fn ledger(queue: u16) -> QueueLedger {
        QueueLedger {
            queue,
            received: 1_234_567,
            captured: 1_234_560,
            errors: 7,
            bytes: 100_000_000,
            ..QueueLedger::default()
        }
    }

    /// Returns the report of a run of two queues.
    fn report(end: End) -> Report {
        Report {
            end,
            queues: vec![ledger(0), ledger(1)],
            ports: Vec::new(),
            nic: [
                ("out_of_buffer".to_owned(), Counter::Value(5)),
                (
                    "rx_discards_phy".to_owned(),
                    Counter::Unreadable(Unreadable::Unreadable),
                ),
            ]
            .into(),
            malformed: None,
            statistics: None,
            fcs: Some(FcsReport {
                checked: 2_469_134,
                bad: 3,
            }),
            cutoff: Some(CutoffReport {
                flows: 12,
                bytes: 5_000_000,
                untracked_frames: 0,
            }),
            flows: None,
            written: Written::default(),
            files: ["/d/wqcap-q00-1.pcapng", "/d/wqcap-q01-1.pcapng"]
                .into_iter()
                .collect(),
            deleted: Some(Deleted {
                files: 3,
                bytes: 4096,
                unshipped: 1,
                unshipped_frames: 20,
            }),
            pinned: Some(PinnedFiles {
                files: 1,
                bytes: 2048,
            }),
            encryption: None,
            hooks: None,
            outages: Outages::default(),
            duration: Duration::from_millis(2500),
            startup: Duration::from_millis(120),
            clock: None,
            notes: RunNotes::from_iter(["queue 1 was recovered once".to_owned()]),
        }
    }

    #[test]
    fn a_ledger_that_does_not_add_up_is_refused() {
        assert!(balance(&[ledger(0)]).is_ok());
        let off = QueueLedger {
            received: 8,
            captured: 7,
            ..QueueLedger::default()
        };
        let failure = balance(&[ledger(0), off]).unwrap_err();
        assert!(
            failure.messages[0].contains("received 8, but 7 accounted for"),
            "{failure:?}"
        );
    }

    #[test]
    fn the_table_has_only_lines_that_are_not_zero() {
        let text = text(&report(End::Stopped));
        let want = "\
queue   received   captured  errors        bytes
0      1,234,567  1,234,560       7  100,000,000
1      1,234,567  1,234,560       7  100,000,000
total  2,469,134  2,469,120      14  200,000,000
nic      out_of_buffer 5, rx_discards_phy unreadable
fcs      2,469,134 checked, 3 bad
cutoff   5,000,000 bytes of 12 flows left out
files    /d/wqcap-q00-1.pcapng
         /d/wqcap-q01-1.pcapng
deleted  3 files of 4,096 bytes, the oldest; 1 file of 20 frames not shipped yet
pinned   pins protect 1 file of 2,048 bytes from deletion
time     the run took 2.500 s with 988 kframes/s and 640 Mbit/s; the first queue was ready after 0.120 s
end      stopped
notes    queue 1 was recovered once
";
        assert_eq!(text, want);
    }

    #[test]
    fn a_summary_replaces_the_file_or_fails_early() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.json");
        fs::write(&path, "old").unwrap();
        let link = dir.path().join("link.json");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let file = SummaryFile::new(&link).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        file.write(&[1]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[\n  1\n]\n");
        let half = |out: &mut dyn io::Write| {
            out.write_all(b"{")?;
            Err(io::ErrorKind::UnexpectedEof.into())
        };
        assert!(file.write_by(half).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "[\n  1\n]\n");
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            2,
            "no temporary file is left"
        );

        assert!(SummaryFile::new(dir.path()).is_err());
        assert!(SummaryFile::new(&dir.path().join("no/s.json")).is_err());
        let null = SummaryFile::new(Path::new("/dev/null")).unwrap();
        null.write(&[1]).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
