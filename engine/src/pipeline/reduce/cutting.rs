//! Which table follows the flows: that of flow records, if there are any, so that a frame's flow is looked for once.

use super::{ahead::Ahead, cutoff::Cutoff};
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

/// Who follows the flows for a cutoff.
pub(super) enum Cutting {
    /// Its own table.
    Own(Cutoff),
    /// Flow records.
    #[cfg(feature = "flows")]
    Records,
}

#[cfg_attr(
    not(feature = "flows"),
    expect(unused_variables, reason = "flow records are among the observers")
)]
impl Cutting {
    pub(super) fn new(plan: &CutoffPlan, observer: &mut Observer) -> Self {
        #[cfg(feature = "flows")]
        if let Some(meter) = &mut observer.flows {
            meter.follow(plan);
            return Self::Records;
        }
        Self::Own(Cutoff::new(plan))
    }

    /// Where a flow seems to be.
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

    /// Looks at the frames of a batch, if there are so many flows that this is of use.
    #[inline]
    pub(super) fn look_ahead<'a>(
        &self,
        observer: &Observer,
        ahead: &mut Ahead,
        frames: impl Iterator<Item = &'a [u8]>,
    ) {
        match self {
            Self::Own(cutoff) if cutoff.table().is_large() => ahead.look(frames, cutoff.table()),
            Self::Own(_) => {}
            #[cfg(feature = "flows")]
            Self::Records => {
                let table = observer.flows.as_ref().map(Meter::table);
                if let Some(table) = table.filter(|it| it.is_large()) {
                    ahead.look(frames, table);
                }
            }
        }
    }

    /// Shows a frame to the observers; whether it is cut off.
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
                observer.see(frame, headers);
                cutoff.cuts(frame, place, guess)
            }
            #[cfg(feature = "flows")]
            Self::Records => observer.cuts(frame, headers, place, guess),
        }
    }

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
