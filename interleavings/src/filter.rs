//! The switch, over a stand-in for a compiled filter.

#[path = "../../engine/src/filter/switch.rs"]
mod switch;

pub(crate) use switch::{Switch, Watch};

/// A filter's text is all there is of it here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter(pub(crate) &'static str);

impl Filter {
    pub(crate) fn expression(&self) -> &str {
        self.0
    }
}
