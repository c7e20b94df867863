//! Decompression of capture files: zstd and LZ4, as sequences of compressed frames (RFC 8878, LZ4
//! frame format 1.6.4).
//!
//! Invariant: the content of a damaged or incomplete file before the damage is played, with a note.

use lz4_flex::frame::FrameDecoder;
use std::io::{self, Read};
use zstd_safe::{DCtx, InBuffer, OutBuffer};

const LZ4: u32 = 0x184d_2204;
const ZSTD: u32 = 0xfd2f_b528;
/// First magic number of skippable zstd and LZ4 frames. There are sixteen, which differ in their
/// last four bits.
const SKIPPABLE: u32 = 0x184d_2a50;
/// Size in bytes of the buffer for decompressed data of a capture file.
const PIECE: usize = 1 << 20;

/// Decompresses a capture file. Returns its content, and a note if the content ends early. `None`
/// if the file is not compressed.
pub(super) fn unpack(data: &[u8]) -> Option<(Vec<u8>, Option<String>)> {
    if !matches!(magic(data), Some(LZ4 | ZSTD)) {
        return None;
    }
    let (mut out, mut rest) = (Vec::new(), data);
    while !rest.is_empty() {
        let at = data.len() - rest.len();
        let unpacked = match magic(rest) {
            Some(LZ4) => lz4(&mut rest, &mut out),
            Some(ZSTD) => zstd(&mut rest, &mut out),
            Some(other) if other & !0xf == SKIPPABLE => skip(&mut rest),
            _ => Err(io::Error::other(
                "the data is neither a zstd nor an LZ4 frame",
            )),
        };
        if let Err(e) = unpacked {
            let note = format!(
                "cannot decompress the file from byte {at} on: {e}; the rest of the file is left out"
            );
            return Some((out, Some(note)));
        }
    }
    Some((out, None))
}

fn magic(data: &[u8]) -> Option<u32> {
    data.first_chunk().map(|it| u32::from_le_bytes(*it))
}

fn torn() -> io::Error {
    io::Error::other("the file ends within the zstd or LZ4 frame")
}

/// Skips one skippable zstd or LZ4 frame.
fn skip(rest: &mut &[u8]) -> io::Result<()> {
    let len = rest.get(4..).and_then(magic).ok_or_else(torn)?;
    let len = usize::try_from(len).map_err(io::Error::other)?;
    *rest = rest.get(8 + len..).ok_or_else(torn)?;
    Ok(())
}

/// Decompresses one LZ4 frame.
fn lz4(rest: &mut &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut decoder = FrameDecoder::new(&mut *rest);
    decoder.read_to_end(out)?;
    Ok(())
}

/// Decompresses one zstd frame.
fn zstd(rest: &mut &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut context = DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
    let mut piece = vec![0; PIECE];
    loop {
        let mut from = InBuffer::around(rest);
        let mut to = OutBuffer::around(&mut piece[..]);
        let left = context
            .decompress_stream(&mut to, &mut from)
            .map_err(|e| io::Error::other(zstd_safe::get_error_name(e)))?;
        let (taken, got) = (from.pos(), to.pos());
        out.extend_from_slice(&piece[..got]);
        *rest = &rest[taken..];
        if left == 0 {
            return Ok(());
        }
        if taken == 0 && got == 0 {
            return Err(torn());
        }
    }
}
