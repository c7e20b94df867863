//! Loop of a merge: repeatedly writes the earliest record of all streams of input files.

use super::{
    gaps::Gaps,
    output::MergeOutput,
    plan::MergePlan,
    ports::PortLink,
    stream::{MergeLedger, MergeStream},
    summary::{InterfaceFacts, Lateness, MergeError, MergeSummary},
    target::MergeTarget,
};
use crate::{
    format::{ETHERNET, FileFormat},
    read::Packet,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
    time::Instant,
};
use wqcap_frame::dedup::DedupWindow;

/// Number of merged records between two calls of `watch`, which reports the progress of a merge.
const EVERY: u64 = 1 << 14;

/// Runs a merge plan. `watch` is called regularly, and at the end, with the number of bytes read so
/// far; it may return `false` to stop.
///
/// # Errors
/// The output cannot be written, or `watch` stopped the merge. Problems of single inputs are in the
/// summary.
pub fn run(
    plan: MergePlan,
    target: MergeTarget,
    watch: impl FnMut(u64) -> bool,
) -> Result<MergeSummary, MergeError> {
    run_selected(plan, target, &mut AllRecords, watch)
}

/// Selection of the records that a merge writes; it may replace their bytes.
pub(crate) trait RecordSelection {
    /// Returns the record to write to the merged file, with at most as many bytes as the input
    /// record. `link` is the form of the frame, `port` the number of its port in the merged file.
    /// `None`: the record is left out.
    fn select<'a>(
        &'a mut self,
        packet: Packet<'a>,
        link: PortLink,
        port: usize,
    ) -> Option<Packet<'a>>;

    /// Returns a message for each kind of records that the selection could not judge.
    fn losses(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Record of an input of a merge plan, which is passed to a visitor.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct VisitedRecord<'a> {
    /// Packet record in the form that it has in the input file.
    pub packet: Packet<'a>,
    /// Number of the capture port in [`MergePlan::port_names`]; higher numbers are ports that the
    /// inputs describe later.
    pub port: usize,
    /// Link type of the record's frame (LINKTYPE_ value).
    pub link_type: u32,
    /// Length in bytes of the frame check sequence at the end of the record's frame, if declared.
    pub fcs_len: Option<u8>,
}

/// Selection of no records for the merged file: each record is passed to a function instead.
struct Visitor<F>(F);

impl<F: FnMut(&VisitedRecord<'_>)> RecordSelection for Visitor<F> {
    #[inline]
    fn select<'a>(
        &'a mut self,
        packet: Packet<'a>,
        link: PortLink,
        port: usize,
    ) -> Option<Packet<'a>> {
        (self.0)(&VisitedRecord {
            packet,
            port,
            link_type: link.link_type,
            fcs_len: link.fcs_len,
        });
        None
    }
}

/// Reads the inputs of a merge plan and passes each record to `visit`, in time order, instead of
/// writing it. `watch` is called as by [`run`]. The summary counts no output.
///
/// # Errors
/// `watch` stopped the merge. Problems of single inputs are in the summary.
pub fn visit(
    plan: MergePlan,
    visit: impl FnMut(&VisitedRecord<'_>),
    watch: impl FnMut(u64) -> bool,
) -> Result<MergeSummary, MergeError> {
    run_selected(plan, MergeTarget::none(), &mut Visitor(visit), watch)
}

/// Selection of all input records of a merge, unchanged.
struct AllRecords;

impl RecordSelection for AllRecords {
    fn select<'a>(&'a mut self, packet: Packet<'a>, _: PortLink, _: usize) -> Option<Packet<'a>> {
        Some(packet)
    }
}

/// Runs a merge plan with a selection of the records to write.
pub(crate) fn run_selected(
    plan: MergePlan,
    target: MergeTarget,
    selection: &mut impl RecordSelection,
    mut watch: impl FnMut(u64) -> bool,
) -> Result<MergeSummary, MergeError> {
    let begun = Instant::now();
    let out = target.shown.clone();
    let format = plan.format;
    let anonymous = plan.anonymous;
    let mut output = MergeOutput::new(target, format, plan.link_type, plan.snaplen, anonymous);
    output.begin(&plan.ports.list, &plan.comments);
    let mut ledger = MergeLedger {
        inputs: plan.inputs,
        ports: plan.ports,
        statistics: Vec::new(),
        sums: plan.statistics,
        only: plan.only,
        comments: plan.comments,
        later_comments: 0,
        bytes_read: 0,
        notes: plan.notes,
        unread: 0,
        secrets: plan.secrets,
        open: 0,
    };
    let (limits, has_closing_comment) = (plan.limits, plan.has_closing_comment);
    let mut losses = plan.known_losses;
    let mut reached = None;
    let mut repetitions = plan.repetitions;
    let planned = plan.streams.len();
    let streams = plan.streams.into_iter().enumerate();
    let mut streams: Vec<_> = streams.map(|(i, it)| MergeStream::new(i, it)).collect();
    let mut state = MergeProgress {
        frames: 0,
        deduplicated: 0,
        void: 0,
        by_port: Vec::new(),
        gaps: Gaps::new(),
        late: Lateness::default(),
        first: u64::MAX,
        high: 0,
        before: None,
    };
    let mut due: BinaryHeap<_> = streams
        .iter()
        .enumerate()
        .filter_map(|(i, stream)| Some(Reverse((stream.due()?, i))))
        .collect();
    let mut steps = 0u64;
    loop {
        let Some(mut next) = due.peek_mut() else {
            break;
        };
        let Reverse((ns, i)) = *next;
        let stream = &mut streams[i];
        match stream.packet() {
            None if ledger.open >= limits.open => {
                reached = Some(ReachedLimit::Open);
                break;
            }
            None => stream.open(&mut ledger),
            Some((packet, port)) => {
                if let Some(port) = port
                    && let Some(link) = ledger.ports.list.get(port).map(|it| it.link)
                    && let Some(packet) = selection.select(packet, link, port)
                    && !state.repeats(&mut repetitions, &packet, link)
                    && !state.is_void(&packet, format)
                {
                    while format == FileFormat::Pcapng && output.interfaces <= port {
                        let Some(port) = ledger.ports.list.get(output.interfaces) else {
                            break;
                        };
                        output.interface(port);
                    }
                    output.record(&packet, port, stream.queue)?;
                    state.count(ns, stream.number, port);
                    if state.frames >= limits.frames || output.len() >= limits.bytes {
                        reached = Some(ReachedLimit::Length);
                    }
                }
                stream.advance(&mut ledger);
            }
        }
        // Secrets go before the record that the stream has advanced to.
        for secrets in ledger.secrets.drain(..) {
            output.secrets(&secrets)?;
        }
        let turn = stream.due();
        let overtaken = turn.and_then(|ns| stream.overtaken(ns));
        match turn {
            Some(ns) => {
                *next = Reverse((ns, i));
                drop(next);
            }
            None => drop(PeekMut::pop(next)),
        }
        if let Some(overtaken) = overtaken {
            due.push(Reverse((overtaken.next_ns, streams.len())));
            streams.push(overtaken);
        }
        if reached.is_some() {
            break;
        }
        steps += 1;
        if steps.is_multiple_of(EVERY) {
            let open: u64 = streams.iter().map(MergeStream::offset).sum();
            if !watch(ledger.bytes_read + open) {
                return Err(MergeError::Stopped);
            }
            if state.frames > 0 {
                output.pass_on()?;
            }
            if output.reader_left {
                break;
            }
        }
    }
    // The output does not have its final name yet.
    if !watch(ledger.bytes_read) {
        return Err(MergeError::Stopped);
    }
    for (port, statistics) in ledger.statistics.iter().enumerate() {
        if port < output.interfaces {
            output.statistics(port, statistics);
        }
    }
    let mut notes = std::mem::take(&mut ledger.notes);
    if output.reader_left {
        notes.push("the output is incomplete: its reader closed the pipe".into());
    }
    if anonymous && ledger.unread > 0 {
        notes.push(format!(
            "{} pcapng blocks (such as name resolution) and options of section headers are left out, because wqcap cannot anonymize them",
            ledger.unread
        ));
    }
    if !anonymous && format == FileFormat::Pcapng {
        for (n, what) in [
            (
                ledger.ports.other_filters.len() as u64,
                "capture filters of interfaces are left out, because the first interface of their port has another one",
            ),
            (
                ledger.later_comments,
                "comments of sections that follow the first frame of their file are left out",
            ),
        ] {
            if n > 0 {
                notes.push(format!("{n} {what}"));
            }
        }
    }
    // The head of a compressed file may have been the whole file; its index has reported the loss
    // already.
    for loss in ledger.losses().chain(selection.losses()) {
        if !losses.contains(&loss) {
            losses.push(loss);
        }
    }
    if state.void > 0 {
        losses.push(format!(
            "the output does not include {} frames that have no bytes and the time 0, because such a record in a pcap file is taken for damage; write pcapng",
            state.void
        ));
    }
    let (frames, bytes) = (state.frames, output.len());
    match reached {
        None => {}
        Some(ReachedLimit::Length) => losses.push(format!(
            "the output ends at its limit of frames or bytes, after {frames} frames and {bytes} bytes"
        )),
        Some(ReachedLimit::Open) => losses.push(format!(
            "the output ends after {frames} frames, because more than {} files overlap in time, which is the limit",
            limits.open
        )),
    }
    if has_closing_comment && !losses.is_empty() {
        let frames = state.frames;
        output.closing_comment(&format!(
            "incomplete: {frames} frames; {}",
            losses.join("; ")
        ));
    }
    let (bytes, more) = output.finish()?;
    notes.extend(more);
    if ledger.ports.texts.left_out > 0 {
        notes.push(format!(
            "the output does not include {} names, comments and descriptions of interfaces, because those of all inputs have more than 16 MiB, which is the limit",
            ledger.ports.texts.left_out
        ));
    }
    let interfaces = ledger.ports.list.iter().enumerate().map(|(i, port)| {
        let statistics = ledger.statistics.get(i).copied().unwrap_or_default();
        InterfaceFacts {
            name: port.name.clone(),
            frames: state.by_port.get(i).copied().unwrap_or(0),
            received: statistics.received,
            dropped: statistics.dropped,
        }
    });
    Ok(MergeSummary {
        out,
        format: format.name(),
        frames: state.frames,
        deduplicated: state.deduplicated,
        bytes,
        bytes_read: ledger.bytes_read,
        first_ns: (state.frames > 0).then_some(state.first),
        last_ns: (state.frames > 0).then_some(state.high),
        seconds: begun.elapsed().as_secs_f64(),
        streams: planned,
        interfaces: interfaces.collect(),
        gaps: state.gaps.facts(),
        late: state.late,
        inputs: ledger.inputs,
        notes,
        losses,
        at_limit: matches!(reached, Some(ReachedLimit::Length)),
    })
}

/// Limit of the output that a merge reached, so that it ended.
#[derive(Clone, Copy)]
enum ReachedLimit {
    /// Limit on the number of records or bytes of the merged file.
    Length,
    /// Limit on the number of input files that are open at the same time.
    Open,
}

/// Progress of a merge: counts and times of the records written so far.
struct MergeProgress {
    frames: u64,
    deduplicated: u64,
    /// Number of records left out because a pcap file cannot hold them.
    void: u64,
    by_port: Vec<u64>,
    gaps: Gaps,
    late: Lateness,
    first: u64,
    high: u64,
    /// Timestamp of the previous merged record in nanoseconds since 1970, and the number of its
    /// stream.
    before: Option<(u64, usize)>,
}

impl MergeProgress {
    /// Returns `true` if a record of the merge repeats an earlier merged record, and counts it.
    #[inline]
    fn repeats(
        &mut self,
        of: &mut Option<DedupWindow>,
        packet: &Packet<'_>,
        link: PortLink,
    ) -> bool {
        let window = of.as_mut().filter(|_| link.link_type == ETHERNET);
        let repeats =
            window.is_some_and(|it| it.check_and_record(packet.bytes, packet.len, packet.ns));
        self.deduplicated += u64::from(repeats);
        repeats
    }

    /// Returns `true` if a record would be zeros in a pcap file, which readers take for a hole or for
    /// padding, and counts it: it has the time 0 and no byte of its frame.
    #[inline]
    fn is_void(&mut self, packet: &Packet<'_>, format: FileFormat) -> bool {
        let is_void = packet.bytes.is_empty() && packet.ns == 0 && format == FileFormat::Pcap;
        self.void += u64::from(is_void);
        is_void
    }

    #[inline]
    fn count(&mut self, ns: u64, stream: usize, port: usize) {
        self.frames += 1;
        if self.by_port.len() <= port {
            self.by_port.resize(port + 1, 0);
        }
        self.by_port[port] += 1;
        if let Some((before, from)) = self.before
            && from != stream
        {
            self.gaps.add(ns.abs_diff(before));
        }
        self.before = Some((ns, stream));
        self.first = self.first.min(ns);
        if ns < self.high {
            self.late.add(self.high - ns);
        }
        self.high = self.high.max(ns);
    }
}
