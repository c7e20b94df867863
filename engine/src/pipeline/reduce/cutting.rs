//! Choice of the flow table for a cutoff: the table of flow records if there is one, so that each
//! flow is looked up once.

use super::{ahead::ParsedBatch, cutoff::Cutoff};
#[cfg(feature = "flows")]
use crate::analysis::flows::Meter;
use crate::{
    analysis::{
        flow_table::{FlowPlace, Guess},
        limits::{CutoffPlan, CutoffReport},
        observer::Observer,
    },
    frame::Headers,
    pipeline::Frame,
};

/// Flow table that a cutoff uses to count the frames of each flow.
pub(super) enum CutoffTable {
    /// Flow table that only the cutoff uses.
    Own(Cutoff),
    /// Flow table of the flow records, which also counts for the cutoff.
    #[cfg(feature = "flows")]
    Records,
}

#[cfg_attr(
    not(feature = "flows"),
    expect(
        unused_variables,
        reason = "the observer is used only with flow records"
    )
)]
impl CutoffTable {
    /// Uses the flow table of flow records if there is one, else creates a separate one for the
    /// cutoff.
    pub(super) fn new(plan: &CutoffPlan, observer: &mut Observer) -> Self {
        #[cfg(feature = "flows")]
        if let Some(meter) = &mut observer.flows {
            meter.follow(plan);
            return Self::Records;
        }
        Self::Own(Cutoff::new(plan))
    }

    /// Returns the probable position of a flow in the cutoff's flow table.
    #[inline]
    pub(super) fn guess(&self, observer: &Observer, place: &FlowPlace) -> Guess {
        let FlowPlace { key, hash, .. } = place;
        match self {
            Self::Own(cutoff) => cutoff.table().guess(*hash, key),
            #[cfg(feature = "flows")]
            Self::Records => {
                let meter = observer.flows.as_ref();
                meter.map_or_else(Guess::default, |it| it.table().guess(*hash, key))
            }
        }
    }

    /// Parses the headers of a batch's frames in advance and prefetches their flows, if the flow
    /// table is large.
    #[inline]
    pub(super) fn look_ahead<'a>(
        &self,
        observer: &Observer,
        ahead: &mut ParsedBatch,
        frames: impl Iterator<Item = &'a [u8]>,
    ) {
        match self {
            Self::Own(cutoff) if cutoff.table().is_large() => ahead.prepare(frames, cutoff.table()),
            Self::Own(_) => {}
            #[cfg(feature = "flows")]
            Self::Records => {
                let table = observer.flows.as_ref().map(Meter::table);
                if let Some(table) = table.filter(|it| it.is_large()) {
                    ahead.prepare(frames, table);
                }
            }
        }
    }

    /// Passes a frame to the observers and counts it towards its flow's cutoff limit. Returns
    /// `true` if the frame is beyond the limit, so that it is left out.
    #[inline]
    pub(super) fn cuts(
        &mut self,
        observer: &mut Observer,
        frame: &Frame<'_>,
        headers: [&Headers; 2],
        place: &FlowPlace,
        guess: Guess,
    ) -> bool {
        match self {
            Self::Own(cutoff) => {
                observer.count(frame, headers);
                cutoff.cuts(frame, place, guess)
            }
            #[cfg(feature = "flows")]
            Self::Records => observer.count_and_cut(frame, headers, place, guess),
        }
    }

    /// Returns the counts of frames that the cutoff has left out.
    pub(super) fn report(&self, observer: &Observer) -> CutoffReport {
        match self {
            Self::Own(cutoff) => cutoff.report(),
            #[cfg(feature = "flows")]
            Self::Records => {
                let meter = observer.flows.as_ref();
                meter.map_or_else(CutoffReport::default, Meter::cutoff)
            }
        }
    }
}
