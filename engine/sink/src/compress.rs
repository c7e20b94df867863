//! Compression of blocks, on cores that no queue has: each block becomes a frame of its own.
//!
//! ```text
//! sink -> full blocks -> packers, as they come -> packed blocks -> writer, which puts them in order again
//! ```
//!
//! A block holds whole records, and its frame whole checksums: a file is a row of frames that anybody can read, and one
//! that is torn is cut behind its last whole frame without being unpacked. Frames are filled up to whole sectors with
//! what zstd and LZ4 both call a skippable frame, so that each begins where direct I/O can write it.
//!
//! Invariant: a packer takes memory for the result before it takes a block. So the earliest block of every queue is
//! always on its way, and those that wait for it cannot keep its memory.

use crate::block::{ALIGN, Block, Full};
use crossbeam_channel::{Receiver, Sender};
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use std::{
    io::Write,
    thread::JoinHandle,
    time::{Duration, Instant},
};
use wqcap_core::{error::ResourceError, settings::Compress, sync::thread::spawn};
use wqcap_memory::Region;
use zstd_safe::{CCtx, CParameter};

/// What zstd takes for "zstd" without a level: its own default.
const DEFAULT_LEVEL: u8 = 3;
/// Magic of a skippable frame in zstd's and LZ4's frame formats, and the bytes of its head: magic and length.
const SKIPPABLE: u32 = 0x184d_2a50;
const SKIPPABLE_HEAD: usize = 8;

/// What `len` bytes come to at most, the filling included: both formats store what does not shrink, at a few bytes for
/// each of their blocks.
fn most(len: usize) -> usize {
    (len + len / 64 + 1024).next_multiple_of(ALIGN) + ALIGN
}

/// Compresses a block at a time, with memory that it keeps.
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
                    source: std::io::ErrorKind::OutOfMemory.into(),
                };
                let mut context = CCtx::try_create().ok_or_else(|| refused("a context"))?;
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

    /// Writes a frame with `raw` in it and gives its length; for nothing, nothing: a file may end with an empty block,
    /// and an LZ4 encoder that was given no bytes ends a frame that it has not begun.
    fn pack(&mut self, raw: &[u8], out: &mut [u8]) -> Result<usize, String> {
        if raw.is_empty() {
            return Ok(0);
        }
        match self {
            Self::Zstd(context) => context
                .compress2(out, raw)
                .map_err(|e| zstd_safe::get_error_name(e).to_owned()),
            Self::Lz4(encoder) => {
                encoder.get_mut().clear();
                encoder.write_all(raw).map_err(|e| e.to_string())?;
                encoder.try_finish().map_err(|e| e.to_string())?;
                let frame = encoder.get_ref();
                let to = out.get_mut(..frame.len()).ok_or("no room for a frame")?;
                to.copy_from_slice(frame);
                Ok(frame.len())
            }
        }
    }
}

/// Fills up to the next sector behind `len` bytes and gives the new length.
fn fill(out: &mut [u8], len: usize) -> Result<usize, String> {
    if len.is_multiple_of(ALIGN) {
        return Ok(len);
    }
    let end = (len + SKIPPABLE_HEAD).next_multiple_of(ALIGN);
    let filling = out.get_mut(len..end).ok_or("no room to fill a sector")?;
    let (head, body) = filling.split_at_mut(SKIPPABLE_HEAD);
    let skipped = u32::try_from(body.len()).map_err(|e| e.to_string())?;
    head[..4].copy_from_slice(&SKIPPABLE.to_le_bytes());
    head[4..].copy_from_slice(&skipped.to_le_bytes());
    body.fill(0);
    Ok(end)
}

/// Compresses a content in blocks of so many bytes, each to a frame of its own, on this thread; what all frames come to,
/// and how long that took. For those who want to know what a core can do.
///
/// # Errors
/// No compression is asked for, or the codec fails.
pub fn compress_blocks(
    compress: Compress,
    content: &[u8],
    block: usize,
) -> Result<(u64, Duration), String> {
    let packer = Packer::new(compress).map_err(|e| e.to_string())?;
    let mut packer = packer.ok_or("no compression is asked for")?;
    let mut out = vec![0; most(block)];
    let mut len = 0;
    let start = Instant::now();
    for raw in content.chunks(block) {
        len += packer.pack(raw, &mut out)? as u64;
    }
    Ok((len, start.elapsed()))
}

/// The running threads.
pub(super) struct Compressors {
    threads: Vec<JoinHandle<()>>,
}

/// Where packers get and put blocks.
pub(super) struct Channels {
    /// From the sinks.
    pub(super) full: Receiver<Full>,
    /// By queue: emptied blocks go back here.
    pub(super) empty: Vec<Sender<Block>>,
    /// To the writer.
    pub(super) packed: Sender<Full>,
    /// Blocks for what is packed; the writer puts them back.
    pub(super) spare: Receiver<Block>,
}

impl Compressors {
    /// Spare blocks that `threads` packers need to keep the disk busy.
    pub(super) fn spares(threads: usize) -> usize {
        2 * threads + 4
    }

    /// A block for what a block of `size` bytes is packed into.
    pub(super) fn spare(size: usize) -> Result<Block, ResourceError> {
        Ok(Block::new(Region::allocate(most(size), None)?))
    }

    /// Starts a packer on each of `cores`, which may be fewer than they would like.
    pub(super) fn start(
        compress: Compress,
        cores: &[usize],
        threads: usize,
        channels: Channels,
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
                keep_to(&cores);
                run(packer, &channels);
            })?);
        }
        Ok(Self { threads: running })
    }

    /// Waits for them; the sinks must be gone. False: one ended in a panic.
    pub(super) fn finish(self) -> bool {
        self.threads.into_iter().all(|thread| thread.join().is_ok())
    }
}

/// Leaves the queues' cores to the queues.
fn keep_to(cores: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    for core in cores {
        if *core < rustix::thread::CpuSet::MAX_CPU {
            set.set(*core);
        }
    }
    if set.count() > 0
        && let Err(e) = rustix::thread::sched_setaffinity(None, &set)
    {
        tracing::warn!("compression cannot be kept to cores {cores:?}: {e}");
    }
}

fn run(mut packer: Packer, channels: &Channels) {
    // Memory first: see the invariant.
    while let Ok(mut packed) = channels.spare.recv() {
        let Ok(Full {
            queue,
            number,
            block,
        }) = channels.full.recv()
        else {
            return;
        };
        packed.stands_for(&block);
        match squeeze(&mut packer, &block, &mut packed) {
            Ok(len) => (packed.len, packed.whole) = (len, len),
            // Nothing to write: the writer counts what was in it as lost with its file.
            Err(e) => {
                tracing::error!("queue {queue}: a block cannot be compressed: {e}");
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

fn squeeze(packer: &mut Packer, block: &Block, packed: &mut Block) -> Result<usize, String> {
    let out = packed.memory.as_mut_slice();
    let len = packer.pack(block.memory.as_slice(block.len), out)?;
    // Nothing follows a file's last frame.
    if block.end { Ok(len) } else { fill(out, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_hold_what_went_in_and_end_at_sectors() {
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
                let mut out = vec![0xff; most(raw.len())];
                let len = packer.pack(raw, &mut out).expect("packs");
                let end = fill(&mut out, len).expect("fills");
                assert!(end.is_multiple_of(ALIGN) && end <= most(raw.len()));
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
    fn a_filling_is_never_shorter_than_its_head() {
        for len in [1, 4087, 4088, 4089, 4095, 4096, 8191] {
            let mut out = vec![0xff; 4 * ALIGN];
            let end = fill(&mut out, len).expect("fills");
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
