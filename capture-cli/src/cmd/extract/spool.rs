//! Temporary files for the answers of sensors, which a sensor cannot use to fill a disk.
//!
//! Invariants: the files have no names, so that none outlives the process. Answers and output leave
//! a reserve of the disk free.

use crate::failure::Failure;
use rustix::fs::statvfs;
use std::{
    env,
    fs::{self, File},
    io::{self, ErrorKind, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};
use wqcap_engine::files::read::{FileRanges, RemoteContent, is_capture_start};

/// Maximum number of bytes of a file system that the answers of sensors and the output leave free.
const MOST_RESERVE: u64 = 1 << 30;

/// Directory for temporary files.
pub(super) struct SpoolFolder {
    path: PathBuf,
    /// `true` if the output is written to the same directory.
    pub(super) holds_output: bool,
}

impl SpoolFolder {
    /// Selects the directory for temporary files: that of the output `out`, unless the output is a
    /// pipe or a device, whose directory may be in memory.
    pub(super) fn for_output(out: &Path) -> Self {
        let is_file = || fs::metadata(out).map_or(true, |it| it.is_file());
        let holds_output = out.as_os_str() != "-" && is_file();
        // hier(7): /tmp may be in memory, and /var/tmp is not.
        let on_disk = Path::new("/var/tmp");
        let path = match (holds_output, env::var_os("TMPDIR")) {
            (true, _) => match out.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
                _ => PathBuf::from("."),
            },
            (false, None) if on_disk.is_dir() => on_disk.to_owned(),
            (false, _) => env::temp_dir(),
        };
        Self { path, holds_output }
    }

    fn unusable(&self, e: &io::Error) -> Failure {
        let shown = self.path.display();
        Failure::of_setup(
            format_args!("{shown}: cannot create a temporary file: {e}"),
            e,
        )
    }

    /// Creates an empty file without a name.
    pub(super) fn new_file(&self) -> Result<File, Failure> {
        tempfile::tempfile_in(&self.path).map_err(|e| self.unusable(&e))
    }

    /// Returns the number of free bytes of the file system, without the reserve for other programs.
    pub(super) fn room(&self) -> Result<u64, Failure> {
        let disk = statvfs(&self.path).map_err(|e| self.unusable(&e.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let size = disk.f_blocks.saturating_mul(disk.f_frsize);
        Ok(free.saturating_sub((size / 20).min(MOST_RESERVE)))
    }
}

/// Answer of a sensor in a temporary file without a name.
#[derive(Debug)]
struct SpooledAnswer {
    /// URL of the sensor, which names the answer in messages.
    url: String,
    /// Temporary file with the answer from its first byte on.
    file: Arc<File>,
}

/// Returns the answer of the sensor at `url`, the first `len` bytes of `file`, as an input of a
/// merge. Its ports are those of the sensor.
pub(super) fn spooled_answer(url: &str, file: File, len: u64) -> FileRanges {
    let answer = SpooledAnswer {
        url: url.to_owned(),
        file: Arc::new(file),
    };
    let all = std::iter::once(0..len).collect();
    FileRanges::from_remote(Path::new(url), "answer", all, Arc::new(answer))
}

impl RemoteContent for SpooledAnswer {
    fn name(&self) -> String {
        self.url.clone()
    }

    fn read(&self, _: bool) -> io::Result<Box<dyn Read + Send>> {
        let mut start = [0; 4];
        let len = self.file.read_at(&mut start, 0)?;
        // A service sends no compressed file, whose frames could fill the disk.
        if !is_capture_start(&start[..len]) {
            let problem = "the answer is neither pcapng nor pcap";
            return Err(io::Error::new(ErrorKind::InvalidData, problem));
        }
        Ok(Box::new(SpoolReader {
            file: Arc::clone(&self.file),
            at: 0,
        }))
    }
}

/// Reader of a temporary file that several readers share. Each reader keeps its position.
struct SpoolReader {
    /// Temporary file with the answer of a sensor.
    file: Arc<File>,
    /// Offset in the file of the next byte to read.
    at: u64,
}

impl Read for SpoolReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(into, self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}
