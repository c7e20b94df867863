//! A software mlx5 NIC, preloaded under unmodified libibverbs and libmlx5.
//!
//! The model implements the kernel's stable uAPI boundary. Its modules, each of which imports only
//! those below it in the table:
//!
//! | module | contents |
//! |---|---|
//! | `preload` | the C symbols that replace the C library's, and the library's start and end |
//! | `sysfs` | the devices' files that programs see |
//! | `uapi` | `/dev/infiniband/uverbs<N>`: commands by write() and ioctl(), decoded and checked |
//! | `device` | the NIC: objects, queues, ports, clock, events, and the thread that drives them |
//! | `steering` | flow rules and RSS: selection of the queues that a frame goes to |
//! | `wire` | sources and destinations of frames |
//! | `settings` | the environment's settings, parsed and checked |
//! | `handles` | handles and the tables behind them |
//! | `frame` | a frame as the NIC's parser sees it, and checksums |
//! | `process` | descriptors, the C library's own functions, memory, threads |
//! | `abi` | layouts, generated from the system headers |
//!
//! A type's name shows its owner. An object that a command creates and a handle names is an
//! `…Object` (`CqObject`, `FlowObject`). State of the NIC itself is `Nic…` (`NicPort`, `NicRing`).
//! Data of a wire is `Wire…`. The capture engine has the program's side of each under the bare
//! name.
//!
//! The model does not depend on the capture engine. Unsafe code is limited to modules with a
//! file-level `allow`.

// The unit tests and the fuzz target do not export the C symbols, which would replace those of the
// test runner's own C library. Code that only the symbols use is then dead.
#![cfg_attr(any(test, fuzzing), allow(dead_code))]

mod abi;
mod device;
mod frame;
mod handles;
mod preload;
mod process;
mod settings;
mod steering;
mod sysfs;
#[cfg(not(fuzzing))]
mod uapi;
#[cfg(fuzzing)]
pub mod uapi;
mod wire;
