//! Link state of an ordinary network interface that is captured.

use crate::device::kernel;

/// Change of a captured network interface since its last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterfaceChange {
    /// The captured network interface went down.
    Down,
    /// The captured network interface came up.
    Up,
    /// The captured network interface was deleted or moved to another network namespace.
    Gone,
}

/// Link state of a network interface, as it was when the watch was created or last checked.
pub(super) struct LinkWatch {
    interface: String,
    /// `true` if the interface was up with a carrier at the last check.
    was_up: bool,
}

impl LinkWatch {
    pub(super) fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            was_up: kernel::has_carrier(interface),
        }
    }

    /// Returns `true` if the network interface was up and had a carrier at the last check.
    /// [`LinkWatch::check`] returns each change since then.
    pub(super) fn is_up(&self) -> bool {
        self.was_up
    }

    /// Returns the change of the network interface since the last call. `is_gone` is set if the
    /// interface was deleted.
    pub(super) fn check(&mut self, is_gone: bool) -> Option<InterfaceChange> {
        if is_gone {
            return Some(InterfaceChange::Gone);
        }
        let is_up = kernel::has_carrier(&self.interface);
        match (std::mem::replace(&mut self.was_up, is_up), is_up) {
            (true, false) => Some(InterfaceChange::Down),
            (false, true) => Some(InterfaceChange::Up),
            _ => None,
        }
    }
}
