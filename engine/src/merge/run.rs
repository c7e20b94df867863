//! The merge itself: of all streams, the record that is due first; again and again.

use super::{
    InterfaceFacts, Lateness, MergeError, Plan, Summary,
    gaps::Gaps,
    output::{Output, Target},
    stream::{Ledger, Stream},
};
use crate::reader::{Kind, Packet};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
    time::Instant,
};

/// Records between two looks at the clock of whoever watches.
const EVERY: u64 = 1 << 14;

/// Carries a plan out. `watch` is told now and then how many bytes are read, and may answer `false` to stop.
///
/// # Errors
/// The output cannot be written, or `watch` stopped it. What is wrong with an input is in the summary.
pub fn run(
    plan: Plan,
    target: Target,
    out: &str,
    watch: impl FnMut(u64) -> bool,
) -> Result<Summary, MergeError> {
    run_with(plan, target, out, |_| true, watch)
}

/// The same for the records that `pick` takes. The files' own statistics are not of those, and left out.
pub(crate) fn pick(
    mut plan: Plan,
    target: Target,
    out: &str,
    pick: impl FnMut(&Packet<'_>) -> bool,
    watch: impl FnMut(u64) -> bool,
) -> Result<Summary, MergeError> {
    plan.statistics = false;
    run_with(plan, target, out, pick, watch)
}

fn run_with(
    plan: Plan,
    target: Target,
    out: &str,
    mut pick: impl FnMut(&Packet<'_>) -> bool,
    mut watch: impl FnMut(u64) -> bool,
) -> Result<Summary, MergeError> {
    let begun = Instant::now();
    let (kind, link_type) = (plan.kind, plan.link_type);
    let mut output = Output::begin(target, kind, link_type, plan.snaplen, &plan.ports.list);
    let mut ledger = Ledger {
        inputs: plan.inputs,
        ports: plan.ports,
        statistics: Vec::new(),
        sums: plan.statistics,
        link_type,
        bytes_read: 0,
    };
    let mut streams: Vec<_> = plan.streams.into_iter().map(Stream::new).collect();
    let mut state = Merged {
        frames: 0,
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
    while let Some(mut next) = due.peek_mut() {
        let Reverse((ns, i)) = *next;
        let stream = &mut streams[i];
        match stream.packet() {
            None => stream.open(&mut ledger),
            Some((packet, port)) => {
                if let Some(port) = port
                    && pick(&packet)
                {
                    while kind == Kind::Pcapng && output.interfaces() <= port {
                        let Some(port) = ledger.port_of(output.interfaces()) else {
                            break;
                        };
                        output.interface(port);
                    }
                    output.record(&packet, port, stream.queue)?;
                    state.count(ns, i, port);
                }
                stream.advance(&mut ledger);
            }
        }
        match stream.due() {
            Some(ns) => *next = Reverse((ns, i)),
            None => drop(PeekMut::pop(next)),
        }
        steps += 1;
        if steps.is_multiple_of(EVERY) {
            let open: u64 = streams.iter().map(Stream::offset).sum();
            if !watch(ledger.bytes_read + open) {
                return Err(MergeError::Stopped);
            }
            if output.deaf {
                break;
            }
        }
    }
    for (port, statistics) in ledger.statistics.iter().enumerate() {
        if port < output.interfaces() {
            output.statistics(port, statistics);
        }
    }
    let mut notes = plan.notes;
    if output.deaf {
        notes.push("whoever read the output went away before its end".into());
    }
    let (bytes, note) = output.finish()?;
    notes.extend(note);
    let interfaces = ledger.ports.list.iter().enumerate().map(|(i, port)| {
        let statistics = ledger.statistics.get(i).copied().unwrap_or_default();
        InterfaceFacts {
            name: port.name.clone(),
            frames: state.by_port.get(i).copied().unwrap_or(0),
            received: statistics.received,
            dropped: statistics.dropped,
        }
    });
    Ok(Summary {
        out: out.into(),
        format: match kind {
            Kind::Pcap => "pcap",
            Kind::Pcapng => "pcapng",
        },
        frames: state.frames,
        bytes,
        bytes_read: ledger.bytes_read,
        first_ns: (state.frames > 0).then_some(state.first),
        last_ns: (state.frames > 0).then_some(state.high),
        seconds: begun.elapsed().as_secs_f64(),
        streams: streams.len(),
        interfaces: interfaces.collect(),
        gaps: state.gaps.facts(),
        late: state.late,
        inputs: ledger.inputs,
        notes,
    })
}

/// What the output is so far.
struct Merged {
    frames: u64,
    by_port: Vec<u64>,
    gaps: Gaps,
    late: Lateness,
    first: u64,
    high: u64,
    /// Stamp and stream of the record before.
    before: Option<(u64, usize)>,
}

impl Merged {
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
