//! Construction of the index of a capture file in one pass over the finished file.

use super::{
    flow::IndexFlow,
    layout::{CaptureIndex, IndexBlock, IndexMark, MARK, MOST_MARKS, VERSION},
};
use crate::{
    folder::FileStamp,
    format::{
        ETHERNET, FileFormat,
        pcapng::{
            Options,
            code::{EPB_DROPCOUNT, OPT_COMMENT},
        },
    },
    link::{EthernetFrames, is_regular},
    read::{self, Decompressor, FileEnd, FileRanges, Packet, PacketReader, ReadError},
    sealed::{Content, SecretKey},
};
use std::{collections::HashMap, path::Path};

/// Approximate length in bytes of the part of a capture file that one index block describes.
const BLOCK_LEN: u64 = 1 << 20;
/// Maximum number of flows in the index of a capture file. Blocks of the file with further flows
/// are read for every query.
const MOST_FLOWS: usize = 1 << 16;

/// Builds the index of a capture file, which `key` opens if it is sealed. `may_continue` is called
/// at each index block. Returns `None` if `may_continue` returned `false`, or the file changed in
/// the meantime.
///
/// # Errors
/// The file cannot be read to its end: it then gets no index.
pub fn build(
    path: &Path,
    key: Option<&SecretKey>,
    may_continue: impl Fn() -> bool,
) -> Result<Option<CaptureIndex>, ReadError> {
    let stamp = FileStamp::read(path)?;
    let source = Content::open(path, key)?;
    let len = source.len()?;
    let source = Decompressor::new(source)?.noting_frame_ends();
    let frames = source.is_compressed().then(CompressedFrames::default);
    let mut reader = PacketReader::new(source)?;
    let mut index = CaptureIndex {
        version: VERSION,
        stamp,
        head: 0,
        frames: 0,
        apart: true,
        end: FileEnd::Clean,
        flows: Vec::new(),
        blocks: Vec::new(),
        marks: Vec::new(),
    };
    let mut work = IndexBuilder {
        compressed: frames,
        ..IndexBuilder::default()
    };
    let counts_losses = reader.format() == FileFormat::Pcapng;
    let mut interfaces = 0;
    while reader.advance()? {
        let end = reader.sound_end();
        if index.frames == 0 {
            interfaces = reader.interfaces().len();
        } else if interfaces != reader.interfaces().len() {
            index.apart = false;
        }
        let offset = reader.offset();
        if index.frames == 0 {
            index.head = offset;
        }
        index.frames += 1;
        if work.is_block_full(reader.source_mut(), offset, end) {
            if !may_continue() {
                return Ok(None);
            }
            work.close(&mut index);
        }
        if let Some(packet) = reader.packet() {
            let lost = counts_losses.then(|| lost_before(&packet));
            let interface = reader.interfaces().get(packet.interface);
            let link_type = interface.map_or(ETHERNET, |it| it.link_type);
            work.add(&mut index.flows, &packet, link_type, end, lost);
            if index.marks.len() < MOST_MARKS {
                index.marks.extend(marks(&packet));
            }
        }
    }
    if index.frames == 0 {
        index.head = reader.sound_end();
    }
    index.end = reader.end().unwrap_or(FileEnd::Clean);
    if let Some(frames) = &mut work.compressed {
        frames.end(reader.source_mut(), len);
        index.head = frames.head;
        // A torn record after the last complete one is within a compressed frame. Reading that
        // frame reads the torn record too.
        index.apart &= !frames.torn && index.end == FileEnd::Clean;
    }
    work.close(&mut index);
    // The last blocks contained a section or an interface.
    index.apart &= interfaces == reader.interfaces().len() || index.frames == 0;
    // The file was written to in the meantime: the bytes read may be neither the old nor the new
    // content.
    let unchanged = FileStamp::read(path).is_ok_and(|now| now == stamp);
    Ok(unchanged.then_some(index))
}

/// Returns the operator's marks in the comments of a record.
fn marks<'p>(packet: &Packet<'p>) -> impl Iterator<Item = IndexMark> + use<'p> {
    let ns = packet.ns;
    let comments = Options::new(packet.options, packet.order);
    let comments = comments.filter(|(code, _)| *code == OPT_COMMENT);
    comments.filter_map(move |(_, text)| {
        let text = std::str::from_utf8(text).ok()?.strip_prefix(MARK)?.into();
        Some(IndexMark { ns, text })
    })
}

/// Returns the number of frames lost between a record and the one before it.
fn lost_before(packet: &Packet<'_>) -> u64 {
    let options = Options::new(packet.options, packet.order);
    let counts = options.filter(|(code, value)| *code == EPB_DROPCOUNT && value.len() == 8);
    counts.fold(0, |sum, (_, value)| {
        sum.saturating_add(packet.order.u64(value, 0))
    })
}

/// Returns the sum of two counts of lost frames. Each count may be unknown.
fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    let both = a.zip(b).map(|(a, b)| a.saturating_add(b));
    both.or(a).or(b)
}

/// Returns the number of a capture file's bytes that must be read before any frame can be
/// interpreted: those before the first record; in a compressed file those of its first compressed
/// frame. Returns 0 if the file describes no interface.
///
/// # Errors
/// The file cannot be read up to its first record.
pub fn head_len(file: &FileRanges) -> Result<u64, ReadError> {
    if let Some(len) = read::first_frame_len(file.source()?)? {
        return Ok(len);
    }
    let mut reader = file.peek()?;
    reader.advance()?;
    if reader.interfaces().is_empty() {
        return Ok(0);
    }
    Ok(reader
        .packet()
        .map_or(reader.sound_end(), |packet| packet.offset))
}

/// Position of the index builder in a compressed file: the compressed frame that holds the current
/// record.
#[derive(Default)]
struct CompressedFrames {
    /// Offset in the capture file at which the compressed frame starts.
    file: u64,
    /// Offset in the capture file's uncompressed content at which the compressed frame starts.
    content: u64,
    /// Offset in the capture file at which the first compressed frame ends; 0: not yet seen.
    head: u64,
    /// Offset in the capture file's uncompressed content at which the last record ends.
    record_end: u64,
    /// `true` if a record spans two compressed frames, or a compressed frame does not begin with a
    /// record.
    torn: bool,
}

impl CompressedFrames {
    /// Moves to the next record, from `offset` to `end` of the uncompressed content. Returns `true`
    /// if a compressed frame begins with it.
    fn pass(&mut self, source: &mut Decompressor<Content>, offset: u64, end: u64) -> bool {
        let begins = self.advance_to(source, offset);
        self.torn |= begins && self.content != offset;
        // The blocks that all records need must be in the first compressed frame. Otherwise no part
        // can be read without everything before it.
        self.torn |= self.record_end == 0 && self.file > self.head;
        self.record_end = end;
        begins
    }

    fn advance_to(&mut self, source: &mut Decompressor<Content>, place: u64) -> bool {
        let mut moved = false;
        while let Some((file, content)) = source.take_frame_end(place) {
            self.torn |= content < self.record_end;
            (self.file, self.content) = (file, content);
            if self.head == 0 && content > 0 {
                self.head = file;
            }
            moved = true;
        }
        moved
    }

    /// Ends the last compressed frame at `len` bytes of the capture file, after the last record.
    fn end(&mut self, source: &mut Decompressor<Content>, len: u64) {
        self.advance_to(source, u64::MAX);
        self.file = len;
    }
}

#[derive(Default)]
struct IndexBuilder {
    /// Position of the index builder in a compressed file. `None`: the file is not compressed, and
    /// index blocks begin and end at records.
    compressed: Option<CompressedFrames>,
    open: Option<IndexBlock>,
    /// Offset in a compressed file's uncompressed content at which the open index block starts.
    content: u64,
    ethernet: EthernetFrames,
    /// Number of each flow in the index of the capture file.
    numbers: HashMap<IndexFlow, u32>,
    /// Number of the index block that each flow was last seen in, plus one.
    seen_in: Vec<usize>,
    /// Number of finished index blocks.
    closed: usize,
}

impl IndexBuilder {
    /// Returns `true` if the next record, from `offset` to `end` of the uncompressed content,
    /// begins another index block.
    fn is_block_full(&mut self, source: &mut Decompressor<Content>, offset: u64, end: u64) -> bool {
        match &mut self.compressed {
            None => self
                .open
                .as_ref()
                .is_none_or(|b| b.end - b.start >= BLOCK_LEN),
            // A block consists of whole compressed frames. Those of wqcap's writer are hardly
            // smaller than a block.
            Some(frames) => {
                frames.pass(source, offset, end) && offset - self.content >= BLOCK_LEN / 2
            }
        }
    }

    fn add(
        &mut self,
        flows: &mut Vec<IndexFlow>,
        packet: &Packet<'_>,
        link_type: u32,
        end: u64,
        lost: Option<u64>,
    ) {
        if self.open.is_none() {
            self.content = packet.offset;
        }
        let start = self.compressed.as_ref().map_or(packet.offset, |it| it.file);
        let block = self.open.get_or_insert(IndexBlock {
            start,
            end,
            first_ns: packet.ns,
            last_ns: packet.ns,
            frames: 0,
            lost: None,
            flows: Vec::new(),
            others: false,
        });
        block.end = end;
        block.first_ns = block.first_ns.min(packet.ns);
        block.last_ns = block.last_ns.max(packet.ns);
        block.frames += 1;
        block.lost = sum(block.lost, lost);
        // A filter may accept frames without an Ethernet header whatever their flow is.
        let frame = (self.ethernet).convert(link_type, packet.bytes, packet.len);
        let frame = frame.filter(|_| is_regular(link_type, packet.bytes));
        let Some(flow) = frame.map(|(frame, _)| IndexFlow::new(frame)) else {
            block.others = true;
            return;
        };
        let number = match self.numbers.get(&flow) {
            Some(number) => *number,
            None if flows.len() == MOST_FLOWS => {
                block.others = true;
                return;
            }
            None => {
                // Less than the maximum number of flows.
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

    fn close(&mut self, index: &mut CaptureIndex) {
        if let Some(mut block) = self.open.take() {
            if let Some(frames) = &self.compressed {
                block.end = frames.file;
            }
            block.flows.sort_unstable();
            index.blocks.push(block);
            self.closed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::{Blocks, written},
        format::{ByteOrder, FileFormat},
        index::FlowTerms,
    };
    use std::fs;

    fn compressed(bytes: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut context = zstd_safe::CCtx::create();
        let ends = cuts.iter().copied().chain([bytes.len()]);
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let mut file = Vec::new();
        for (start, end) in starts.zip(ends) {
            let mut out = vec![0; zstd_safe::compress_bound(end - start)];
            let len = context.compress2(&mut out[..], &bytes[start..end]);
            file.extend(&out[..len.expect("packs")]);
        }
        file
    }

    fn built_index(format: FileFormat, cuts: impl Fn(&[usize]) -> Vec<usize>) -> CaptureIndex {
        let dir = tempfile::tempdir().expect("dir");
        let (bytes, starts) = written(format, 1_000);
        let path = dir.path().join("wqcap-q00-1.pcap.zst");
        fs::write(&path, compressed(&bytes, &cuts(&starts))).expect("written");
        let index = build(&path, None, || true).expect("reads").expect("made");
        assert_eq!(index.frames, 1_000);
        // Each part has as many frames as the index states.
        let head = head_len(&FileRanges::whole(path.clone())).expect("reads");
        assert_eq!(head, index.head);
        for block in index.apart.then_some(&index.blocks).into_iter().flatten() {
            let times = block.first_ns..block.last_ns + 1;
            let parts = index.select(&times, &FlowTerms::default());
            let mut reader = FileRanges::new(path.clone(), parts).open().expect("opens");
            let mut frames = 0;
            while reader.advance().expect("sound") {
                frames += u64::from(reader.packet().is_some_and(|it| times.contains(&it.ns)));
            }
            assert_eq!(frames, block.frames);
        }
        index
    }

    #[test]
    fn compressed_frames_of_whole_records_are_read_apart() {
        let index = built_index(FileFormat::Pcapng, |starts| {
            starts
                .iter()
                .copied()
                .skip(170)
                .step_by(170)
                .take(5)
                .collect()
        });
        assert!(index.apart && index.blocks[0].start == 0);
        let ends = index.blocks.iter().map(|it| it.end);
        assert!(
            ends.eq(index
                .blocks
                .iter()
                .skip(1)
                .map(|it| it.start)
                .chain([index.stamp.len]))
        );
    }

    #[test]
    fn compressed_frames_that_cut_records_are_not_read_apart() {
        for shift in [1, 10] {
            let cut = |starts: &[usize]| vec![starts[300] + shift, starts[600]];
            assert!(!built_index(FileFormat::Pcap, cut).apart);
        }
        // The blocks before the first record are in two compressed frames.
        assert!(!built_index(FileFormat::Pcapng, |starts| vec![28, starts[600]]).apart);
        // The file header is in a separate compressed frame.
        let index = built_index(FileFormat::Pcap, |starts| vec![starts[0], starts[600]]);
        assert!(index.apart && index.blocks[0].start == index.head);
        // One compressed frame, as the zstd command writes it.
        let index = built_index(FileFormat::Pcap, |_| Vec::new());
        assert!(index.apart && index.blocks.len() == 1);
    }

    #[test]
    fn parts_count_the_frames_lost_before_theirs() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("wqcap-q00-1.pcapng");
        let lost = |order, counts: &[u64]| {
            let mut blocks = Blocks::new(order);
            blocks.interface(0, &[]);
            for count in counts {
                let count = match order {
                    ByteOrder::Little => count.to_le_bytes(),
                    ByteOrder::Big => count.to_be_bytes(),
                };
                let option = blocks.option(EPB_DROPCOUNT, &count);
                blocks.packet(0, 1, &[1; 14], 14, &option);
            }
            blocks.packet(0, 1, &[1; 14], 14, &[]);
            fs::write(&path, &blocks.1).expect("written");
            let index = build(&path, None, || true).expect("reads").expect("made");
            index.blocks[0].lost
        };
        for order in [ByteOrder::Little, ByteOrder::Big] {
            assert_eq!(lost(order, &[]), Some(0));
            assert_eq!(lost(order, &[7, 1 << 40]), Some(7 + (1 << 40)));
            assert_eq!(lost(order, &[u64::MAX, 1]), Some(u64::MAX));
        }
    }
}
