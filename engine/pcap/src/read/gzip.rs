//! Decoder of gzip members.
//!
//! Source: RFC 1952. A member is a header, deflate data, the CRC-32 of the content, and the
//! content's length modulo 2^32.
//!
//! Invariant: exactly the bytes of the member are taken from the window.

use super::window::Window;
use crate::format::ByteOrder;
use flate2::{Crc, Decompress, FlushDecompress, Status};
use std::io::{self, Read};

/// Length in bytes of the fixed part of a gzip member's header.
const HEADER: usize = 10;
/// Length in bytes of a gzip member's trailer: CRC-32 and length.
const TRAILER: usize = 8;
/// Flag in the fourth byte of a gzip header: a checksum of the header follows it.
const FHCRC: u8 = 2;
/// Flag in the fourth byte of a gzip header: extra fields follow it.
const FEXTRA: u8 = 4;
/// Flag in the fourth byte of a gzip header: a file name follows it, ended by a zero.
const FNAME: u8 = 8;
/// Flag in the fourth byte of a gzip header: a comment follows it, ended by a zero.
const FCOMMENT: u8 = 16;

/// Decoder of the current gzip member of a file.
pub(super) struct GzipMember {
    inflate: Decompress,
    /// CRC-32 and length of the gzip member's content so far.
    sum: Crc,
    part: MemberPart,
}

/// Part of a gzip member that is decoded next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberPart {
    /// Deflate data (the compressed content), which is decoded next.
    Data,
    /// Checksum and length after the deflate data, which are checked next.
    Trailer,
    /// End of the gzip member: all parts have been decoded.
    Ended,
}

impl GzipMember {
    pub(super) fn new() -> Self {
        Self {
            inflate: Decompress::new(false),
            sum: Crc::new(),
            part: MemberPart::Ended,
        }
    }

    /// Returns `true` if the whole gzip member has been decoded.
    pub(super) fn has_ended(&self) -> bool {
        self.part == MemberPart::Ended
    }

    /// Starts with the gzip member at the start of the window: skips its header. Returns `false` if
    /// the file ends before.
    pub(super) fn begin(&mut self, input: &mut Window<impl Read>) -> io::Result<bool> {
        self.inflate.reset(false);
        self.sum.reset();
        self.part = MemberPart::Data;
        if !input.ensure(HEADER)? {
            return Ok(false);
        }
        let flags = input.held()[3];
        input.skip(HEADER);
        if flags & FEXTRA != 0 {
            if !input.ensure(2)? {
                return Ok(false);
            }
            let len = usize::from(ByteOrder::Little.u16(input.held(), 0));
            if !input.ensure(2 + len)? {
                return Ok(false);
            }
            input.skip(2 + len);
        }
        for text in [FNAME, FCOMMENT] {
            if flags & text != 0 && !skip_text(input)? {
                return Ok(false);
            }
        }
        if flags & FHCRC != 0 {
            if !input.ensure(2)? {
                return Ok(false);
            }
            input.skip(2);
        }
        Ok(true)
    }

    /// Decompresses bytes of the gzip member into `out`, which is not empty. Returns 0 at the end of
    /// the member.
    pub(super) fn read(
        &mut self,
        input: &mut Window<impl Read>,
        out: &mut [u8],
    ) -> io::Result<usize> {
        if self.part == MemberPart::Trailer {
            return self.check(input).map(|()| 0);
        }
        loop {
            // At the end of the file, the decoder may still have output.
            let more = input.ensure(1)?;
            let (taken, made) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self
                .inflate
                .decompress(input.held(), out, FlushDecompress::None)
                .map_err(io::Error::other)?;
            // Both are at most the lengths of the buffers.
            let taken = (self.inflate.total_in() - taken) as usize;
            let got = (self.inflate.total_out() - made) as usize;
            input.skip(taken);
            self.sum.update(&out[..got]);
            if status == Status::StreamEnd {
                self.part = MemberPart::Trailer;
                // The content is returned before an error of the trailer.
                return match got {
                    0 => self.check(input).map(|()| 0),
                    got => Ok(got),
                };
            }
            if got > 0 {
                return Ok(got);
            }
            if !more {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Checks the trailer of the gzip member (checksum and length), which ends the member.
    fn check(&mut self, input: &mut Window<impl Read>) -> io::Result<()> {
        if !input.ensure(TRAILER)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let word = |at| ByteOrder::Little.u32(input.held(), at);
        if [word(0), word(4)] != [self.sum.sum(), self.sum.amount()] {
            return Err(io::Error::other("the checksum of the content is wrong"));
        }
        input.skip(TRAILER);
        self.part = MemberPart::Ended;
        Ok(())
    }
}

/// Skips a text in a gzip header, which ends with a zero. Returns `false` if the file ends before.
fn skip_text(input: &mut Window<impl Read>) -> io::Result<bool> {
    while input.ensure(1)? {
        let end = input.held().iter().position(|byte| *byte == 0);
        input.skip(end.map_or(input.held().len(), |end| end + 1));
        if end.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
