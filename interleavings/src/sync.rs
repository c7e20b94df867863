//! Loom's versions of the engine's synchronisation primitives.

pub(crate) use loom::{
    hint,
    sync::{Arc, Mutex, atomic},
};
/// Loom's mutexes use the standard library's poison error.
pub(crate) use std::sync::PoisonError;

/// Sending end of an unbounded channel; the receiving end is not modelled.
pub(crate) struct Sender<T>(pub(crate) Arc<Mutex<Vec<T>>>);

impl<T> Sender<T> {
    pub(crate) fn send(&self, value: T) -> Result<(), T> {
        match self.0.lock() {
            Ok(mut sent) => sent.push(value),
            Err(_) => return Err(value),
        }
        Ok(())
    }
}
