//! Runs one piece of hot code on `TIMES` frames, of every kind in turn: `hot PIECE TIMES`. Without
//! arguments it lists the pieces. `tests/instructions.rs` counts the instructions of each.

use std::{
    error::Error,
    hint::black_box,
    os::fd::BorrowedFd,
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
};
use wqcap_engine::{
    analysis::{
        flows::{FlowWriter, FlowsPlan, Meter, PortLabels},
        observer::Observer,
    },
    config::{CaptureConfig, Config, CutoffConfig, SampleBy, Size, Slice},
    filter::{Filter, FilterCell},
    frame::{FlowKey, Headers},
    pipeline::{Consumer, Frame, reduce::Stage},
    plan,
    rx::{
        Account, Control, Filled, FrameFacts, Hashing, Idle, LoadSampler, LoopRequests, Outlet,
        Queue, QueueLoad, Ring, RingAttr, RingError, SamplingRate, Slot, SlotMemory, StampSource,
        Stamper, Taken, Wake, Worker,
    },
    sink::{Count, Encoder, OutputPlan, PcapEncoder, PcapngEncoder, Writer, WriterConfig},
    verbs::{VerbsError, WqState},
};
use wqcap_rss::{HashDepth, key::RssKey, toeplitz::Toeplitz};

type Outcome = Result<(), Box<dyn Error>>;
type Piece = fn(&[Vec<u8>], usize) -> Outcome;

const PIECES: [(&str, Piece); 14] = [
    ("frame/outermost", outermost),
    ("frame/innermost", innermost),
    ("frame/flow_key", flow_key),
    ("toeplitz/ipv4", toeplitz),
    ("filter/long", filter),
    ("reduce/slice", reduce),
    ("reduce/cutoff", cutoff),
    ("flows/count", flows),
    ("flows/names", names),
    ("flows/stage", flows_staged),
    ("flows/cutoff", flows_cut),
    ("rx/loop", rx_loop),
    ("sink/pcap", pcap),
    ("sink/pcapng", pcapng),
];
/// Number of frames in a batch.
const BATCH: usize = 64;
const FILTER: &str = "(tcp port 80 or udp port 53 or tcp port 8080) and \
                      (net 10.0.0.0/8 or net 172.16.0.0/12) and not host 10.0.0.7";
const NS: u64 = 1_700_000_000_000_000_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.is_empty() {
        PIECES.iter().for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("hot: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Outcome {
    let [name, times] = args else {
        return Err("usage: hot PIECE TIMES".into());
    };
    let (_, piece) = PIECES.iter().find(|(it, _)| it == name).ok_or_else(|| {
        format!("unknown piece {name}; run hot without arguments to list the pieces")
    })?;
    let frames: Vec<_> = wqcap_benches::kinds().into_iter().map(|it| it.1).collect();
    piece(&frames, times.parse()?)
}

fn in_turn(frames: &[Vec<u8>], times: usize) -> impl Iterator<Item = &[u8]> {
    let turn = frames.iter().cycle().take(times);
    turn.map(|it| black_box(it.as_slice()))
}

fn outermost(frames: &[Vec<u8>], times: usize) -> Outcome {
    in_turn(frames, times).for_each(|it| _ = black_box(Headers::parse(it)));
    Ok(())
}

fn innermost(frames: &[Vec<u8>], times: usize) -> Outcome {
    in_turn(frames, times).for_each(|it| _ = black_box(Headers::innermost(it)));
    Ok(())
}

fn flow_key(frames: &[Vec<u8>], times: usize) -> Outcome {
    let headers: Vec<_> = frames.iter().map(|it| Headers::parse(it)).collect();
    let turn = in_turn(frames, times).zip(headers.iter().cycle());
    turn.for_each(|(frame, headers)| {
        _ = black_box(FlowKey::from_headers(frame, black_box(headers)))
    });
    Ok(())
}

fn toeplitz(frames: &[Vec<u8>], times: usize) -> Outcome {
    let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
    in_turn(frames, times).for_each(|it| _ = black_box(toeplitz.hash(&it[26..38])));
    Ok(())
}

fn filter(frames: &[Vec<u8>], times: usize) -> Outcome {
    let filter = Filter::compile(FILTER)?;
    in_turn(frames, times).for_each(|it| _ = black_box(filter.accepts(it, len(it))));
    Ok(())
}

fn reduce(frames: &[Vec<u8>], times: usize) -> Outcome {
    let capture = CaptureConfig {
        filter: "tcp port 443".into(),
        sample: 2,
        sample_by: SampleBy::Flow,
        slice: Slice::L4,
        ..CaptureConfig::default()
    };
    staged(frames, times, capture, Vec::new(), Observer::default())
}

fn cutoff(frames: &[Vec<u8>], times: usize) -> Outcome {
    let (capture, limit) = limit();
    staged(frames, times, capture, vec![limit], Observer::default())
}

/// Returns memory for a cutoff, and a cutoff that no flow reaches.
fn limit() -> (CaptureConfig, CutoffConfig) {
    let capture = CaptureConfig {
        cutoff_memory: Size(1 << 20),
        ..CaptureConfig::default()
    };
    let limit = CutoffConfig {
        bytes: Some(Size(1 << 40)),
        ..CutoffConfig::default()
    };
    (capture, limit)
}

/// Runs the reduction stage with this configuration.
fn staged(
    frames: &[Vec<u8>],
    times: usize,
    capture: CaptureConfig,
    cutoff: Vec<CutoffConfig>,
    observer: Observer,
) -> Outcome {
    let reduction = plan::reduction(&Config {
        capture,
        cutoff,
        ..Config::default()
    })?;
    let cell = Arc::new(FilterCell::new(reduction.filter.clone()));
    let mut stage = Stage::new(Count, &reduction, cell, Arc::default(), observer);
    let mut frames = in_turn(frames, times).zip(NS..);
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        // In batches, as in the receive loop.
        batch.clear();
        batch.extend(frames.by_ref().take(BATCH));
        if batch.is_empty() {
            // Dropping the stage would write the flows in the table to a file.
            std::mem::forget(stage);
            return Ok(());
        }
        stage.begin_batch();
        stage.prefetch(batch.iter().map(|(bytes, _)| *bytes));
        for &(bytes, ns) in &batch {
            black_box(stage.frame(&received(bytes, ns)));
        }
        stage.end_batch();
    }
}

fn flows(frames: &[Vec<u8>], times: usize) -> Outcome {
    metered(frames, times, false)
}

/// Counts flows and searches for names in frames without names, the usual case.
fn names(frames: &[Vec<u8>], times: usize) -> Outcome {
    let is_dns = |it: &&Vec<u8>| Headers::innermost(it).tuple.dst_port == 53;
    let frames: Vec<_> = frames.iter().filter(|it| !is_dns(it)).cloned().collect();
    metered(&frames, times, true)
}

fn metered(frames: &[Vec<u8>], times: usize, names: bool) -> Outcome {
    let mut meter = meter(names)?;
    for frame in in_turn(frames, times) {
        let outer = Headers::parse(frame);
        let inner = outer.descend(frame);
        let inner = inner.as_ref().unwrap_or(&outer);
        meter.count(&Frame::new(frame, len(frame), NS), &outer, inner);
    }
    std::mem::forget(meter);
    Ok(())
}

/// Runs the reduction stage with flow records and no reduction.
fn flows_staged(frames: &[Vec<u8>], times: usize) -> Outcome {
    staged(
        frames,
        times,
        CaptureConfig::default(),
        Vec::new(),
        observer()?,
    )
}

/// Runs the reduction stage with flow records and a limit per flow.
fn flows_cut(frames: &[Vec<u8>], times: usize) -> Outcome {
    let (capture, limit) = limit();
    staged(frames, times, capture, vec![limit], observer()?)
}

fn observer() -> Result<Observer, Box<dyn Error>> {
    Ok(Observer {
        flows: Some(meter(false)?),
        ..Observer::default()
    })
}

/// Returns the meter of a queue's flow records. The writer is leaked, and the caller leaks the meter, so
/// that no file is written.
fn meter(names: bool) -> Result<Meter, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let plan = FlowsPlan {
        dir: dir.path().to_owned(),
        interval_ns: u64::MAX,
        active_ns: u64::MAX,
        idle_ns: u64::MAX,
        capacity: 1024,
        names,
    };
    let writer = FlowWriter::start(&plan, 1)?;
    let meter = writer
        .meter(0, 0, PortLabels::default())
        .ok_or("no meter")?();
    std::mem::forget(writer);
    Ok(meter)
}

/// Queue whose WRs complete in the order of posting, a batch at a time. It sets the stop flag when the
/// configured number of frames have completed.
struct Endless {
    next: u32,
    wrs: u32,
    /// Number of frames left to complete.
    left: usize,
    control: Arc<Control>,
}

#[allow(unsafe_code)]
// SAFETY: `post` marks the slots whose tokens it consumes; no device writes to the slots.
unsafe impl Queue for Endless {
    #[inline]
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        let count = limit.min(self.left);
        let facts = FrameFacts {
            len: 64,
            ..FrameFacts::default()
        };
        for _ in 0..count {
            account.enter(self.next.into(), 0, facts)?;
            self.next = (self.next + 1) % self.wrs;
        }
        self.left -= count;
        if count == 0 {
            self.control.stop.store(true, Ordering::Release);
        }
        Ok(())
    }

    #[inline]
    fn post(
        &mut self,
        posted: &mut [bool],
        slots: impl Iterator<Item = Slot>,
        _memory: &SlotMemory,
        _attr: RingAttr,
    ) -> Result<u32, i32> {
        let mut count = 0;
        for slot in slots {
            posted[slot.index() as usize] = true;
            count += 1;
        }
        Ok(count)
    }

    fn set_state(&mut self, _from: Option<WqState>, _state: WqState) -> Result<(), VerbsError> {
        Ok(())
    }

    fn set_cvlan_stripping(&mut self, _on: bool) -> Result<(), VerbsError> {
        Ok(())
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self, _wake: Wake) -> Result<(), VerbsError> {
        Ok(())
    }

    fn take_event(&mut self) -> bool {
        false
    }
}

/// Outlet that computes the address and the time of each frame.
struct Look;

impl Outlet for Look {
    #[inline]
    fn take(
        &mut self,
        frames: &mut Vec<Filled>,
        memory: &SlotMemory,
        stamper: &mut Stamper,
    ) -> Taken {
        for filled in frames.iter() {
            black_box((filled.bytes(memory), stamper.ns(filled)));
        }
        Taken {
            captured: frames.len() as u64,
            ..Taken::default()
        }
    }
}

fn rx_loop(_: &[Vec<u8>], times: usize) -> Outcome {
    let attr = RingAttr {
        wrs: 512,
        buffer: 2048,
        max_sge: 1,
        ..RingAttr::default()
    };
    let control = Arc::<Control>::default();
    let queue = Endless {
        next: 0,
        wrs: attr.wrs,
        left: times,
        control: Arc::clone(&control),
    };
    let hashing = Hashing {
        toeplitz: Toeplitz::new(&RssKey::SYMMETRIC),
        depth: HashDepth::L3,
    };
    let worker = Worker {
        queue: 0,
        ring: Ring::without_device(queue, attr)?,
        outlet: Look,
        batch: BATCH,
        idle: Idle::Spin,
        counters: Arc::default(),
        clock: StampSource::Batch,
        control,
        budget: None,
        wq_fatal: Arc::default(),
        orders: Arc::new(LoopRequests::new(0)),
        sampler: LoadSampler::new(
            Arc::new(hashing),
            Arc::new(QueueLoad::new(1)),
            SamplingRate::Loosely,
        ),
        replacements: None,
    };
    let (_, ended) = worker.run();
    black_box(ended);
    Ok(())
}

fn pcap(frames: &[Vec<u8>], times: usize) -> Outcome {
    encode(frames, times, &PcapEncoder::default())
}

fn pcapng(frames: &[Vec<u8>], times: usize) -> Outcome {
    encode(frames, times, &PcapngEncoder::default())
}

/// Encodes frames into blocks. There are enough blocks that the sink never waits.
fn encode<E: Encoder>(frames: &[Vec<u8>], times: usize, encoder: &E) -> Outcome {
    let dir = tempfile::tempdir()?;
    let files = WriterConfig::new(OutputPlan::pcap(dir.path(), 64 << 20), 2048);
    let (writer, mut sinks) = Writer::start(&files, encoder, &[Arc::default()])?;
    let mut sink = sinks.pop().ok_or("no sink")?;
    for (at, bytes) in in_turn(frames, times).enumerate() {
        if at % BATCH == 0 {
            sink.begin_batch();
        }
        black_box(sink.frame(&received(bytes, NS + at as u64)));
    }
    // No file is needed.
    std::mem::forget(sink);
    std::mem::forget(writer);
    Ok(())
}

fn received(bytes: &[u8], ns: u64) -> Frame<'_> {
    Frame::new(bytes, len(bytes), ns)
}

fn len(frame: &[u8]) -> u32 {
    u32::try_from(frame.len()).unwrap_or(u32::MAX)
}
