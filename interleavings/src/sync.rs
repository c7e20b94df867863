//! The engine's primitives, as loom has them.

pub(crate) use loom::{
    hint,
    sync::{Arc, Mutex, atomic},
};
/// loom's mutexes are poisoned by the same type.
pub(crate) use std::sync::PoisonError;

/// A channel with room for everything, of which only the sending end is modelled.
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
