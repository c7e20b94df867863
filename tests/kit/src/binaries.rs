//! Location of built programs and of the model's shared object: the folder named by
//! `WQCAP_BIN_DIR`, or the result of one build by the kit.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Returns the root folder of the repository.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("tests/kit/ lies in the repository")
}

/// Returns the path of the model's shared object.
///
/// # Panics
/// Panics if the shared object is missing and cannot be built.
pub fn model() -> &'static Path {
    static OBJECT: OnceLock<PathBuf> = OnceLock::new();
    OBJECT.get_or_init(|| built(&["mlx5-model"], &[MODEL]).join(MODEL))
}

/// File name of the model's shared object.
pub const MODEL: &str = "libmlx5_model.so";

/// Returns the folder that holds `files`, which `packages` are built to: the one named by
/// `WQCAP_BIN_DIR`, or that of a build by this function.
///
/// # Panics
/// Panics if a file is missing or a package cannot be built.
#[must_use]
pub fn built(packages: &[&str], files: &[&str]) -> PathBuf {
    let dir = match std::env::var_os("WQCAP_BIN_DIR") {
        Some(dir) => root().join(dir),
        None => build(packages),
    };
    for name in files {
        assert!(dir.join(name).is_file(), "{} has no {name}", dir.display());
    }
    dir
}

fn build(packages: &[&str]) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet"])
        .args(packages.iter().flat_map(|it| ["--package", it]))
        .current_dir(root())
        .status()
        .expect("cargo starts");
    assert!(
        status.success(),
        "cargo cannot build {packages:?}: {status}"
    );
    profile_dir()
}

/// Returns `target/debug`, also if cargo uses another target folder: the running test is
/// `target/debug/deps/NAME-HASH`.
#[must_use]
pub fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("a running program has a path");
    exe.ancestors()
        .nth(2)
        .expect("tests run from target/PROFILE/deps")
        .to_owned()
}
