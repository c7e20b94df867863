//! The engine's filter cell, with a stand-in for a compiled filter.

#[path = "../../engine/frame/src/filter/cell.rs"]
mod cell;

use crate::sync;
pub(crate) use cell::{FilterCell, FilterReader};

/// Stand-in for a compiled filter: only its expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter(pub(crate) &'static str);

impl Filter {
    pub(crate) fn expression(&self) -> &str {
        self.0
    }
}
