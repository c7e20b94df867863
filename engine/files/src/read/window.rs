//! A window that slides over a source: the bytes from one record's start on, and where in the file that is.
//!
//! Invariant: memory grows to the longest record asked for and no further, and never before its bytes have come: a
//! false length allocates nothing.

use std::io::{self, ErrorKind, Read};

/// What a window holds, unless a record is longer.
pub(super) const WHOLE_FILE: usize = 256 << 10;
/// The same, when only the beginning of a file is wanted.
pub(super) const BEGINNING: usize = 4096;
/// Bytes read at once, and the least that a window grows by.
const STEP: usize = 64 << 10;

pub(super) struct Window<R> {
    pub(super) source: R,
    bytes: Vec<u8>,
    /// Where the window begins in `bytes`.
    start: usize,
    /// Where what was read ends in `bytes`.
    end: usize,
    /// Where the window begins in the file.
    offset: u64,
    ended: bool,
}

impl<R: Read> Window<R> {
    pub(super) fn new(source: R, capacity: usize) -> Self {
        Self {
            source,
            bytes: vec![0; capacity],
            start: 0,
            end: 0,
            offset: 0,
            ended: false,
        }
    }

    /// What is there, from the window's start on.
    #[inline]
    pub(super) fn held(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Where the window begins in the file.
    #[inline]
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads until `n` bytes are there; `false`: the source has ended before.
    #[inline]
    pub(super) fn want(&mut self, n: usize) -> io::Result<bool> {
        if self.end - self.start >= n {
            return Ok(true);
        }
        self.fill(n)
    }

    #[cold]
    fn fill(&mut self, n: usize) -> io::Result<bool> {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < n {
            if self.end == self.bytes.len() {
                let twice = self.bytes.len().saturating_mul(2);
                let most = n.saturating_add(STEP);
                self.bytes.resize(twice.clamp(STEP, most), 0);
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

    /// Whether the source has said that it has nothing more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Holds so many bytes from now on.
    pub(super) fn grow(&mut self, capacity: usize) {
        self.bytes.resize(capacity, 0);
    }

    /// Moves the window's start on, over bytes that are there.
    #[inline]
    pub(super) fn skip(&mut self, n: usize) {
        let n = n.min(self.end - self.start);
        self.start += n;
        self.offset += n as u64;
    }
}

/// What is in the window first, then the source itself, past the window where that would only copy.
impl<R: Read> Read for Window<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end && out.len() >= self.bytes.len() {
            let n = self.source.read(out)?;
            self.ended |= n == 0 && !out.is_empty();
            self.offset += n as u64;
            return Ok(n);
        }
        self.want(1)?;
        let n = self.held().read(out)?;
        self.skip(n);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a byte at a time, and now and then an interruption.
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
    fn slides_over_a_source_that_drips() {
        let mut window = Window::new(Drops((0..100).collect(), 0), 8);
        assert!(window.want(3).expect("reads"));
        assert_eq!(window.held(), [0, 1, 2]);
        window.skip(2);
        assert!(window.want(50).expect("reads"));
        assert_eq!(window.held(), (2..52).collect::<Vec<u8>>());
        window.skip(50);
        assert_eq!((window.offset(), window.held().len()), (52, 0));
        assert!(!window.want(49).expect("reads"));
        assert_eq!(window.held(), (52..100).collect::<Vec<u8>>());
        window.skip(1000);
        assert_eq!(window.offset(), 100, "no further than what there was");
    }

    #[test]
    fn a_length_that_lies_allocates_nothing() {
        let mut window = Window::new(&[7u8; 10][..], 16);
        assert!(!window.want(1 << 30).expect("reads"));
        assert!(window.bytes.len() <= 16 + STEP);
        assert_eq!(window.held(), [7; 10]);
    }
}
