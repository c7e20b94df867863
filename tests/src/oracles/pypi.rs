//! Packages from PyPI, beside the binaries.

use crate::{Program, binaries};
use std::{fs, path::PathBuf};

/// Installs a package of this version, with `extras` such as `[server]`, unless it is there: its folder, for PYTHONPATH.
///
/// # Errors
/// There is no pip, or no way to PyPI: a reason to skip.
///
/// # Panics
/// What has been installed cannot be put in its place.
pub fn installed(package: &str, extras: &str, version: &str) -> Result<PathBuf, String> {
    let target = binaries::profile_dir();
    let packages = target.join(format!("{package}-{version}"));
    if packages.is_dir() {
        return Ok(packages);
    }
    // In a folder of its own at first: half an installation must not be taken for one.
    let fresh = tempfile::Builder::new()
        .prefix(&format!("{package}-"))
        .tempdir_in(&target)
        .expect("the target folder can be written to");
    let done = Program::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-input"])
        .args(["--disable-pip-version-check", "--retries=1", "--timeout=20"])
        .arg("--only-binary=:all:")
        .arg("--target")
        .arg(fresh.path())
        .arg(format!("{package}{extras}=={version}"))
        .run();
    if !done.status.success() {
        let last = done.stderr.trim().lines().last().unwrap_or_default();
        return Err(format!(
            "{package} {version} cannot be installed from PyPI: {last}"
        ));
    }
    if let Err(e) = fs::rename(fresh.path(), &packages) {
        assert!(packages.is_dir(), "{}: {e}", packages.display());
    }
    Ok(packages)
}
