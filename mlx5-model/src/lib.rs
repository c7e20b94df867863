//! A software mlx5 NIC, preloaded under unmodified libibverbs and libmlx5.
//!
//! The model stands at the kernel's stable boundary. The modules, each of which imports only those below it:
//!
//! | module | contents |
//! |---|---|
//! | `preload` | the C symbols that replace the C library's, and the library's start and end |
//! | `sysfs` | the files that programs see of the devices |
//! | `uapi` | `/dev/infiniband/uverbs<N>`: commands by write() and ioctl(), decoded and checked |
//! | `device` | the NIC: objects, queues, ports, clock, events, and the thread that drives them |
//! | `steering` | flow rules and RSS: which queues a frame goes to |
//! | `wire` | where frames come from and go to |
//! | `settings` | the environment's settings, parsed and checked |
//! | `handles` | handles and the tables behind them |
//! | `frame` | a frame as the NIC's parser sees it, and checksums |
//! | `process` | descriptors, the C library's own functions, memory, threads |
//! | `abi` | layouts, generated from the system headers |
//!
//! A type's name says whose it is: what a command creates and a handle names is an `…Object` (`CqObject`, `FlowObject`),
//! what is the NIC's own is `Nic…` (`NicPort`, `NicRing`), what a wire brings is `Wire…`. The capture engine has the
//! program's side of each, by the bare name.
//!
//! Nothing here knows the capture engine. Unsafe code lives in the modules that opt in by a file-level `allow`, and
//! in no other.

// The C symbols, which everything hangs from, are not exported from the unit tests and the fuzz target: they would stand
// before the runner's own C library.
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
