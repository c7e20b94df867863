//! Where the product's binaries are: the folder named by `WQCAP_BIN_DIR`, or a build of our own, made once.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The repository's root.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the repository")
}

/// The folder that holds `wqcap` and `libmlx5_model.so`, side by side.
///
/// # Panics
/// When they are not there and cannot be built: no test can say anything then.
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

/// The binary `wqcap`.
#[must_use]
pub fn wqcap() -> PathBuf {
    dir().join("wqcap")
}

/// The server of [`crate::oracles::s3::S3::s3s`], which cargo builds before any test of this package.
///
/// # Panics
/// It is not there.
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

/// `target/debug`, wherever cargo was told to put it: the running test is `target/debug/deps/NAME-HASH`.
#[must_use]
pub(crate) fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("a running program has a path");
    exe.ancestors()
        .nth(2)
        .expect("tests run from target/PROFILE/deps")
        .to_owned()
}
