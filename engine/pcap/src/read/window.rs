//! Sliding window of a reader over a capture file: the bytes from the start of a record on, and
//! their offset in the file.
//!
//! Invariant: memory grows at most to the longest requested record, and only as its bytes arrive. A
//! false length field therefore allocates no memory. The memory is part of the budget of all open
//! files, and is returned after a long record.

use super::budget::{FileMemory, MemoryUse};
use std::io::{self, ErrorKind, Read};

/// Initial capacity in bytes of a reader's window for a whole file.
pub const WHOLE_FILE: usize = 256 << 10;
/// Initial capacity in bytes of a reader's window for only the beginning of a file.
pub const BEGINNING: usize = 4096;
/// Minimum number of bytes by which a reader's window grows.
const STEP: usize = 64 << 10;
/// Size in bytes of a window's buffer above which its memory is returned after a long record.
const LONG: usize = 1 << 20;

/// Sliding window of buffered bytes over the source of a file.
pub(super) struct Window<R> {
    /// Source of the window's bytes.
    pub(super) source: R,
    /// Buffer with bytes read from the source. The window is a part of it.
    bytes: Vec<u8>,
    /// Offset in the buffer `bytes` at which the window starts.
    start: usize,
    /// Offset in the buffer `bytes` at which the bytes read from the source end.
    end: usize,
    /// Offset in the file at which the window starts.
    offset: u64,
    /// `true` if the window's source has returned end of file.
    ended: bool,
    /// Size in bytes of the buffer for records of usual length.
    usual: usize,
    /// Memory of the buffer for records of usual length.
    buffer: FileMemory,
    /// Memory of the buffer for a long record.
    memory: FileMemory,
}

impl<R: Read> Window<R> {
    pub(super) fn new(source: R, capacity: usize) -> Self {
        let (buffer, capacity) = FileMemory::of_buffer(capacity);
        Self {
            source,
            bytes: vec![0; capacity],
            start: 0,
            end: 0,
            offset: 0,
            ended: false,
            usual: capacity,
            buffer,
            memory: FileMemory::default(),
        }
    }

    /// Returns the buffered bytes that are in the window.
    #[inline]
    pub(super) fn held(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns the size in bytes of the window's buffer for records of usual length.
    #[inline]
    pub(super) fn usual(&self) -> usize {
        self.usual
    }

    /// Returns the offset of the window's start in the file.
    #[inline]
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads until the window has `n` bytes. Returns `false` if the source ends before.
    #[inline]
    pub(super) fn ensure(&mut self, n: usize) -> io::Result<bool> {
        if self.end - self.start >= n {
            return Ok(true);
        }
        self.fill(n)
    }

    /// Moves the window to the beginning of the buffer.
    fn compact(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }

    /// Returns the memory of a long record, which precedes the window, to the budget.
    #[cold]
    pub(super) fn shrink(&mut self) {
        if self.bytes.len() > LONG && self.end - self.start <= self.usual {
            self.compact();
            self.bytes.truncate(self.usual);
            self.bytes.shrink_to_fit();
            self.memory.clear();
        }
    }

    #[cold]
    fn fill(&mut self, n: usize) -> io::Result<bool> {
        if n <= self.usual {
            self.shrink();
        }
        self.compact();
        while self.end < n {
            if self.end == self.bytes.len() {
                let twice = self.bytes.len().saturating_mul(2);
                let size = twice.clamp(STEP, n.saturating_add(STEP));
                self.memory.grow(MemoryUse::Record, size as u64)?;
                self.bytes.resize(size, 0);
            }
            match self.source.read(&mut self.bytes[self.end..]) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(false);
                }
                Ok(got) => self.end += got,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Skips zeros from the start of the window on. Returns `true` if only zeros follow up to the
    /// end of the source.
    pub(super) fn skip_zeros(&mut self) -> io::Result<bool> {
        while self.ensure(1)? {
            let zeros = self.held().iter().take_while(|byte| **byte == 0).count();
            if zeros == 0 {
                return Ok(false);
            }
            self.skip(zeros);
        }
        Ok(true)
    }

    /// Returns `true` if the window's source has returned end of file.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Sets the size of the window's buffer to `capacity` bytes, or to a small one if the budget
    /// of all open files is used up.
    pub(super) fn grow(&mut self, capacity: usize) {
        (self.buffer, self.usual) = FileMemory::of_buffer(capacity);
        self.bytes.resize(self.usual, 0);
    }

    /// Moves the start of the window forward by `n` bytes, at most to the end of the window.
    #[inline]
    pub(super) fn skip(&mut self, n: usize) {
        let n = n.min(self.end - self.start);
        self.start += n;
        self.offset += n as u64;
    }
}

/// Reads the bytes in the window first, then the source. Large reads bypass the window to avoid a
/// copy.
impl<R: Read> Read for Window<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end && out.len() >= self.bytes.len() {
            let n = self.source.read(out)?;
            self.ended |= n == 0 && !out.is_empty();
            self.offset += n as u64;
            return Ok(n);
        }
        self.ensure(1)?;
        let n = self.held().read(out)?;
        self.skip(n);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source of bytes that returns one byte per read, and the error `Interrupted` for every third
    /// read.
    struct Drops(Vec<u8>, usize);

    impl Read for Drops {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.1 += 1;
            if self.1.is_multiple_of(3) {
                return Err(ErrorKind::Interrupted.into());
            }
            (&self.0[..1.min(self.0.len())]).read(into).inspect(|n| {
                self.0.drain(..n);
            })
        }
    }

    #[test]
    fn slides_over_a_source_of_single_bytes() {
        let mut window = Window::new(Drops((0..100).collect(), 0), 8);
        assert!(window.ensure(3).expect("reads"));
        assert_eq!(window.held(), [0, 1, 2]);
        window.skip(2);
        assert!(window.ensure(50).expect("reads"));
        assert_eq!(window.held(), (2..52).collect::<Vec<u8>>());
        window.skip(50);
        assert_eq!((window.offset(), window.held().len()), (52, 0));
        assert!(!window.ensure(49).expect("reads"));
        assert_eq!(window.held(), (52..100).collect::<Vec<u8>>());
        window.skip(1000);
        assert_eq!(window.offset(), 100, "skip stops at the end of the source");
    }

    #[test]
    fn a_false_length_allocates_no_memory() {
        let mut window = Window::new(&[7u8; 10][..], 16);
        assert!(!window.ensure(1 << 30).expect("reads"));
        assert!(window.bytes.len() <= 16 + STEP);
        assert_eq!(window.held(), [7; 10]);
    }
}
