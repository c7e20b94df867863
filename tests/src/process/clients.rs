//! C programs over libibverbs, built once for each way of building.

use crate::{Program, binaries};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// How a client is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Build {
    /// As an ordinary user would.
    Plain,
    /// As a library to preload.
    Library,
    /// With gcc's address sanitizer: a write of the model beyond the client's memory, or after it is gone, ends the
    /// client where the sanitizer watches. Its runtime is linked in, since it insists on being the first library and a
    /// preloaded one comes before it.
    Sanitized,
}

/// How our own are compiled: warnings are errors.
const STRICT: [&str; 4] = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"];

/// Builds `tests/clients/<name>.c`, warnings being errors.
///
/// # Panics
/// When it does not compile.
#[must_use]
pub fn ours(name: &str, build: Build) -> PathBuf {
    compile(&source_of(name), build, &STRICT)
}

/// Builds `tests/clients/<name>.c` with the headers of `package`, by pkg-config's name.
///
/// # Errors
/// The package is not installed: a reason to skip.
///
/// # Panics
/// When it does not compile.
pub fn with_package(name: &str, package: &str) -> Result<PathBuf, String> {
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
    Ok(compile(&source_of(name), Build::Plain, &flags))
}

fn source_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("clients")
        .join(format!("{name}.c"))
}

/// Builds a client from `../shared/spike` as it stands there.
///
/// # Errors
/// The folder is not there: a reason to skip.
///
/// # Panics
/// When it does not compile.
pub fn theirs(name: &str, build: Build) -> Result<PathBuf, String> {
    let source = binaries::root()
        .join("../shared/spike")
        .join(format!("{name}.c"));
    if !source.is_file() {
        return Err(format!("no {name}.c in ../shared/spike"));
    }
    Ok(compile(&source, build, &["-w"]))
}

/// The client of a source in one way of building: compiled once, by the first test that needs it.
fn compile(source: &Path, build: Build, warnings: &[&str]) -> PathBuf {
    type Built = HashMap<(PathBuf, Build), Arc<OnceLock<PathBuf>>>;
    static BUILT: Mutex<Option<Built>> = Mutex::new(None);
    let key = (source.to_owned(), build);
    // Only to find the place: clients are compiled side by side.
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
    // The pid keeps test binaries that run side by side apart; the rename makes the client appear whole.
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
