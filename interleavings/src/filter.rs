//! The cell that a filter is changed in, over a stand-in for a compiled filter.

#[path = "../../engine/frame/src/filter/cell.rs"]
mod cell;

use crate::sync;
pub(crate) use cell::{FilterCell, FilterReader};

/// A filter's text is all there is of it here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter(pub(crate) &'static str);

impl Filter {
    pub(crate) fn expression(&self) -> &str {
        self.0
    }
}
