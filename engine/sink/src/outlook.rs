//! Estimate of how long captured files stay on the disk, at the recent rate of finished files.

use super::Retention;
use rustix::fs::statvfs;
use std::{
    path::Path,
    time::{Duration, SystemTime},
};
use wqcap_core::{
    settings::{Keep, Size},
    stats::Outlook,
};
use wqcap_files::folder::CaptureFolder;

/// Time span before the newest capture file whose files determine the write rate.
const LATELY: Duration = Duration::from_secs(3600);
/// Time span within which finished files count as finished together, as those of several queues
/// are.
const MOMENT: Duration = Duration::from_secs(1);

/// Size and time of a finished capture file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FinishedFile {
    /// Time of the last write to the finished file.
    pub(crate) written: SystemTime,
    /// Length of the finished file in bytes.
    pub(crate) len: u64,
}

/// Free space and size of a file system, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskRoom {
    /// Bytes of the file system available to unprivileged users (`f_bavail`).
    pub(crate) free: u64,
    /// Size of the file system in bytes (`f_blocks`).
    pub(crate) size: u64,
}

impl DiskRoom {
    /// Reads the space of the file system that holds `dir`; `None` if statvfs(3) fails.
    pub(crate) fn read(dir: &Path) -> Option<Self> {
        let disk = statvfs(dir).ok()?;
        Some(Self {
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            size: disk.f_blocks.saturating_mul(disk.f_frsize),
        })
    }

    /// Returns the retention limit `keep` in bytes, which may be a share of this file system.
    fn share(self, keep: Keep) -> u64 {
        match keep {
            Keep::Size(Size(n)) => n,
            Keep::Percent(n) => self.size / 100 * u64::from(n),
        }
    }
}

/// Returns the rate in bytes per second at which the last hour's files were written, or `None` if
/// there are too few files.
fn rate(files: &[FinishedFile]) -> Option<f64> {
    let last = files.iter().map(|it| it.written).max()?;
    let since = last.checked_sub(LATELY)?;
    let late = files.iter().filter(|it| it.written >= since);
    let first = late.clone().map(|it| it.written).min()?;
    let time = last.duration_since(first).ok().filter(|it| *it > MOMENT)?;
    // The first files hold frames from before their finish time.
    let after = late.filter(|it| it.written > first + MOMENT);
    let bytes: u64 = after.map(|it| it.len).sum();
    (bytes > 0).then(|| bytes as f64 / time.as_secs_f64())
}

/// Estimates how long capture files stay under the retention limits `keep`, from the finished files
/// and the disk space; `None` if there are too few files.
pub(crate) fn outlook(files: &[FinishedFile], disk: DiskRoom, keep: &Retention) -> Option<Outlook> {
    let bytes_per_s = rate(files)?;
    let own: u64 = files.iter().map(|it| it.len).sum();
    let reach = own.saturating_add(disk.free);
    let holds = |bytes: u64| bytes as f64 / bytes_per_s;
    let mut limits = vec![];
    if keep.keep != Keep::default() {
        limits.push(holds(disk.share(keep.keep)));
    }
    if keep.free != Keep::default() {
        limits.push(holds(reach.saturating_sub(disk.share(keep.free))));
    }
    if keep.files > 0 {
        let each = own as f64 / files.len() as f64;
        limits.push(each * keep.files as f64 / bytes_per_s);
    }
    if keep.age_ns > 0 {
        limits.push(Duration::from_nanos(keep.age_ns).as_secs_f64());
    }
    let limit = limits.into_iter().fold(f64::INFINITY, f64::min);
    // With a limit in bytes, a full disk also deletes the oldest files.
    let measured = keep.keep != Keep::default() || keep.free != Keep::default();
    let (seconds, deletes) = match holds(reach) {
        full if full >= limit => (limit, true),
        full if measured => (full, true),
        _ => (holds(disk.free), false),
    };
    Some(Outlook {
        bytes_per_s,
        seconds,
        deletes,
    })
}

/// Estimates how long capture files stay under the retention limits `keep`, from the present files
/// in `dir` and all its subdirectories.
#[must_use]
pub fn outlook_of_folder(dir: &Path, keep: &Retention) -> Option<Outlook> {
    let folder = CaptureFolder::list(dir).ok()?;
    let files = folder.finished.iter().filter_map(|(path, len)| {
        let written = path.metadata().ok()?.modified().ok()?;
        Some(FinishedFile { written, len: *len })
    });
    let files: Vec<_> = files.collect();
    outlook(&files, DiskRoom::read(dir)?, keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file of `len` bytes, written `seconds` after 1970.
    fn at(seconds: u64, len: u64) -> FinishedFile {
        FinishedFile {
            written: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
            len,
        }
    }

    /// Returns two queues' files of 500 bytes every hundred seconds (10 bytes per second), and one
    /// much older file.
    fn files() -> Vec<FinishedFile> {
        let times = (0..4).flat_map(|i| [at(9000 + i * 100, 500), at(9000 + i * 100, 500)]);
        [at(10, 1 << 40)].into_iter().chain(times).collect()
    }

    #[test]
    fn rate_comes_from_recent_files() {
        assert_eq!(rate(&files()), Some(10.0));
        // Too few files.
        for few in [&[][..], &[at(9000, 500)], &[at(9000, 500), at(9000, 500)]] {
            assert_eq!(rate(few), None);
        }
        assert_eq!(rate(&[at(9000, 500), at(9100, 0)]), None, "no bytes");
    }

    #[test]
    fn the_narrowest_limit_determines_how_long_files_stay() {
        let files: Vec<_> = files().into_iter().skip(1).collect();
        let room = DiskRoom {
            free: 6000,
            size: 100_000,
        };
        let of = |keep: Retention| {
            let it = outlook(&files, room, &keep).expect("an estimate");
            assert_eq!(it.bytes_per_s, 10.0);
            (it.seconds, it.deletes)
        };
        let all = Retention::default;
        assert_eq!(of(all()), (600.0, false), "full, without deletion");
        let keep = Keep::Size(Size(5000));
        assert_eq!(of(Retention { keep, ..all() }), (500.0, true));
        // More bytes than the disk has room for.
        let keep = Keep::Percent(50);
        assert_eq!(of(Retention { keep, ..all() }), (1000.0, true));
        let free = Keep::Percent(1);
        assert_eq!(of(Retention { free, ..all() }), (900.0, true));
        assert_eq!(of(Retention { files: 4, ..all() }), (200.0, true));
        assert_eq!(of(Retention { files: 40, ..all() }), (600.0, false));
        let age_ns = 30_000_000_000;
        assert_eq!(
            of(Retention {
                age_ns,
                keep,
                ..all()
            }),
            (30.0, true)
        );
    }
}
