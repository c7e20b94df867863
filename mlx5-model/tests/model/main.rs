//! Tests of the model: programs of others and C clients on the software NIC.

mod clients;
mod dpdk;
mod mcdump;
mod nic;
mod pyverbs;
mod refusals;
mod speed;

use std::path::PathBuf;
use wqcap_testkit::process::clients::{Build, ours};

/// Builds `mlx5-model/tests/clients/<name>.c` and returns its path.
fn c_client(name: &str, build: Build) -> PathBuf {
    ours(&format!("mlx5-model/tests/clients/{name}.c"), build)
}
