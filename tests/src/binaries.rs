//! Location of the product's binaries: the folder named by `WQCAP_BIN_DIR`, or the result of one
//! build by the kit.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};
use wqcap_testkit::binaries::built;
pub use wqcap_testkit::binaries::{MODEL, profile_dir, root};

/// Returns the folder that holds both `wqcap` and `libmlx5_model.so`.
///
/// # Panics
/// Panics if the binaries are missing and cannot be built.
pub fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| built(&["wqcap", "mlx5-model"], &["wqcap", MODEL]))
}

/// Returns the path of the binary `wqcap`.
#[must_use]
pub fn wqcap() -> PathBuf {
    dir().join("wqcap")
}

/// Returns the path of the S3 server that [`crate::oracles::s3::S3::s3s`] starts. Cargo builds it
/// before any test of this package.
///
/// # Panics
/// Panics if the binary is missing.
#[must_use]
pub fn s3_server() -> PathBuf {
    let path = profile_dir().join("s3_server");
    assert!(
        path.is_file(),
        "there is no {}: cargo build --package wqcap-tests --bins",
        path.display()
    );
    path
}
