//! C programs over libibverbs, compiled once for each [`Build`].

use crate::{Program, binaries};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// Build variant of a C client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Build {
    /// Optimized program without a sanitizer.
    Plain,
    /// Shared library for `LD_PRELOAD`.
    Library,
    /// Program with gcc's address sanitizer. A write of the model beyond the client's memory, or to
    /// freed memory, ends the client where the sanitizer checks. The runtime is linked statically,
    /// because it must be the first library, and a preloaded library would come before it.
    Sanitized,
}

/// Compiler flags of clients of this repository: warnings are errors.
const STRICT: [&str; 4] = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"];

/// Builds a client of this repository, with warnings as errors, and returns its path. `source` is
/// relative to the root of the repository.
///
/// # Panics
/// Panics if the source does not compile.
#[must_use]
pub fn ours(source: &str, build: Build) -> PathBuf {
    compile(&binaries::root().join(source), build, &STRICT)
}

/// Builds a client of this repository with the headers of the pkg-config package `package`.
///
/// # Errors
/// Returns a reason to skip if the package is not installed.
///
/// # Panics
/// Panics if the source does not compile.
pub fn with_package(source: &str, package: &str) -> Result<PathBuf, String> {
    let asked = Program::new("pkg-config").args(["--cflags", package]).run();
    if !asked.status.success() {
        return Err(format!(
            "{package} is not installed: {}",
            asked.stderr.trim()
        ));
    }
    let flags: Vec<_> = STRICT
        .into_iter()
        .chain(asked.stdout.split_whitespace())
        .collect();
    let source = binaries::root().join(source);
    Ok(compile(&source, Build::Plain, &flags))
}

/// Builds an unmodified client from `../shared/spike`, with warnings disabled.
///
/// # Errors
/// Returns a reason to skip if the source is missing.
///
/// # Panics
/// Panics if the source does not compile.
pub fn theirs(name: &str, build: Build) -> Result<PathBuf, String> {
    let source = binaries::root()
        .join("../shared/spike")
        .join(format!("{name}.c"));
    if !source.is_file() {
        return Err(format!("no {name}.c in ../shared/spike"));
    }
    Ok(compile(&source, build, &["-w"]))
}

/// Returns the program of `source` in one build variant. The first test that needs it compiles it.
fn compile(source: &Path, build: Build, warnings: &[&str]) -> PathBuf {
    type Built = HashMap<(PathBuf, Build), Arc<OnceLock<PathBuf>>>;
    static BUILT: Mutex<Option<Built>> = Mutex::new(None);
    let key = (source.to_owned(), build);
    // The lock covers the look-up only, so that different clients compile in parallel.
    let place = {
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(built.get_or_insert_default().entry(key).or_default())
    };
    place
        .get_or_init(|| compiled(source, build, warnings))
        .clone()
}

fn compiled(source: &Path, build: Build, warnings: &[&str]) -> PathBuf {
    let folder = binaries::profile_dir().join("clients");
    std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let stem = source
        .file_stem()
        .expect("a source has a name")
        .to_string_lossy();
    let (suffix, flags): (_, &[&str]) = match build {
        Build::Plain => ("", &["-O2"]),
        Build::Library => (".so", &["-O2", "-shared", "-fPIC"]),
        Build::Sanitized => (
            ".asan",
            &[
                "-O1",
                "-fno-omit-frame-pointer",
                "-fsanitize=address",
                "-static-libasan",
            ],
        ),
    };
    let path = folder.join(format!("{stem}{suffix}"));
    // The pid avoids a conflict of test binaries that run at the same time; the rename publishes
    // the complete file at once.
    let fresh = folder.join(format!("{stem}{suffix}.{}", std::process::id()));
    let _ = Program::new("gcc")
        .args(["-g", "-pthread"])
        .args(flags)
        .args(warnings)
        .arg("-o")
        .arg(&fresh)
        .arg(source)
        .args(["-libverbs", "-lmlx5"])
        .run()
        .expect(0);
    std::fs::rename(&fresh, &path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    path
}
