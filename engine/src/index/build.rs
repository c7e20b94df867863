//! Reads a finished file through, once, for its index.

use super::{BLOCK, Block, Flow, Index, MOST_FLOWS, Stamp, VERSION};
use crate::reader::{self, Packet, Parts, ReadError};
use std::{collections::HashMap, fs, io, os::unix::fs::MetadataExt, path::Path};

/// Makes a file's index. `go_on` is asked at each block. `None`: it said no.
///
/// # Errors
/// The file cannot be read, or not to its end: such a file has no index.
pub fn build(path: &Path, go_on: impl Fn() -> bool) -> Result<Option<Index>, ReadError> {
    let stamp = Stamp::of(path).map_err(|source| ReadError::Io { offset: 0, source })?;
    let mut reader = reader::open(path)?;
    let mut index = Index {
        version: VERSION,
        stamp,
        head: 0,
        frames: 0,
        apart: is_plain(path),
        flows: Vec::new(),
        blocks: Vec::new(),
    };
    let mut work = Work::default();
    let mut interfaces = 0;
    while reader.advance()? {
        let end = reader.sound_end();
        if index.frames == 0 {
            interfaces = reader.interfaces().len();
        } else if interfaces != reader.interfaces().len() {
            index.apart = false;
        }
        let Some(packet) = reader.packet() else { break };
        if index.frames == 0 {
            index.head = packet.offset;
        }
        index.frames += 1;
        let full = work.open.as_ref().is_none_or(|b| b.end - b.start >= BLOCK);
        if full {
            if !go_on() {
                return Ok(None);
            }
            work.close(&mut index);
        }
        work.add(&mut index.flows, &packet, end);
    }
    if index.frames == 0 {
        index.head = reader.sound_end();
    }
    work.close(&mut index);
    // A section or an interface that the last blocks brought.
    index.apart &= interfaces == reader.interfaces().len() || index.frames == 0;
    // Somebody wrote to it meanwhile: what was read may be neither the old nor the new.
    let unchanged = Stamp::of(path).is_ok_and(|now| now == stamp);
    Ok(unchanged.then_some(index))
}

/// Bytes before the first record.
///
/// # Errors
/// The file cannot be read so far.
pub fn head(file: &Parts) -> Result<u64, ReadError> {
    let mut reader = file.peek()?;
    reader.advance()?;
    Ok(reader
        .packet()
        .map_or(reader.sound_end(), |packet| packet.offset))
}

/// Offsets of what is read are offsets in the file.
fn is_plain(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    matches!(ending, Some("pcap" | "pcapng"))
}

#[derive(Default)]
struct Work {
    open: Option<Block>,
    /// Numbers of flows.
    numbers: HashMap<Flow, u32>,
    /// The block that each flow was seen in last, plus one.
    seen_in: Vec<usize>,
    /// Blocks closed.
    closed: usize,
}

impl Work {
    fn add(&mut self, flows: &mut Vec<Flow>, packet: &Packet<'_>, end: u64) {
        let block = self.open.get_or_insert(Block {
            start: packet.offset,
            end,
            first_ns: packet.ns,
            last_ns: packet.ns,
            frames: 0,
            flows: Vec::new(),
            others: false,
        });
        block.end = end;
        block.first_ns = block.first_ns.min(packet.ns);
        block.last_ns = block.last_ns.max(packet.ns);
        block.frames += 1;
        let flow = Flow::of(packet.bytes);
        let number = match self.numbers.get(&flow) {
            Some(number) => *number,
            None if flows.len() == MOST_FLOWS => {
                block.others = true;
                return;
            }
            None => {
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "below the most flows of a file"
                )]
                let number = flows.len() as u32;
                flows.push(flow);
                self.numbers.insert(flow, number);
                self.seen_in.push(0);
                number
            }
        };
        let seen = &mut self.seen_in[number as usize];
        if *seen != self.closed + 1 {
            *seen = self.closed + 1;
            block.flows.push(number);
        }
    }

    fn close(&mut self, index: &mut Index) {
        if let Some(mut block) = self.open.take() {
            block.flows.sort_unstable();
            index.blocks.push(block);
            self.closed += 1;
        }
    }
}

impl Stamp {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let it = fs::metadata(path)?;
        Ok(Self {
            len: it.len(),
            modified_s: it.mtime(),
            modified_ns: it.mtime_nsec(),
        })
    }
}
