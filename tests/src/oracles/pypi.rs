//! Installer of PyPI packages in the folder of the binaries.

use crate::{Program, binaries};
use std::{fs, path::PathBuf};

/// Installs a package in the given version, with `extras` such as `[server]`, unless it is already
/// installed. Returns its folder for PYTHONPATH.
///
/// # Errors
/// Returns a reason to skip if pip is missing or PyPI cannot be reached.
///
/// # Panics
/// Panics if the installed package cannot be moved to its folder.
pub fn installed(package: &str, extras: &str, version: &str) -> Result<PathBuf, String> {
    let target = binaries::profile_dir();
    let packages = target.join(format!("{package}-{version}"));
    if packages.is_dir() {
        return Ok(packages);
    }
    // Installed to a temporary folder first, so that an incomplete installation is never used.
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
