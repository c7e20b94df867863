//! Bindings of libmlx5's direct verbs, which `rdma-sys` lacks. `build.rs` generates them from the
//! system's `infiniband/mlx5dv.h`.
#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code,
    missing_docs
)]
#![allow(clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/direct.rs"));
