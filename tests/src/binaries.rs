//! Location of the product's binaries: the folder named by `WQCAP_BIN_DIR`, or the result of one
//! build by the kit.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Returns the root folder of the repository.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the repository")
}

/// Returns the folder that holds both `wqcap` and `libmlx5_model.so`.
///
/// # Panics
/// Panics if the binaries are missing and cannot be built.
pub fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = match std::env::var_os("WQCAP_BIN_DIR") {
            Some(dir) => root().join(dir),
            None => build(),
        };
        for name in ["wqcap", "libmlx5_model.so"] {
            assert!(dir.join(name).is_file(), "{} has no {name}", dir.display());
        }
        dir
    })
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

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--package",
            "wqcap",
            "--package",
            "mlx5-model",
        ])
        .current_dir(root())
        .status()
        .expect("cargo starts");
    assert!(status.success(), "the binaries do not build: {status}");
    profile_dir()
}

/// Returns `target/debug`, also if cargo uses another target folder: the running test is
/// `target/debug/deps/NAME-HASH`.
#[must_use]
pub(crate) fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("a running program has a path");
    exe.ancestors()
        .nth(2)
        .expect("tests run from target/PROFILE/deps")
        .to_owned()
}
