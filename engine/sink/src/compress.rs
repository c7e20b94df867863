//! Compression of blocks on cores without a queue: each block becomes a separate compressed frame.
//!
//! ```text
//! sink -> full blocks -> packer threads -> packed blocks -> writer, which restores their order
//! ```
//!
//! A block holds whole records, and its compressed frame has its own checksums. A file is a sequence
//! of frames that any zstd or LZ4 tool can read. A truncated file is cut behind its last whole frame
//! without decompressing it. Each frame is padded to a whole sector with a skippable frame, which both
//! zstd and LZ4 define, so that the next frame begins where direct I/O can write it.
//!
//! Invariant: a packer takes memory for the result before it takes a block. The earliest block of each
//! queue is therefore always being processed, and blocks that wait for it cannot hold the memory that
//! it needs.

use crate::block::{ALIGN, Block, Full};
use crossbeam_channel::{Receiver, Sender};
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use std::{
    io::{self, Write},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use wqcap_core::{error::ResourceError, settings::Compress, sync::thread::spawn};
use wqcap_memory::Region;
use zstd_safe::{CCtx, CParameter};

/// Compression level of `zstd` configured without a level: zstd's own default.
const DEFAULT_LEVEL: u8 = 3;
/// Magic number that begins a skippable frame in the zstd and LZ4 formats.
const SKIPPABLE: u32 = 0x184d_2a50;
/// Length in bytes of a skippable zstd or LZ4 frame's header: magic number and length.
const SKIPPABLE_HEAD: usize = 8;

/// Returns the maximum compressed size of a write block of `len` bytes, including the padding. Both
/// formats store incompressible data at a cost of a few bytes for each of their blocks.
fn max_packed_len(len: usize) -> usize {
    (len + len / 64 + 1024).next_multiple_of(ALIGN) + ALIGN
}

/// Failure to compress a write block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompressError {
    /// No compression is possible, because the configured compression is `none`.
    #[error("a write block cannot be compressed, because output.compression is \"none\"")]
    NotRequested,
    /// The compressor cannot be created.
    #[error(transparent)]
    Create(#[from] ResourceError),
    /// The zstd library refuses the block, with the name of its error.
    #[error("{0}")]
    Zstd(&'static str),
    /// The LZ4 encoder fails.
    #[error(transparent)]
    Lz4(io::Error),
    /// The memory for the compressed data is too short for the named part.
    #[error("no room {0}")]
    NoRoom(&'static str),
}

/// Compressor of one write block at a time, which reuses its memory.
enum Packer {
    Zstd(CCtx<'static>),
    Lz4(Box<FrameEncoder<Vec<u8>>>),
}

impl Packer {
    fn new(compress: Compress) -> Result<Option<Self>, ResourceError> {
        Ok(match compress {
            Compress::None => None,
            Compress::Zstd(level) => {
                let refused = |what: &str| ResourceError::System {
                    what: format!("zstd: {what}"),
                    source: io::ErrorKind::OutOfMemory.into(),
                };
                let mut context = CCtx::try_create()
                    .ok_or_else(|| refused("cannot create a compression context"))?;
                let level = i32::from(level.unwrap_or(DEFAULT_LEVEL));
                for parameter in [
                    CParameter::CompressionLevel(level),
                    CParameter::ChecksumFlag(true),
                ] {
                    context
                        .set_parameter(parameter)
                        .map_err(|e| refused(zstd_safe::get_error_name(e)))?;
                }
                Some(Self::Zstd(context))
            }
            Compress::Lz4 => {
                let info = FrameInfo::new()
                    .block_size(BlockSize::Max256KB)
                    .block_mode(BlockMode::Independent)
                    .content_checksum(true);
                let encoder = FrameEncoder::with_frame_info(info, Vec::new());
                Some(Self::Lz4(Box::new(encoder)))
            }
        })
    }

    /// Compresses `raw` into one zstd or LZ4 frame in `out` and returns that frame's length. An
    /// empty `raw` gives no frame: a capture file may end with an empty block, and the LZ4 encoder
    /// ends a frame that it has not begun if it got no bytes.
    fn pack(&mut self, raw: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        if raw.is_empty() {
            return Ok(0);
        }
        match self {
            Self::Zstd(context) => context
                .compress2(out, raw)
                .map_err(|e| CompressError::Zstd(zstd_safe::get_error_name(e))),
            Self::Lz4(encoder) => {
                encoder.get_mut().clear();
                encoder.write_all(raw).map_err(CompressError::Lz4)?;
                let finished = encoder.try_finish();
                finished.map_err(|e| CompressError::Lz4(e.into()))?;
                let frame = encoder.get_ref();
                let to = out.get_mut(..frame.len());
                to.ok_or(CompressError::NoRoom("for a frame"))?
                    .copy_from_slice(frame);
                Ok(frame.len())
            }
        }
    }
}

/// Pads `out` behind `len` bytes to the next disk sector with a skippable zstd or LZ4 frame and
/// returns the new length.
fn pad_to_sector(out: &mut [u8], len: usize) -> Result<usize, CompressError> {
    if len.is_multiple_of(ALIGN) {
        return Ok(len);
    }
    let end = (len + SKIPPABLE_HEAD).next_multiple_of(ALIGN);
    let no_room = CompressError::NoRoom("to pad a sector");
    let padding = out.get_mut(len..end).ok_or(no_room)?;
    let (head, body) = padding.split_at_mut(SKIPPABLE_HEAD);
    // Less than two sectors.
    let skipped = body.len() as u32;
    head[..4].copy_from_slice(&SKIPPABLE.to_le_bytes());
    head[4..].copy_from_slice(&skipped.to_le_bytes());
    body.fill(0);
    Ok(end)
}

/// Compresses `content` in blocks of `block` bytes, each into a separate zstd or LZ4 frame, on the
/// calling thread. Returns the total size of these frames in bytes and the time taken, to measure
/// the compression speed of a core.
///
/// # Errors
/// `compress` is `None`, or the codec fails.
pub fn compress_blocks(
    compress: Compress,
    content: &[u8],
    block: usize,
) -> Result<(u64, Duration), CompressError> {
    let mut packer = Packer::new(compress)?.ok_or(CompressError::NotRequested)?;
    let mut out = vec![0; max_packed_len(block)];
    let mut len = 0;
    let start = Instant::now();
    for raw in content.chunks(block) {
        len += packer.pack(raw, &mut out)? as u64;
    }
    Ok((len, start.elapsed()))
}

/// Running packer threads, which compress write blocks.
pub(super) struct Compressors {
    threads: Vec<JoinHandle<()>>,
}

/// Channels by which packer threads receive and send write blocks.
pub(super) struct PackerChannels {
    /// Channel of full write blocks from the sinks.
    pub(super) full: Receiver<Full>,
    /// Channels of emptied write blocks back to the sinks, by queue.
    pub(super) empty: Vec<Sender<Block>>,
    /// Channel of compressed write blocks to the writer.
    pub(super) packed: Sender<Full>,
    /// Channel of empty blocks for compressed data, which the writer returns.
    pub(super) spare: Receiver<Block>,
}

impl Compressors {
    /// Returns the number of spare blocks for compressed data that `threads` packer threads need to
    /// keep the disk busy.
    pub(super) fn spares(threads: usize) -> usize {
        2 * threads + 4
    }

    /// Allocates a block for the compressed data of a write block of `size` bytes.
    pub(super) fn spare(size: usize) -> Result<Block, ResourceError> {
        Ok(Block::new(Region::allocate(max_packed_len(size), None)?))
    }

    /// Starts `threads` packer threads that may run on all of `cores`.
    pub(super) fn start(
        compress: Compress,
        cores: &[usize],
        threads: usize,
        channels: PackerChannels,
    ) -> Result<Self, ResourceError> {
        let channels = std::sync::Arc::new(channels);
        let mut running = Vec::with_capacity(threads);
        for i in 0..threads {
            let Some(packer) = Packer::new(compress)? else {
                break;
            };
            let channels = std::sync::Arc::clone(&channels);
            let cores = cores.to_vec();
            running.push(spawn(&format!("wqcap-pack{i:02}"), move || {
                restrict_to_cores(&cores);
                run(packer, &channels);
            })?);
        }
        Ok(Self { threads: running })
    }

    /// Waits for the packer threads to end; all sinks must be dropped. Returns `false` if a packer
    /// panicked.
    pub(super) fn finish(self) -> bool {
        self.threads.into_iter().all(|thread| thread.join().is_ok())
    }
}

/// Restricts the calling thread to `cores`, so that it does not use the receive queues' cores.
fn restrict_to_cores(cores: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    for core in cores {
        if *core < rustix::thread::CpuSet::MAX_CPU {
            set.set(*core);
        }
    }
    if set.count() > 0
        && let Err(e) = rustix::thread::sched_setaffinity(None, &set)
    {
        tracing::warn!(
            "cannot restrict the compression threads to cores {cores:?}: {e}; the kernel's scheduler chooses their cores"
        );
    }
}

fn run(mut packer: Packer, channels: &PackerChannels) {
    // Memory for the result is taken first: see the invariant.
    while let Ok(mut packed) = channels.spare.recv() {
        let Ok(Full {
            queue,
            number,
            block,
        }) = channels.full.recv()
        else {
            return;
        };
        packed.take_place_of(&block);
        match pack_block(&mut packer, &block, &mut packed) {
            Ok(len) => (packed.len, packed.whole) = (len, len),
            // There is nothing to write: the writer counts the block's frames as lost.
            Err(e) => {
                tracing::error!(
                    "queue {queue}: cannot compress a write block: {e}; the frames of this block are lost"
                );
                (packed.len, packed.whole, packed.spoilt) = (0, 0, true);
            }
        }
        if let Some(empty) = channels.empty.get(usize::from(queue)) {
            let _ = empty.send(block);
        }
        let sent = channels.packed.send(Full {
            queue,
            number,
            block: packed,
        });
        if sent.is_err() {
            return;
        }
    }
}

fn pack_block(
    packer: &mut Packer,
    block: &Block,
    packed: &mut Block,
) -> Result<usize, CompressError> {
    let out = packed.memory.as_mut_slice();
    let len = packer.pack(block.memory.as_slice(block.len), out)?;
    // A file's last frame needs no padding.
    if block.end {
        Ok(len)
    } else {
        pad_to_sector(out, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_decompress_to_their_input_and_end_at_sectors() {
        let noise: Vec<u8> = (0u64..1 << 20)
            .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        let zeros = vec![0; 1 << 20];
        for compress in [
            Compress::Lz4,
            Compress::Zstd(None),
            Compress::Zstd(Some(19)),
        ] {
            let mut packer = Packer::new(compress).expect("made").expect("one");
            let mut file: Vec<u8> = Vec::new();
            let mut want: Vec<u8> = Vec::new();
            for raw in [
                &noise[..],
                &zeros,
                &[],
                &noise[..1],
                &zeros[..70_000],
                &noise[..4096],
            ] {
                let mut out = vec![0xff; max_packed_len(raw.len())];
                let len = packer.pack(raw, &mut out).expect("packs");
                let end = pad_to_sector(&mut out, len).expect("pads");
                assert!(end.is_multiple_of(ALIGN) && end <= max_packed_len(raw.len()));
                file.extend(&out[..end]);
                want.extend(raw);
            }
            let (mut got, mut source) =
                (Vec::new(), wqcap_files::read::Decompressor::new(&file[..]));
            std::io::Read::read_to_end(source.as_mut().expect("known"), &mut got).expect("reads");
            assert!(got == want, "{compress:?}");
        }
    }

    #[test]
    fn padding_is_never_shorter_than_its_header() {
        for len in [1, 4087, 4088, 4089, 4095, 4096, 8191] {
            let mut out = vec![0xff; 4 * ALIGN];
            let end = pad_to_sector(&mut out, len).expect("pads");
            assert!(end.is_multiple_of(ALIGN), "{len}");
            if end != len {
                assert!(end - len >= SKIPPABLE_HEAD);
                let body = end - len - SKIPPABLE_HEAD;
                assert_eq!(out[len..len + 4], SKIPPABLE.to_le_bytes());
                assert_eq!(
                    out[len + 4..len + 8],
                    u32::try_from(body).expect("small").to_le_bytes()
                );
                assert!(out[len + 8..end].iter().all(|b| *b == 0) && out[end] == 0xff);
            }
        }
    }
}
