//! Memory that the headers of compressed frames request, and the budget of the process for it.
//!
//! A file of a few kilobytes may request a window of 128 MiB, so that a directory of such files
//! would exhaust the memory of a command that has them open together.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// Maximum number of bytes that all open decoders of the process request together.
const MOST: u64 = 512 << 20;

/// Number of bytes that all open decoders of the process request.
static REQUESTED: AtomicU64 = AtomicU64::new(0);

/// Memory of one decoder, as part of the budget of the process; returned when it is dropped.
#[derive(Default)]
pub(super) struct DecoderMemory(u64);

/// Error that a decoder would exceed the budget of the process.
#[derive(Debug)]
pub(super) struct MemoryExhausted(u64);

impl fmt::Display for MemoryExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        write!(
            f,
            "decompression needs {} MiB of memory, and all files that are open together may have {} MiB; decompress the file \
             first",
            mib(self.0),
            mib(MOST)
        )
    }
}

impl DecoderMemory {
    /// Adds memory, so that the decoder has at least `bytes`. A decoder keeps the memory of its
    /// largest frame.
    ///
    /// # Errors
    /// The process has no budget for it.
    pub(super) fn grow(&mut self, bytes: u64) -> Result<(), MemoryExhausted> {
        let more = bytes.saturating_sub(self.0);
        let add = |now: u64| now.checked_add(more).filter(|it| *it <= MOST);
        let added = REQUESTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map_err(|_| MemoryExhausted(bytes))?;
        self.0 += more;
        Ok(())
    }
}

impl Drop for DecoderMemory {
    fn drop(&mut self) {
        REQUESTED.fetch_sub(self.0, Ordering::Relaxed);
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
    fn the_budget_is_that_of_all_decoders() {
        let mut decoders: [DecoderMemory; 3] = Default::default();
        let [one, two, three] = &mut decoders;
        assert!(one.grow(MOST / 2).is_ok() && one.grow(5).is_ok());
        assert!(two.grow(MOST / 4).is_ok());
        let refused = three.grow(MOST / 2).expect_err("no budget").to_string();
        assert!(refused.contains("needs 256 MiB"), "{refused}");
        *two = DecoderMemory::default();
        assert!(three.grow(MOST / 3).is_ok());
    }
}
