//! Link state of an ordinary network interface that is captured.

use crate::device::kernel;

/// Change of the interface since the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterfaceChange {
    /// The interface went down.
    Down,
    /// The interface came up.
    Up,
    /// The interface was deleted or moved to another network namespace.
    Gone,
}

/// Link state of a network interface, as it was at the last check.
pub(super) struct LinkWatch {
    interface: String,
    /// `true` if the interface was up; `None` before the first check.
    was_up: Option<bool>,
}

impl LinkWatch {
    pub(super) fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            was_up: None,
        }
    }

    /// Returns `true` if the interface is up and has a carrier.
    pub(super) fn is_up(&self) -> bool {
        kernel::has_carrier(&self.interface)
    }

    /// Returns what changed since the last call. `is_gone` is set if the interface was deleted.
    pub(super) fn check(&mut self, is_gone: bool) -> Option<InterfaceChange> {
        if is_gone {
            return Some(InterfaceChange::Gone);
        }
        let is_up = self.is_up();
        match (self.was_up.replace(is_up), is_up) {
            (Some(true), false) => Some(InterfaceChange::Down),
            (Some(false), true) => Some(InterfaceChange::Up),
            _ => None,
        }
    }
}
