//! What the engine's threads share, run by loom under every order of their steps and every value that the memory model
//! lets a load see.
//!
//! The sources are the engine's own, taken in by their path; only `sync` is another one, with loom's primitives in
//! place of the standard library's. What stands around them there, the slots of a ring and the frames in them, is a
//! stand-in here: models of memory and devices are not what these are about.
//!
//! Architecture invariant: nothing depends on this crate, and it has nothing but tests.
#![cfg(test)]
#![allow(
    dead_code,
    reason = "the engine's sources have more to them than is modelled"
)]

mod clock;
mod filter;
mod rx;
mod stats;
mod sync;

mod pipeline {
    //! The resequencer of a queue's parsers; and the models, which see what only its neighbours may see.

    #[path = "../../../engine/core/src/consumer.rs"]
    mod consumer;
    #[path = "../../../engine/src/pipeline/resequencer/mod.rs"]
    mod resequencer;
    #[path = "../../../engine/src/pipeline/work_batch.rs"]
    mod work_batch;

    mod models;

    pub(crate) use consumer::{Consumer, Fcs, Frame, Verdict};
}
