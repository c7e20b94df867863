//! `wqcap bench capture`: measures the cost of a written frame for a queue's core: poll, time
//! stamp, parse of the 5-tuple, copy into a block, submission, repost. Only the CPU time of the
//! queue's thread counts; a separate thread writes to the disk.
//!
//! Rings are filled in advance while the queue's loop is held, and then the rules are removed, so
//! that neither the wire nor the NIC affects the figures. There are two baselines: the same loop
//! that only parses and counts frames, and the least work that puts frames as records into memory.

use super::{
    bare::{self, BareAttr, Poll},
    files,
    report::{BenchReport, Measured},
    rounds::{FILLING, RING, Round, drain, plan},
};
use crate::{args::BenchCaptureArgs, cmd::check::enter_model, failure::Failure};
use std::{hint::black_box, path::Path};
use wqcap_engine::{
    config::Format,
    files::format::pcap::{RECORD_LEN, encode_record_header},
    frame::Headers,
    memory::Region,
    pipeline::{Consumer, Frame, Verdict},
    plan::Plan,
    sink::{Count, Encoder, PcapEncoder, PcapngEncoder},
};

/// Default length of the buffer of a receive WR in bytes.
const BUFFER: u32 = 2048;
/// Maximum number of bytes of a frame that the bare receive loop copies.
const SNAPLEN: usize = 64;

/// Times per frame in one repeat of the capture benchmark, in nanoseconds.
struct Times {
    /// Time per frame, in nanoseconds, of the receive loop that writes files.
    ours: f64,
    /// Time per frame of the receive loop that only counts frames.
    count: f64,
    /// Time per frame of the bare loop that copies frames into memory.
    copy: f64,
    /// Number of frames that the measured loop wrote to files.
    frames: u64,
}

/// Runs `wqcap bench capture`: drains full rings into a file, into a counter and into memory, in
/// turn, and prints the ratios of the times.
pub fn capture(args: &BenchCaptureArgs) -> Result<(), Failure> {
    if args.device.is_none() {
        let wire = format!("synth:size={},flows=256,pps={FILLING}", args.frame);
        enter_model(std::slice::from_ref(&wire), &[])?;
    }
    let scratch = files::scratch(&args.dir)?;
    let mut modes = Vec::new();
    for receive in &args.receive {
        let receive = [("capture.receive", receive.to_string())];
        modes.push((plan(1, args.device.as_deref(), &receive)?, Vec::new()));
    }
    for _ in 0..args.common.repeats {
        let copy = to_memory(&modes[0].0, args)?.mean_ns();
        for (plan, times) in &mut modes {
            let count = drain(plan, args.frame, args.rounds, vec![ParsingConsumer(Count)])?;
            let ours = to_files(plan, args, scratch.path())?;
            times.push(Times {
                ours: ours.mean_ns(),
                count: count.mean_ns(),
                copy,
                frames: ours.frames,
            });
        }
    }
    let modes: Vec<_> = modes.into_iter().map(|(_, times)| times).collect();
    BenchReport::new(results(args, &modes)).print(args.common.json)
}

/// Compares the times of each receive mode with its baselines, and with those of the mode before
/// it.
fn results(args: &BenchCaptureArgs, modes: &[Vec<Times>]) -> Vec<Measured> {
    let mut results = Vec::new();
    for (i, times) in modes.iter().enumerate() {
        let mode = match modes.len() {
            1 => String::new(),
            _ => format!("/{}", args.receive[i]),
        };
        let name = format!("capture/{}/{}B/1q{mode}", args.format, args.frame);
        let mut against = |baseline, of: &[Times], its: fn(&Times) -> f64| {
            let pairs = times.iter().zip(of).map(|(it, of)| (it.ours, its(of)));
            let pairs: Vec<_> = pairs.collect();
            let (ours, its): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
            let result = Measured::from_pairs(name.clone(), baseline, &pairs)
                .with("frames", times.last().map_or(0, |it| it.frames))
                .with("repeats", args.common.repeats)
                .with("ns", ours)
                .with("baseline_ns", its);
            results.push(result);
        };
        against("count", times, |it| it.count);
        against("copy", times, |it| it.copy);
        if i > 0 {
            against(args.receive[i - 1].into(), &modes[i - 1], |it| it.ours);
        }
    }
    results
}

/// Measures a bare receive loop that copies a record header and the start of each frame into blocks
/// that are never written.
fn to_memory(plan: &Plan, args: &BenchCaptureArgs) -> Result<Round, Failure> {
    let attr = BareAttr {
        poll: Poll::CqEx,
        ring: RING,
        buffer: BUFFER,
        batch: plan.batch,
    };
    let mut records = Records {
        blocks: files::blocks()?,
        block: 0,
        at: 0,
    };
    bare::drain(plan, attr, args.rounds, |frame, stamp| {
        records.append(frame, stamp);
    })
}

/// Memory blocks of the baseline, which are filled with frame records in rotation.
struct Records {
    /// Memory blocks into which the frame records are copied.
    blocks: Vec<Region>,
    /// Index in `blocks` of the memory block that is being filled.
    block: usize,
    /// Offset of the next record in the memory block that is being filled.
    at: usize,
}

impl Records {
    /// Appends the record of a frame to the current memory block.
    #[inline]
    fn append(&mut self, frame: &[u8], stamp: u64) {
        let caplen = frame.len().min(SNAPLEN);
        if self.at + RECORD_LEN + caplen > self.blocks[self.block].len() {
            self.block = (self.block + 1) % self.blocks.len();
            self.at = 0;
        }
        let rest = &mut self.blocks[self.block].as_mut_slice()[self.at..];
        let record = &mut rest[..RECORD_LEN + caplen];
        self.at += record.len();
        let (header, data) = record.split_at_mut(RECORD_LEN);
        let [caplen, len] = [caplen, frame.len()].map(|it| it as u32);
        header.copy_from_slice(&encode_record_header(stamp, caplen, len));
        match frame.first_chunk::<SNAPLEN>() {
            // The compiler knows this length and inlines the copy.
            Some(start) => data.copy_from_slice(start),
            None => data.copy_from_slice(frame),
        }
    }
}

/// Measures the receive loop that writes capture files in the format of `--format`.
fn to_files(plan: &Plan, args: &BenchCaptureArgs, dir: &Path) -> Result<Round, Failure> {
    match args.format {
        Format::Pcapng => encoded(plan, args, dir, &PcapngEncoder::default()),
        _ => encoded(plan, args, dir, &PcapEncoder::default()),
    }
}

/// Measures the receive loop that writes capture files with `encoder`.
fn encoded(
    plan: &Plan,
    args: &BenchCaptureArgs,
    dir: &Path,
    encoder: &(impl Encoder + 'static),
) -> Result<Round, Failure> {
    let (writer, sink) = files::start(dir, plan.port.ring.longest() as usize, encoder)?;
    let round = drain(plan, args.frame, args.rounds, vec![ParsingConsumer(sink)])?;
    for file in files::finish(writer)? {
        files::remove(&file)?;
    }
    Ok(round)
}

/// Frame consumer that parses the headers of each frame before it passes the frame on.
struct ParsingConsumer<C>(C);

impl<C: Consumer> Consumer for ParsingConsumer<C> {
    #[inline(always)]
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        black_box(&Headers::parse(frame.bytes).tuple);
        self.0.frame(frame)
    }

    #[inline]
    fn begin_batch(&mut self) {
        self.0.begin_batch();
    }

    #[inline]
    fn end_batch(&mut self) {
        self.0.end_batch();
    }

    fn idle(&mut self) {
        self.0.idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wqcap_engine::files::format::pcap::{RecordLayout, encode_header};

    #[test]
    fn records_rotate_through_the_blocks() {
        let mut records = Records {
            blocks: Region::allocate_many(2, 200).expect("allocated blocks"),
            block: 0,
            at: 0,
        };
        for (ns, len) in [(1, 60), (2, 64), (3, 1500), (4, 64), (5, 63)] {
            records.append(&[ns as u8; 1500][..len], ns);
        }
        // Each block holds two records, so the fifth record is at the place of the first.
        assert_eq!((records.block, records.at), (0, 79));
        let native = RecordLayout::from_magic(&encode_header(0, 1, None)).expect("pcap");
        let block = records.blocks[1].as_slice(200);
        assert_eq!(native.record(block), [0, 3, 64, 1500]);
        assert_eq!(block[16..80], [3; 64]);
        assert_eq!(native.record(&block[80..]), [0, 4, 64, 64]);
        let block = records.blocks[0].as_slice(200);
        assert_eq!(native.record(block), [0, 5, 63, 63]);
        assert_eq!(block[16..79], [5; 63]);
    }
}
