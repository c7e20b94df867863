//! Run directory: the directory that holds the tree while processes use it.
//!
//! Imports nothing of the model but the settings' names. Invariants: a directory belongs to one
//! user and is closed to others. Another process uses it only with identical settings. The last
//! member removes it; the next start removes the directories of killed processes.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::settings::{SET, WIRES};

/// Environment variable that passes the parent process's run directory to a child.
pub const DIR: &str = "MLX5_MODEL_DIR";
const PREFIX: &str = "mlx5-model-";
const MEMBERS: &str = "members";
const SETTINGS: &str = "settings";

/// Returns the model's settings as text. Processes that share a run directory must have equal text.
fn settings_text() -> String {
    let value = |name| std::env::var(name).unwrap_or_default();
    format!("{}\n\n{}\n", value(WIRES), value(SET))
}

/// Joins the run directory of the parent process and returns its path, if this process can use it.
pub fn inherited() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os(DIR)?);
    let meta = fs::symlink_metadata(&dir).ok()?;
    let usable = meta.is_dir()
        && meta.uid() == uid()
        && meta.mode() & 0o077 == 0
        && fs::read_to_string(dir.join(SETTINGS)).ok()? == settings_text();
    // Join last: it fails if the last member has just left and removed the tree.
    (usable && join(&dir).is_ok()).then_some(dir)
}

/// Returns the remedy for an error of a file in the run directory; empty if none is known.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EFBIG) => "; raise the limit of file sizes (ulimit -f)",
        _ => "",
    }
}

/// Error of creating a run directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot create the run directory {}: {source}{}", dir.display(), remedy(source))]
pub struct RunDirError {
    dir: PathBuf,
    source: io::Error,
}

/// Creates a run directory and calls `fill` to write the device files into it.
pub fn create(fill: impl FnOnce(&Path) -> io::Result<()>) -> Result<PathBuf, RunDirError> {
    let base = base();
    sweep(&base);
    let mut dir = PathBuf::new();
    // A process that called exec without its environment finds its former directory under the first
    // name.
    for attempt in 0..1000 {
        dir = base.join(format!(
            "{PREFIX}{}-{}-{attempt}",
            std::process::id(),
            pid_namespace()
        ));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(RunDirError { dir, source }),
        }
    }
    let created = fs::create_dir(dir.join(MEMBERS))
        .and_then(|()| join(&dir))
        .and_then(|()| fill(&dir))
        .and_then(|()| fs::write(dir.join(SETTINGS), settings_text()));
    match created {
        Ok(()) => Ok(dir),
        Err(source) => {
            let _ = fs::remove_dir_all(&dir);
            Err(RunDirError { dir, source })
        }
    }
}

/// Registers this process as a member of the run directory. A fork's child calls it too, so it only
/// opens and closes a file.
pub fn join(dir: &Path) -> io::Result<()> {
    File::create(member(dir)).map(drop)
}

/// Unregisters this process from the run directory; the last member removes the directory.
pub fn leave(dir: &Path) {
    // A child that never joined (vfork, a bare clone) is not a member.
    if fs::remove_file(member(dir)).is_ok() && !has_members(dir) {
        let _ = fs::remove_dir_all(dir);
    }
}

fn member(dir: &Path) -> PathBuf {
    dir.join(MEMBERS).join(std::process::id().to_string())
}

/// Returns the directory in which run directories are created, in memory if possible. A run
/// directory has some hundred files, which every program writes at its start and removes at its
/// end. A file system on a disk may need longer to find inodes for them than the program runs.
fn base() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    if let Some(dir) = own.filter(|dir| dir.is_absolute() && dir.is_dir()) {
        return dir;
    }
    let shared = ["/dev/shm", "/tmp"].map(PathBuf::from);
    let first = shared.into_iter().find(|dir| is_for_all(dir));
    first.unwrap_or_else(|| "/tmp".into())
}

/// Returns `true` if every user may create directories in `dir` and no user may remove another
/// user's.
fn is_for_all(dir: &Path) -> bool {
    const STICKY: u32 = 0o1777;
    fs::metadata(dir).is_ok_and(|it| it.is_dir() && it.mode() & STICKY == STICKY)
}

/// Returns the inode of this process's PID namespace. Containers may share `/tmp` but not their
/// processes: a PID is valid only in its own namespace.
fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
}

fn uid() -> u32 {
    fs::metadata("/proc/self").map_or(u32::MAX, |meta| meta.uid())
}

fn alive(pid: &str) -> bool {
    pid.parse::<u32>()
        .is_ok_and(|pid| Path::new("/proc").join(pid.to_string()).exists())
}

fn has_members(dir: &Path) -> bool {
    fs::read_dir(dir.join(MEMBERS)).is_ok_and(|members| {
        members
            .flatten()
            .any(|member| member.file_name().to_str().is_some_and(alive))
    })
}

/// Removes the run directories of killed processes.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let mut parts = rest.split('-');
        let (Some(creator), Some(namespace)) = (parts.next(), parts.next()) else {
            continue;
        };
        if namespace != pid_namespace().to_string() {
            continue;
        }
        // The creator may not have joined yet.
        let own = entry
            .metadata()
            .is_ok_and(|meta| meta.is_dir() && meta.uid() == uid());
        if own && !alive(creator) && !has_members(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_member_removes_the_directory() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = temp.path().join("run");
        fs::create_dir_all(dir.join(MEMBERS)).expect("the directory is created");
        join(&dir).expect("the process joins");
        // Process 1 always exists.
        File::create(dir.join(MEMBERS).join("1")).expect("the member file is created");
        leave(&dir);
        assert!(dir.exists());
        fs::remove_file(dir.join(MEMBERS).join("1")).expect("the member file is removed");
        leave(&dir);
        assert!(dir.exists(), "a non-member must not remove it");
        join(&dir).expect("the process joins");
        leave(&dir);
        assert!(!dir.exists());
    }

    #[test]
    fn only_the_dead_of_this_namespace_are_swept() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let here = pid_namespace();
        let make = |name: String, member: &str| {
            let dir = temp.path().join(name);
            fs::create_dir_all(dir.join(MEMBERS)).expect("the directory is created");
            File::create(dir.join(MEMBERS).join(member)).expect("the member file is created");
            dir
        };
        let dead = make(format!("{PREFIX}4194999-{here}-0"), "4194998");
        let orphan = make(format!("{PREFIX}4194999-{here}-1"), "1");
        let young = make(format!("{PREFIX}1-{here}-0"), "4194998");
        let foreign = make(format!("{PREFIX}4194999-{}-0", here + 1), "4194998");
        sweep(temp.path());
        assert!(!dead.exists());
        assert!(orphan.exists() && young.exists() && foreign.exists());
    }
}
