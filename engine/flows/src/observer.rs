//! Observer of the frames that pass the reductions (filter, deduplication, sampling): live
//! statistics and flow records.
//!
//! An observer receives each whole frame that the reductions keep, with its headers parsed once for
//! all users. Frames that a flow's cutoff then leaves out, or that the sink cannot store, have been
//! observed too. Over a run, the observed frames are therefore `captured + cut_off +
//! dropped_storage` in the ledger.
//!
//! Imports [`crate::flows`], [`crate::live`] and `wqcap_frame`.

#[cfg(feature = "records")]
use crate::{
    flow_table::{FlowPlace, Guess},
    flows::{FlowWriter, Meter},
};
use crate::{
    flows::{FlowsPlan, FlowsReport, PortLabels},
    live::{Recorder, Statistics},
};
use wqcap_core::{consumer::Frame, error::ResourceError, time::system_ns};
use wqcap_frame::Headers;

/// Observers of one queue's frames: live statistics and flow records.
#[derive(Default)]
pub struct Observer {
    /// Recorder of live statistics; `None`: live statistics are off.
    pub live: Option<Recorder>,
    /// Meter of flow records; `None`: flow records are off.
    #[cfg(feature = "records")]
    pub flows: Option<Meter>,
}

impl Observer {
    /// Returns `true` if live statistics or flow records are on.
    #[must_use]
    pub fn is_active(&self) -> bool {
        #[cfg(feature = "records")]
        if self.flows.is_some() {
            return true;
        }
        self.live.is_some()
    }

    /// Starts a batch of frames for live statistics and flow records.
    #[inline]
    pub fn batch(&mut self) {
        #[cfg(feature = "records")]
        if let Some(flows) = &mut self.flows {
            flows.batch();
        }
    }

    /// Counts a frame with its outermost and innermost headers in live statistics and flow records.
    /// The function is not inlined, so that stages without an active observer keep their registers.
    #[inline(never)]
    pub fn count(&mut self, frame: &Frame<'_>, headers: [&Headers; 2]) {
        self.count_live(frame, headers);
        #[cfg(feature = "records")]
        if let Some(flows) = &mut self.flows {
            let [outer, inner] = headers;
            flows.count(frame, outer, inner);
        }
    }

    /// Counts a frame like [`Observer::count`], and returns `true` if the frame is beyond the
    /// cutoff limit of its flow, given by `place`. Flow records must apply the limits of a cutoff.
    #[cfg(feature = "records")]
    #[inline(never)]
    pub fn count_and_cut(
        &mut self,
        frame: &Frame<'_>,
        headers: [&Headers; 2],
        place: &FlowPlace,
        guess: Guess,
    ) -> bool {
        self.count_live(frame, headers);
        let flows = self.flows.as_mut();
        flows.is_some_and(|it| it.cuts(frame, headers, place, guess))
    }

    #[inline]
    fn count_live(&mut self, frame: &Frame<'_>, [outer, inner]: [&Headers; 2]) {
        if let Some(live) = &mut self.live {
            live.count(frame.bytes, frame.len, frame.ns, outer, inner);
        }
    }

    /// Counts frames that were lost before the observers, as missed by the flow records.
    #[cfg_attr(
        not(feature = "records"),
        expect(unused_variables, reason = "only flow records miss frames")
    )]
    pub fn missed(&mut self, frames: u64) {
        #[cfg(feature = "records")]
        if let Some(flows) = &mut self.flows {
            flows.missed(frames);
        }
    }

    /// Ends a batch of frames for live statistics and flow records: all its frames have been
    /// processed.
    #[inline]
    pub fn end_batch(&mut self) {
        #[cfg(feature = "records")]
        if let Some(flows) = &mut self.flows {
            flows.handled();
        }
        if let Some(live) = &mut self.live {
            live.handled(system_ns);
        }
    }

    /// Advances the time of live statistics and flow records while the queue is empty.
    pub fn idle(&mut self) {
        if let Some(live) = &mut self.live {
            live.idle();
        }
        #[cfg(feature = "records")]
        if let Some(flows) = &mut self.flows {
            flows.idle();
        }
    }
}

/// Settings from which the observers of a capture's frames are created.
#[derive(Clone, Copy, Debug)]
pub struct ObserversAttr<'a> {
    /// Labels of the ports that each queue's frames come from. The list has one entry for each
    /// queue, or a single one for all queues after their frames are merged.
    pub ports: &'a [PortLabels],
    /// Number of observers of each queue: one, or one for each of its parsers.
    pub each: usize,
    /// `true` if live statistics are collected.
    pub statistics: bool,
    /// `true` if frame time stamps are the system's time, and frames are observed while they hold
    /// their buffers. Hold times are recorded only then.
    pub system_time: bool,
    /// Settings for the flow records to write; `None`: no flow records.
    pub flows: Option<&'a FlowsPlan>,
}

/// Observers of the frames of all queues, for live statistics and flow records.
pub struct Observers {
    statistics: Option<Statistics>,
    /// `true` if frame time stamps are system time.
    system_time: bool,
    /// Labels of the ports that each queue's frames come from, one entry per queue.
    #[cfg(feature = "records")]
    ports: Vec<PortLabels>,
    /// Number of observers of each receive queue.
    #[cfg(feature = "records")]
    each: usize,
    #[cfg(feature = "records")]
    flows: Option<FlowWriter>,
}

impl Observers {
    /// Starts live statistics and the threads that write flow records.
    ///
    /// # Errors
    /// Flow records cannot be written.
    pub fn start(attr: &ObserversAttr<'_>) -> Result<Self, ResourceError> {
        let &ObserversAttr { ports, each, .. } = attr;
        let queues = ports.len();
        Ok(Self {
            statistics: attr.statistics.then(|| Statistics::new(queues, each)),
            #[cfg(feature = "records")]
            ports: ports.to_vec(),
            #[cfg(feature = "records")]
            each,
            system_time: attr.system_time,
            #[cfg(feature = "records")]
            flows: attr
                .flows
                .map(|it| FlowWriter::start(it, queues * each))
                .transpose()?,
        })
    }

    /// Returns a function that creates frame observer number `at`. Call it once, on the observer's
    /// own thread, so that its memory is on that thread's NUMA node. Observers of a queue have
    /// consecutive numbers.
    pub fn observer(&self, at: usize) -> impl FnOnce() -> Observer + Send + use<> {
        let (statistics, system_time) = (self.statistics.clone(), self.system_time);
        #[cfg(feature = "records")]
        let meter = self.flows.as_ref().and_then(|it| {
            let queue = at / self.each;
            it.meter(at, queue, self.ports.get(queue)?.clone())
        });
        move || Observer {
            live: statistics.map(|it| it.recorder(at, system_time)),
            #[cfg(feature = "records")]
            flows: meter.map(|make| make()),
        }
    }

    /// Returns the live statistics; `None`: live statistics are off.
    #[must_use]
    pub fn statistics(&self) -> Option<&Statistics> {
        self.statistics.as_ref()
    }

    /// Waits until all flow records are written; `None`: flow records are off. All observers must
    /// be dropped before.
    #[must_use]
    pub fn finish(&mut self) -> Option<FlowsReport> {
        #[cfg(feature = "records")]
        if let Some(writer) = self.flows.take() {
            return Some(writer.finish());
        }
        None
    }
}
