//! A software mlx5 NIC, preloaded under unmodified libibverbs and libmlx5.
//!
//! It stands at the kernel's stable boundary. From outside in: `preload` holds the C symbols that
//! stand before the C library's, `fds` knows which descriptors are the model's, `sysfs` and
//! `counters` show the devices that `settings` asks for, and `nic::open_context` answers for
//! `/dev/infiniband/uverbs<N>`. Everything that speaks verbs lies behind that last one.
//!
//! Nothing here knows the capture engine. Unsafe code lives in the modules that opt in by a
//! file-level `allow`, and in no other.

// The C symbols, which everything hangs from, are not exported from the unit tests: they would
// stand before the test runner's own C library.
#![cfg_attr(test, allow(dead_code))]

mod abi;
mod caps;
mod clock;
mod counters;
mod cq;
mod delay_drop;
mod event;
mod fault;
mod fds;
mod frame;
mod memory;
mod nic;
mod objects;
mod port;
mod preload;
mod rq;
mod settings;
mod sq;
mod state;
mod steering;
mod sysfs;
mod thread;
mod uverbs;
mod wire;
