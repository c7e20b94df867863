//! Loom models of the data that the engine's threads share. Loom runs each model in every order of
//! the threads' steps and with every value that the memory model allows a load to return.
//!
//! The sources are those of the engine, included by path. Only `sync` differs: it has loom's
//! primitives instead of the standard library's. Slots of a ring and their frames are replaced by
//! simple stand-ins, because the models do not cover memory and devices.
//!
//! Architecture invariant: no crate depends on this one, and it contains only tests.
#![cfg(test)]
#![allow(
    dead_code,
    reason = "the engine's sources contain more than the models use"
)]

mod clock;
mod filter;
mod rx;
mod stats;
mod sync;

mod pipeline {
    //! The resequencer of a queue's parsers, and the models, which need access to its private
    //! neighbours.

    #[path = "../../../engine/core/src/consumer.rs"]
    mod consumer;
    #[path = "../../../engine/src/pipeline/resequencer/mod.rs"]
    mod resequencer;
    #[path = "../../../engine/src/pipeline/work_batch.rs"]
    mod work_batch;

    mod models;

    pub(crate) use consumer::{Consumer, Frame, Verdict};
}
