//! Destination of the merged file: a file that is renamed when complete, a device or pipe, or
//! standard output.

use super::{plan::MergePlan, summary::MergeError};
use crate::folder::sync_folder;
use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, ErrorKind, Write},
    os::{
        fd::AsFd,
        unix::fs::{FileExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// Destination of the merged file: a file, a device or pipe, or standard output.
pub struct MergeTarget {
    place: MergeDestination,
    /// Path of the merged file as messages show it.
    pub(super) shown: String,
}

enum MergeDestination {
    /// No destination: the merged file is discarded.
    Nothing,
    Stdout,
    /// Function of the caller that receives the bytes of the merged file.
    Writer(Box<dyn Write + Send>),
    /// Device or pipe to which the merged file is written directly.
    Direct(File),
    /// Temporary file in the folder of the merged file, renamed to its final path when complete.
    Named(NamedTempFile, PathBuf),
}

impl MergeTarget {
    /// Creates a destination that discards the merged file.
    pub(super) fn none() -> Self {
        Self {
            place: MergeDestination::Nothing,
            shown: String::new(),
        }
    }

    /// Creates a destination that passes the merged file's bytes to `writer`. An error of kind
    /// `BrokenPipe` ends the merge early.
    pub(crate) fn to_writer(writer: Box<dyn Write + Send>) -> Self {
        Self {
            place: MergeDestination::Writer(writer),
            shown: "the answer".into(),
        }
    }

    /// Opens the output `out` of a merge; `-` is standard output.
    ///
    /// # Errors
    /// The output is one of the inputs, or cannot be created.
    pub fn new(out: &Path, plan: &MergePlan) -> Result<Self, MergeError> {
        let shown = out.display().to_string();
        let refused = |problem: String| MergeError::Refused(format!("{shown}: {problem}"));
        let place = if out.as_os_str() == "-" {
            // After `>> INPUT`, the merge would read the frames that it writes.
            let redirected = file_at_stdout().is_some_and(|it| plan.reads(&it));
            if redirected {
                return Err(MergeError::Refused(
                    "standard output is one of the inputs; name another output".into(),
                ));
            }
            MergeDestination::Stdout
        } else {
            match fs::metadata(out) {
                Ok(metadata) if plan.reads(&metadata) => {
                    return Err(refused(
                        "the output is one of the inputs; name another output, or remove it if an earlier merge wrote it".into(),
                    ));
                }
                Ok(metadata) if metadata.is_dir() => {
                    return Err(refused("the output is a directory; name a file".into()));
                }
                Ok(metadata) if !metadata.is_file() => {
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "the user named the path: a pipe or a device"
                    )]
                    let file = OpenOptions::new().write(true).open(out);
                    MergeDestination::Direct(file.map_err(|e| refused(e.to_string()))?)
                }
                _ => MergeDestination::Named(
                    temporary(out)
                        .map_err(|e| refused(format!("the output file cannot be created: {e}")))?,
                    out.to_owned(),
                ),
            }
        };
        Ok(Self { place, shown })
    }

    /// Writes the next bytes of the merged file, which begin at `offset`. Returns `false` if the
    /// reader of the pipe has closed it.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) -> Result<bool, MergeError> {
        let result = match &mut self.place {
            MergeDestination::Nothing => Ok(()),
            MergeDestination::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(bytes).and_then(|()| stdout.flush())
            }
            MergeDestination::Direct(file) => file.write_all(bytes),
            MergeDestination::Writer(writer) => writer.write_all(bytes),
            MergeDestination::Named(file, _) => file.as_file_mut().write_all(bytes),
        };
        match result {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(e) => Err(failed(&self.shown, &format!("write at byte {offset}"), &e)),
        }
    }

    /// Returns `true` if the caller receives the merged file's bytes while the merge runs.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.place, MergeDestination::Writer(_))
    }

    /// Overwrites bytes of the merged file that were written before. Returns `false` if the
    /// destination is not a file that was created for the merge.
    pub(super) fn rewrite(&self, bytes: &[u8], offset: u64) -> Result<bool, MergeError> {
        let MergeDestination::Named(file, _) = &self.place else {
            return Ok(false);
        };
        file.as_file()
            .write_all_at(bytes, offset)
            .map_err(|e| failed(&self.shown, &format!("write at byte {offset}"), &e))?;
        Ok(true)
    }

    /// Renames the complete merged file to its final path, if it has a temporary name.
    pub(super) fn finish(self) -> Result<(), MergeError> {
        let MergeDestination::Named(file, path) = self.place else {
            return Ok(());
        };
        let failed = |what: &str, e: io::Error| failed(&self.shown, what, &e);
        file.as_file().sync_all().map_err(|e| failed("sync", e))?;
        file.persist(&path).map_err(|e| failed("rename", e.error))?;
        if let Some(folder) = path.parent().filter(|it| !it.as_os_str().is_empty()) {
            sync_folder(folder);
        }
        Ok(())
    }
}

fn failed(shown: &str, what: &str, e: &io::Error) -> MergeError {
    MergeError::Failed(format!("{shown}: cannot {what}: {e}"))
}

/// Returns the metadata of the file to which standard output is redirected. `None`: it is not a
/// regular file, or it is closed.
fn file_at_stdout() -> Option<fs::Metadata> {
    let stdout = io::stdout().as_fd().try_clone_to_owned().ok()?;
    let metadata = File::from(stdout).metadata().ok()?;
    metadata.is_file().then_some(metadata)
}

/// Creates the temporary file of a merge in the folder of its output, so that a rename completes
/// it, with the mode of a new file.
fn temporary(out: &Path) -> io::Result<NamedTempFile> {
    let folder = match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    tempfile::Builder::new()
        .prefix(".wqcap-merge-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
}
