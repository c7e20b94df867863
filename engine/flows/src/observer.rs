//! What is told of the frames that go on to the sink, beside what the sink makes of them.
//!
//! An observer sees each frame that the reductions have let pass, whole, with its headers parsed once for all who want
//! them. What a flow's cutoff then leaves out, or the sink has no room for, has been seen all the same: so over a run,
//! frames that were seen are `captured + cut_off + dropped_storage` in the ledger.
//!
//! May import: [`crate::plan`], [`crate::flows`], [`wqcap_frame`], [`wqcap_core::stats`], the clock of [`crate::rx`].

#[cfg(feature = "records")]
use crate::{
    flow_table::{FlowPlace, Guess},
    flows::{FlowWriter, Meter},
};
use crate::{
    flows::{FlowsPlan, FlowsReport},
    live::{Recorder, Statistics},
};
use wqcap_core::{consumer::Frame, error::ResourceError, time::system_ns};
use wqcap_frame::Headers;

/// Those who look on at one queue's frames.
#[derive(Default)]
pub struct Observer {
    /// Live statistics.
    pub live: Option<Recorder>,
    /// Flow records.
    #[cfg(feature = "records")]
    pub flows: Option<Meter>,
}

impl Observer {
    /// Whether anyone looks on.
    #[must_use]
    pub fn is_active(&self) -> bool {
        #[cfg(feature = "records")]
        if self.flows.is_some() {
            return true;
        }
        self.live.is_some()
    }

    /// A batch of frames begins.
    #[inline]
    pub fn batch(&mut self) {
        #[cfg(feature = "records")]
        if let Some(flows) = &mut self.flows {
            flows.batch();
        }
    }

    /// Shows a frame with its outermost and its innermost headers. Out of line, so that stages with nobody who looks on have
    /// their registers for themselves.
    #[inline(never)]
    pub fn see(&mut self, frame: &Frame<'_>, headers: [&Headers; 2]) {
        self.count_live(frame, headers);
        #[cfg(feature = "records")]
        if let Some(flows) = &mut self.flows {
            let [outer, inner] = headers;
            flows.count(frame.bytes, frame.len, frame.ns, outer, inner);
        }
    }

    /// Shows a frame as [`Observer::see`] does, with the place of its flow; whether that one's limit cuts it off. Flow
    /// records must follow limits.
    #[cfg(feature = "records")]
    #[inline(never)]
    pub fn cuts(
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

    /// Counts frames that were lost before they could be seen: flow records miss them.
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

    /// The batch's frames have all been handled.
    #[inline]
    pub fn handled(&mut self) {
        #[cfg(feature = "records")]
        if let Some(flows) = &mut self.flows {
            flows.handled();
        }
        if let Some(live) = &mut self.live {
            live.handled(system_ns);
        }
    }

    /// The queue has been empty for a moment.
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

/// Attributes of the observers of a capture.
#[derive(Clone, Copy, Debug)]
pub struct ObserversAttr<'a> {
    /// Number of receive queues.
    pub queues: usize,
    /// Observers of each queue: one, or one for each of its parsers.
    pub each: usize,
    /// Keep live statistics.
    pub statistics: bool,
    /// Time stamps are the system's time, and frames are observed while they hold their buffers. Hold times are recorded
    /// only then.
    pub system_time: bool,
    /// Flow records to write; `None`: no flow records.
    pub flows: Option<&'a FlowsPlan>,
}

/// Where the observers of all queues lead.
pub struct Observers {
    statistics: Option<Statistics>,
    /// Stamps are the system's time.
    system_time: bool,
    /// Observers of each queue.
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
        let &ObserversAttr { queues, each, .. } = attr;
        Ok(Self {
            statistics: attr.statistics.then(|| Statistics::new(queues, each)),
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

    /// Makes an observer, which is to be done on its own thread, so that its memory is near; one each. Those of a queue
    /// follow each other.
    pub fn observer(&self, at: usize) -> impl FnOnce() -> Observer + Send + use<> {
        let (statistics, system_time) = (self.statistics.clone(), self.system_time);
        #[cfg(feature = "records")]
        let meter = self
            .flows
            .as_ref()
            .and_then(|it| it.meter(at, at / self.each));
        move || Observer {
            live: statistics.map(|it| it.recorder(at, system_time)),
            #[cfg(feature = "records")]
            flows: meter.map(|make| make()),
        }
    }

    /// The statistics; `None`: they are off.
    #[must_use]
    pub fn statistics(&self) -> Option<&Statistics> {
        self.statistics.as_ref()
    }

    /// Waits until all flow records are written; `None`: there are none. All observers must be gone by then.
    #[must_use]
    pub fn finish(&mut self) -> Option<FlowsReport> {
        #[cfg(feature = "records")]
        if let Some(writer) = self.flows.take() {
            return Some(writer.finish());
        }
        None
    }
}
