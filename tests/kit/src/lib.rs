//! Light part of the kit of the tests: helpers that start programs from outside and compare frames.
//!
//! Tests of the engine's crates and of the model use it, so it has few dependencies and links no
//! crate of the workspace. Crate `wqcap-tests` adds what only the tests of `wqcap` need.
//!
//! | module | contents |
//! |---|---|
//! | [`binaries`] | finding or building programs and the model's shared object |
//! | [`process`] | child processes with a deadline, signals by pid, collected output; C programs, with and without the address sanitizer |
//! | [`model`] | command line of a program on the model |
//! | [`compare`] | comparison of long sequences; a failure prints only the first difference |
//! | [`files`] | reader and writer of capture files as plain records |
//! | [`frames`] | builder of frames; filter expressions for tests |
//! | [`captures`] | a folder of real captures, or generated ones if that folder is absent |
//! | [`machine`] | scratch folders, network namespaces joined by veth, users without privileges |
//! | [`skip!`] | reported skip of a test that cannot run |
//!
//! Invariants:
//! - No child process outlives its test.
//! - A signal is sent only to a pid that the test itself started.
//! - A test that cannot run reports this with [`skip!`]; it never just returns.
//! - A test waits for an event (a log line, an answer, a counter, a file), never for a fixed time.
//! - The output of a failure fits on one screen.

pub mod binaries;
pub mod captures;
pub mod compare;
pub mod files;
pub mod frames;
pub mod machine;
pub mod model;
pub mod process;
pub mod skip;

pub use machine::{dir::Dir, netns::Pair};
pub use process::{Done, Program, Running};
