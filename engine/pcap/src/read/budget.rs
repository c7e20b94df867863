//! Memory of open capture files, and the budget of the process for it.
//!
//! A file of a few kilobytes may request a decompression window of 128 MiB, or have a compressed
//! record of 16 MiB, so that a directory of such files would exhaust the memory of a command that
//! has them open together.

use std::{
    fmt,
    io::{self, ErrorKind},
    sync::atomic::{AtomicU64, Ordering},
};

/// Maximum number of bytes that the contents of all open files may request together.
const MOST: u64 = 512 << 20;
/// Part of [`MOST`] that only requests of at most [`LARGE`] bytes may use: a few files with large
/// requests must not keep the files of other origin from being read.
const RESERVE: u64 = 96 << 20;
/// Number of bytes above which a request of a file is large.
const LARGE: u64 = 8 << 20;
/// Maximum number of bytes that the usual buffers of all open files have together. Files beyond have
/// small buffers.
const MOST_BUFFERS: u64 = 256 << 20;
/// Size in bytes of a small buffer.
const SMALL_BUFFER: usize = 16 << 10;

/// Number of bytes that the contents of all open files have requested.
static REQUESTED: AtomicU64 = AtomicU64::new(0);
/// Number of bytes that the usual buffers of all open files have.
static BUFFERS: AtomicU64 = AtomicU64::new(0);

/// Memory of one open file for one purpose, as part of a budget of the process; returned when it is
/// dropped.
pub(super) struct FileMemory {
    /// Number of bytes in use of the budget.
    in_use: &'static AtomicU64,
    /// Number of bytes of this file.
    bytes: u64,
}

impl Default for FileMemory {
    fn default() -> Self {
        Self {
            in_use: &REQUESTED,
            bytes: 0,
        }
    }
}

/// Purpose of the memory of an open file.
#[derive(Clone, Copy, Debug)]
pub(super) enum MemoryUse {
    /// Window or blocks of the decoder of a compressed file.
    Decompression,
    /// The current record of the file.
    Record,
    /// Interfaces and comments that the file describes.
    Descriptions,
}

/// Error that an open file would exceed the budget of the process.
#[derive(Debug)]
pub(super) struct MemoryExhausted {
    /// Purpose for which the budget does not suffice.
    purpose: MemoryUse,
    /// Number of bytes that the file needs for this purpose.
    bytes: u64,
}

impl fmt::Display for MemoryExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let (what, remedy) = match self.purpose {
            MemoryUse::Decompression => (
                "decompression needs",
                "read fewer files at a time, or decompress them first",
            ),
            MemoryUse::Record => ("the record needs", "read fewer files at a time"),
            MemoryUse::Descriptions => {
                ("interfaces and comments need", "read fewer files at a time")
            }
        };
        write!(
            f,
            "{what} {} MiB of memory, and all files that are open together may have {} MiB; {remedy}",
            mib(self.bytes),
            mib(MOST)
        )
    }
}

impl std::error::Error for MemoryExhausted {}

impl From<MemoryExhausted> for io::Error {
    fn from(e: MemoryExhausted) -> Self {
        Self::new(ErrorKind::OutOfMemory, e)
    }
}

impl FileMemory {
    /// Takes the memory for a buffer of `wanted` bytes. Returns it with the size that the buffer may
    /// have: a small one if the budget for buffers is used up. A command can thereby open any number
    /// of files.
    pub(super) fn of_buffer(wanted: usize) -> (Self, usize) {
        let mut memory = Self {
            in_use: &BUFFERS,
            bytes: 0,
        };
        let size = match memory.reserve(wanted as u64, MOST_BUFFERS) {
            true => wanted,
            false => wanted.min(SMALL_BUFFER),
        };
        (memory, size)
    }

    /// Adds memory for a request of the file, so that it has at least `bytes` for this purpose.
    ///
    /// # Errors
    /// The process has no budget for it.
    pub(super) fn grow(&mut self, purpose: MemoryUse, bytes: u64) -> Result<(), MemoryExhausted> {
        let most = if bytes > LARGE { MOST - RESERVE } else { MOST };
        match self.reserve(bytes.saturating_sub(self.bytes), most) {
            true => Ok(()),
            false => Err(MemoryExhausted { purpose, bytes }),
        }
    }

    /// Adds `more` bytes if those in use stay at most `most`.
    fn reserve(&mut self, more: u64, most: u64) -> bool {
        let add = |now: u64| now.checked_add(more).filter(|it| *it <= most);
        let added = self
            .in_use
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        self.bytes += if added.is_ok() { more } else { 0 };
        added.is_ok()
    }

    /// Returns all memory to the budget.
    pub(super) fn clear(&mut self) {
        self.in_use.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
    }
}

impl Drop for FileMemory {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the number of bytes that a zstd frame with this header requests for its window (RFC
/// 8878, 3.1.1.1); 0 if the header is incomplete.
pub(super) fn zstd_window(header: &[u8]) -> u64 {
    /// Flag of a frame without a window descriptor: the window is as long as the content.
    const SINGLE_SEGMENT: u8 = 1 << 5;
    let window = || {
        let descriptor = *header.get(4)?;
        if descriptor & SINGLE_SEGMENT == 0 {
            let window = *header.get(5)?;
            let base = 1u64 << (10 + u32::from(window >> 3));
            return Some(base + base / 8 * u64::from(window & 7));
        }
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let len = [1, 2, 4, 8][usize::from(descriptor >> 6)];
        let field = header.get(5 + dictionary..5 + dictionary + len)?;
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(field);
        let content = u64::from_le_bytes(bytes);
        Some(if len == 2 { content + 256 } else { content })
    };
    window().unwrap_or(0)
}

/// Returns the number of bytes that an LZ4 frame with this header requests for its blocks: one
/// compressed, and one or two decompressed ones (LZ4 frame format 1.6.4, "Frame Descriptor"); 0 if
/// the header is incomplete.
pub(super) fn lz4_blocks(header: &[u8]) -> u64 {
    /// Flag of a frame whose blocks do not refer to earlier ones.
    const INDEPENDENT: u8 = 1 << 5;
    let blocks = || {
        let (flags, descriptor) = (*header.get(4)?, *header.get(5)?);
        // The codes 4 to 7 are 64 KiB to 4 MiB.
        let block = 1u64 << (8 + 2 * u32::from(descriptor >> 4 & 7));
        Some(if flags & INDEPENDENT == 0 { 3 } else { 2 } * block)
    };
    blocks().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_state_the_memory_of_their_frames() {
        let zstd = |rest: &[u8]| zstd_window(&[&[0x28, 0xb5, 0x2f, 0xfd], rest].concat());
        assert_eq!(zstd(&[0, 17 << 3]), 128 << 20);
        assert_eq!(zstd(&[0, 1]), 1024 + 128);
        assert_eq!(zstd(&[0x20, 77]), 77);
        assert_eq!(zstd(&[0x60 | 1, 9, 0, 1]), 512);
        assert_eq!(zstd(&[0xe0, 0, 0, 0, 8, 0, 0, 0, 0]), 128 << 20);
        assert_eq!((zstd(&[]), zstd(&[0]), zstd(&[0xe0, 0])), (0, 0, 0));
        assert_eq!(zstd(&[0, 0xff]), (1 << 41) + (1 << 38) * 7);
        let lz4 = |rest: &[u8]| lz4_blocks(&[&[4, 0x22, 0x4d, 0x18], rest].concat());
        assert_eq!(lz4(&[0x60, 0x70]), 8 << 20);
        assert_eq!(lz4(&[0x40, 0x40]), 3 * (64 << 10));
        assert_eq!(lz4(&[0x40]), 0);
    }

    #[test]
    fn the_budgets_are_those_of_all_files() {
        let mut files: [FileMemory; 3] = Default::default();
        let [one, two, three] = &mut files;
        let purpose = MemoryUse::Decompression;
        assert!(one.grow(purpose, MOST / 2).is_ok() && one.grow(purpose, 5).is_ok());
        assert!(two.grow(purpose, MOST / 4).is_ok());
        assert!(three.grow(purpose, LARGE * 10).is_err());
        assert!(three.grow(purpose, LARGE).is_ok());
        let refused = three.grow(purpose, MOST / 2).expect_err("no budget");
        assert!(refused.to_string().contains("needs 256 MiB"), "{refused}");
        two.clear();
        assert!(three.grow(purpose, MOST / 4).is_ok());

        let most = usize::try_from(MOST_BUFFERS).expect("small");
        let (large, size) = FileMemory::of_buffer(most * 3 / 4);
        assert_eq!(size, most * 3 / 4);
        assert_eq!(FileMemory::of_buffer(most / 2).1, SMALL_BUFFER);
        assert_eq!(FileMemory::of_buffer(100).1, 100);
        drop(large);
        assert_eq!(FileMemory::of_buffer(most / 2).1, most / 2);
    }
}
