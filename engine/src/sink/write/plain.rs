//! The least that a writer can do: what the block writer is measured against.

use crate::memory::Region;
use crate::sink::{
    block::{ALIGN, Block},
    write::disk::{DEPTH, Disk, Pool, Write},
};
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};
use std::{
    fs::OpenOptions,
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::{Duration, Instant},
};

/// Bytes of a write, as many as the block writer's.
const WRITE: usize = 1 << 20;

/// Writes `bytes`, rounded up to whole writes, into a new file: io_uring and O_DIRECT where they are to be had, as many
/// writes under way as the block writer has, always of the same memory, and a sync at the end. `allocated`: into a file
/// that has its whole length before. Gives the bytes and the time it took, and whether the writes were direct.
///
/// # Errors
/// The file is there already or cannot be written, or there is no memory.
pub fn write_plainly(
    path: &Path,
    bytes: u64,
    allocated: bool,
) -> io::Result<(u64, Duration, bool)> {
    let open = |flags| {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .custom_flags(flags)
            .open(path)
    };
    let (file, direct) = match open(libc::O_DIRECT) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            let _ = std::fs::remove_file(path);
            (open(0)?, false)
        }
        other => (other?, true),
    };
    let memory = Region::allocate(WRITE.next_multiple_of(ALIGN), None)
        .map_err(|e| io::Error::other(e.to_string()))?;
    let mut block = Block::new(memory);
    let mut pool = Pool::default();
    pool.join(&mut block);
    let mut disk = Disk::open(&pool, None);
    let place = disk.meet(&file);
    let writes = bytes.div_ceil(WRITE as u64);
    if allocated {
        match fallocate(&file, FallocateFlags::empty(), 0, writes * WRITE as u64) {
            // Where that is unknown, writes find room in another way.
            Err(Errno::OPNOTSUPP) => {}
            other => other?,
        }
    }
    let (mut begun, mut ended) = (0, 0);
    let mut problem = None;
    let start = Instant::now();
    while ended < begun || (begun < writes && problem.is_none()) {
        while begun < writes && begun - ended < u64::from(DEPTH) && problem.is_none() {
            #[allow(unsafe_code)]
            // SAFETY: memory and file outlive this loop, which ends when no write is under way, and nobody writes to
            // the memory.
            unsafe {
                disk.submit(Write {
                    token: 0,
                    file: &file,
                    place,
                    offset: begun * WRITE as u64,
                    bytes: block.memory.as_slice(WRITE),
                    extent: block.extent,
                });
            }
            begun += 1;
        }
        disk.reap(|done| {
            ended += 1;
            match done.result {
                Ok(WRITE) => {}
                Ok(n) => {
                    problem = Some(io::Error::other(format!(
                        "a write of {WRITE} bytes wrote {n}"
                    )))
                }
                Err(e) => problem = Some(e),
            }
        });
    }
    if let Some(e) = problem {
        return Err(e);
    }
    file.sync_all()?;
    Ok((writes * WRITE as u64, start.elapsed(), direct))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_bytes_as_asked_for() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("plain");
        for allocated in [false, true] {
            let (bytes, _, _) = write_plainly(&path, (40 << 20) - 1, allocated).expect("writes");
            assert_eq!(bytes, 40 << 20);
            assert_eq!(std::fs::metadata(&path).expect("there").len(), bytes);
            let again = write_plainly(&path, 1, allocated);
            assert!(again.is_err(), "nothing is overwritten");
            std::fs::remove_file(&path).expect("there");
        }
        assert!(write_plainly(&dir.path().join("no/plain"), 1, false).is_err());
    }
}
