//! A buffered source that knows how far it has been consumed.

use std::io::{self, ErrorKind, Read};

/// A buffered source.
pub(super) struct Input<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes consumed.
    pub(super) offset: u64,
    /// The source has nothing more.
    pub(super) ended: bool,
}

impl<R: Read> Input<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            buffer: vec![0; 64 << 10],
            start: 0,
            end: 0,
            offset: 0,
            ended: false,
        }
    }

    /// What is there, at least a byte unless the source has ended.
    pub(super) fn fill(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.more(self.buffer.len())?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Reads once, behind what is there, up to `most` bytes of the buffer.
    fn more(&mut self, most: usize) -> io::Result<()> {
        loop {
            match self.source.read(&mut self.buffer[self.end..most]) {
                Ok(n) => {
                    self.ended |= n == 0;
                    self.end += n;
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    pub(super) fn consume(&mut self, n: usize) {
        self.start += n;
        self.offset += n as u64;
    }

    /// The next four bytes, which stay; `None`: there are not so many.
    pub(super) fn magic(&mut self) -> io::Result<Option<u32>> {
        if self.end - self.start < 4 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            while self.end < 4 && !self.ended {
                self.more(4)?;
            }
        }
        Ok(self.buffer[self.start..self.end]
            .first_chunk()
            .map(|magic| u32::from_le_bytes(*magic)))
    }

    /// Some bytes, without filling the buffer.
    pub(super) fn read_through(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end {
            return self.source.read(out);
        }
        self.read(out)
    }

    pub(super) fn is_at_end(&mut self) -> io::Result<bool> {
        Ok(self.fill()?.is_empty())
    }

    /// Skips a frame that says how long it is; `false`: it ends before that.
    pub(super) fn skip_frame(&mut self) -> io::Result<bool> {
        let mut head = [0; 8];
        match self.read_exact(&mut head) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            other => other?,
        }
        let [_, _, _, _, a, b, c, d] = head;
        let len = u64::from(u32::from_le_bytes([a, b, c, d]));
        let skipped = io::copy(&mut self.by_ref().take(len), &mut io::sink())?;
        Ok(skipped == len)
    }
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill()?;
        let n = bytes.len().min(out.len());
        out[..n].copy_from_slice(&bytes[..n]);
        self.consume(n);
        Ok(n)
    }
}
