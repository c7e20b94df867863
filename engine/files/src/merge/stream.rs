//! Stream of a merge: input files of one queue one after the other, each open only while its
//! records are merged. If files overlap, those after the open one are split off into another
//! stream.

use super::{
    plan::{FilePlan, StreamPlan},
    ports::Ports,
    summary::InputFacts,
};
use crate::{
    format::{DistinctTexts, Interface, InterfaceStatistics, secrets::Secrets},
    read::{Deletion, FileEnd, FileRanges, FileReader, LONGEST_TORN, Packet, ReadError},
};
use std::{collections::VecDeque, mem};

pub(super) struct MergeStream {
    /// Number of the stream in the merge plan; a stream that was split off has the same number.
    pub(super) number: usize,
    pub(super) queue: Option<u16>,
    files: VecDeque<FilePlan>,
    /// Timestamp of the first record in the stream's next file, in nanoseconds since 1970.
    pub(super) next_ns: u64,
    open: Option<OpenInput>,
    /// Latest timestamp of the stream's records so far, in nanoseconds since 1970.
    high: u64,
    begun: bool,
}

struct OpenInput {
    reader: FileReader,
    input: usize,
    ranges: FileRanges,
    /// Capture port of each interface found so far in the input file. `None`: its link type differs
    /// from that of the output.
    ports: Vec<Option<usize>>,
    left_out: u64,
}

/// State that the streams of a merge and the output share: facts of inputs, ports, and statistics
/// by port.
pub(super) struct MergeLedger {
    pub(super) inputs: Vec<InputFacts>,
    pub(super) ports: Ports,
    pub(super) statistics: Vec<InterfaceStatistics>,
    /// `true` if the interface statistics of the input files are summed up.
    pub(super) sums: bool,
    /// Only link type whose frames the merged file can have; `None`: frames of all link types.
    pub(super) only: Option<u32>,
    /// Section comments that are in the merged file.
    pub(super) comments: DistinctTexts,
    /// Number of section comments that are not in the merged file, because they follow the first
    /// record.
    pub(super) later_comments: u64,
    pub(super) bytes_read: u64,
    /// Notes for the user on the whole merge.
    pub(super) notes: Vec<String>,
    /// Sum of the input blocks of unknown types and the section header options, which the merge
    /// leaves out.
    pub(super) unread: u64,
    /// Decryption secrets of the inputs that were read before the current records and are not
    /// written yet.
    pub(super) secrets: Vec<Secrets>,
    /// Number of input files that the merge has open.
    pub(super) open: usize,
}

impl MergeLedger {
    /// Returns a message for each input of the merge with lost records.
    pub(super) fn losses(&self) -> impl Iterator<Item = String> {
        let inputs = self.inputs.iter();
        inputs.filter_map(|it| Some(format!("{}: {}", it.path, it.loss.as_ref()?)))
    }

    /// Returns the number of the capture port of an input's interface, if the merged file can hold
    /// its frames.
    fn port(&mut self, file: &FileRanges, interface: &Interface) -> Option<usize> {
        let fits = self.only.is_none_or(|it| it == interface.link_type);
        fits.then(|| self.ports.number(file, interface)).flatten()
    }

    fn add_statistics(&mut self, port: usize, of: InterfaceStatistics) {
        if !self.sums {
            return;
        }
        if self.statistics.len() <= port {
            self.statistics
                .resize(port + 1, InterfaceStatistics::default());
        }
        let sum = &mut self.statistics[port];
        let join = |a: Option<u64>, b: Option<u64>, how: fn(u64, u64) -> u64| match (a, b) {
            (Some(a), Some(b)) => Some(how(a, b)),
            (one, other) => one.or(other),
        };
        sum.received = join(sum.received, of.received, u64::saturating_add);
        sum.dropped = join(sum.dropped, of.dropped, u64::saturating_add);
        sum.start_ns = join(sum.start_ns, of.start_ns, u64::min);
        sum.end_ns = join(sum.end_ns, of.end_ns, u64::max);
    }
}

/// Returns the timestamp of the first record of the first of a stream's files.
fn first_of(files: &VecDeque<FilePlan>) -> u64 {
    files.front().map_or(u64::MAX, |file| file.first_ns)
}

impl MergeStream {
    pub(super) fn new(number: usize, plan: StreamPlan) -> Self {
        Self {
            number,
            queue: plan.queue,
            next_ns: first_of(&plan.files),
            files: plan.files,
            open: None,
            high: 0,
            begun: false,
        }
    }

    /// Splits off the stream's files after the open one, if the next file begins before the open
    /// file's record at the time `ns`.
    #[inline]
    pub(super) fn overtaken(&mut self, ns: u64) -> Option<Self> {
        (ns > self.next_ns).then(|| self.split())
    }

    #[cold]
    fn split(&mut self) -> Self {
        Self {
            number: self.number,
            queue: self.queue,
            files: mem::take(&mut self.files),
            next_ns: mem::replace(&mut self.next_ns, u64::MAX),
            open: None,
            high: self.high,
            begun: self.begun,
        }
    }

    /// Returns the timestamp of the stream's next record. Returns `None` if the stream is at its
    /// end.
    pub(super) fn due(&self) -> Option<u64> {
        match &self.open {
            Some(open) => open.reader.packet().map(|packet| packet.ns),
            None => (!self.files.is_empty()).then_some(self.next_ns),
        }
    }

    /// Returns the stream's current record and the number of its capture port; `None`: the next
    /// file is not open yet.
    #[inline]
    pub(super) fn packet(&self) -> Option<(Packet<'_>, Option<usize>)> {
        let open = self.open.as_ref()?;
        let packet = open.reader.packet()?;
        let port = open.ports.get(packet.interface).copied().flatten();
        Some((packet, port))
    }

    /// Opens the stream's next file and moves to its first record.
    pub(super) fn open(&mut self, ledger: &mut MergeLedger) {
        let Some(file) = self.files.pop_front() else {
            return;
        };
        self.next_ns = first_of(&self.files);
        let (opened, first) = match file.open {
            Some((reader, first)) => (Ok(reader), Some(first)),
            None => (file.ranges.open().map(FileReader::with_secrets), None),
        };
        match opened {
            Ok(reader) => {
                ledger.open += 1;
                self.open = Some(OpenInput {
                    reader,
                    input: file.input,
                    ranges: file.ranges,
                    ports: Vec::new(),
                    left_out: 0,
                });
                match first {
                    Some(first) => self.record_arrived(ledger, first),
                    None => self.advance(ledger),
                }
            }
            Err(e) => {
                let loss = match file.ranges.deletion(&e) {
                    Some(Deletion::Note(note)) => {
                        ledger.notes.push(note);
                        return;
                    }
                    Some(Deletion::Loss(loss)) => loss,
                    None => format!("cannot be read: {e}"),
                };
                ledger.inputs[file.input].loss = Some(loss);
            }
        }
    }

    /// Moves to the next record of the stream's open file; closes the file after its last record.
    #[inline]
    pub(super) fn advance(&mut self, ledger: &mut MergeLedger) {
        let Some(open) = &mut self.open else { return };
        let result = open.reader.advance().map(drop);
        self.record_arrived(ledger, result);
    }

    #[inline]
    fn record_arrived(&mut self, ledger: &mut MergeLedger, result: Result<(), ReadError>) {
        let Some(open) = &mut self.open else { return };
        ledger.secrets.append(&mut open.reader.take_secrets());
        let Some(packet) = open.reader.packet() else {
            self.close(ledger, result.err());
            return;
        };
        let (ns, interface) = (packet.ns, packet.interface);
        let facts = &mut ledger.inputs[open.input];
        facts.frames += 1;
        if ns < self.high && self.begun {
            facts.out_of_order.add(self.high - ns);
        }
        self.begun = true;
        self.high = self.high.max(ns);
        if interface >= open.ports.len() {
            for interface in &open.reader.interfaces()[open.ports.len()..] {
                open.ports.push(ledger.port(&open.ranges, interface));
            }
        }
        if open.ports.get(interface).is_none_or(Option::is_none) {
            open.left_out += 1;
            ledger.inputs[open.input].frames -= 1;
        }
    }

    /// Returns the number of bytes that were read of the stream's open file.
    pub(super) fn offset(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.reader.offset())
    }

    /// Closes the stream's open file and adds its facts to the merge's shared state.
    #[cold]
    fn close(&mut self, ledger: &mut MergeLedger, error: Option<ReadError>) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        ledger.open -= 1;
        for (i, interface) in open.reader.interfaces().iter().enumerate() {
            let port = match open.ports.get(i) {
                Some(port) => *port,
                None => ledger.port(&open.ranges, interface),
            };
            if let Some(port) = port {
                ledger.add_statistics(port, interface.statistics);
            }
        }
        ledger.bytes_read += open.reader.offset();
        let facts = &mut ledger.inputs[open.input];
        facts.bytes = open.reader.offset();
        let mut losses = Vec::new();
        // The next records of a file that is being written are not on the disk yet. A crash leaves a
        // torn record.
        let is_open = open.ranges.is_open;
        let is_written = error.is_some() && open.ranges.is_being_written();
        if let Some(e) = error.filter(|_| !is_written) {
            losses.push(format!(
                "{e}; the output has only the frames of this file before that place"
            ));
        }
        match open.reader.end() {
            Some(FileEnd::Padding { .. }) if is_open => {}
            Some(FileEnd::Torn { bytes, .. })
                if is_open && (bytes <= LONGEST_TORN || open.ranges.is_being_written()) => {}
            Some(end @ FileEnd::Torn { .. }) => losses.push(end.to_string()),
            Some(end @ FileEnd::Padding { .. }) => facts.notes.push(end.to_string()),
            Some(FileEnd::Clean) | None => {}
        }
        let (stated, found) = (open.ranges.least_frames, open.reader.packets());
        if losses.is_empty() && found < stated {
            losses.push(format!(
                "{found} frames were read, but the store or the sensor states {stated} frames"
            ));
        }
        if open.left_out > 0 {
            let why = match ledger.ports.overfull {
                false => "their interface has another link type",
                true => {
                    "their interface has another link type, or is one of more interfaces than readers accept"
                }
            };
            losses.push(format!(
                "the output does not include {} frames: {why}",
                open.left_out
            ));
        }
        if !losses.is_empty() {
            facts.loss = Some(losses.join("; "));
        }
        let comments = open.reader.section_comments().iter();
        let later = comments.filter(|it| !ledger.comments.has(it));
        ledger.later_comments += later.count() as u64;
        let odd = open.reader.anomalies();
        ledger.unread += odd.other_blocks + odd.section_options;
        for (n, what) in [
            (
                odd.longer_than_frame,
                "records hold more bytes than their stated frame length; the length is raised",
            ),
            (
                odd.above_snaplen,
                "records are longer than the header's snapshot length",
            ),
            (
                odd.fraction_above_second,
                "stamps have a fraction above one second; the file may have nanoseconds under a header for microseconds",
            ),
            (
                odd.unstamped,
                "records have no stamp, and are ordered by the stamp of the previous record",
            ),
            (
                odd.other_blocks,
                "blocks are neither frames, interfaces, statistics nor secrets, and are left out",
            ),
            (
                odd.interface_options,
                "options of interfaces are unknown or malformed, and are left out",
            ),
            (
                odd.texts_left_out,
                "names, comments or descriptions of interfaces are left out, because they have more than 16 MiB",
            ),
        ] {
            if n > 0 {
                facts.notes.push(format!("{n} {what}"));
            }
        }
        // Freed together with the reader's buffer, before the next file is opened.
        open.ports.clear();
    }
}
