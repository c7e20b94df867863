//! `wqcap bench wire`: sends frames over a RAW_PACKET QP and receives them with the engine, on a
//! pair of real ports or on the software NIC. Measures the highest rate without loss as in RFC 2544
//! (26.1), and the age of a frame when it is stamped.
//!
//! A trial sends at one rate for a given time, and waits until no more frames arrive. Frames that
//! the receiver then lacks are lost. Its ledger and the NIC's counters show where.

mod generator;
mod traffic;

use super::{
    now_ns,
    report::{BenchReport, Measured},
    rounds::out_of_buffer,
};
use crate::{
    args::BenchWireArgs,
    cmd::check::{enter_model, settle},
    failure::Failure,
    term::output,
};
pub use generator::Generator;
use serde::Serialize;
use serde_json::json;
use std::{
    fs,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};
use traffic::{Traffic, number_in};
use wqcap_engine::{
    capture::{Capture, Limits, Snapshot},
    config::{Config, Format},
    filter::FilterCompiler,
    pipeline::{Consumer, Frame, Verdict},
    plan::Plan,
    sink::Count,
    verbs::Context,
};

/// Maximum number of frames in flight on the send queue of the benchmark.
const DEPTH: u32 = 1024;
/// Number of frames that the sender posts at once. At 64 bytes and 100 Gbit/s the pace deviates by
/// 0.2 us from an even one.
const BURST: usize = 32;
/// Time without a received frame after which the benchmark expects no more frames. It waits for
/// this only if frames are missing that no counter accounts for.
const QUIET: Duration = Duration::from_secs(1);
/// Number of bytes on the cable in addition to a frame: preamble, FCS, gap (IEEE 802.3, clause 4).
const OVERHEAD: u64 = 24;
/// Time limit for a probe frame to arrive, and for sent frames to leave the port.
const PATIENCE: Duration = Duration::from_secs(10);

/// Result of a trial of the wire benchmark, which sends at one rate.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Trial {
    /// Requested sending rate of the trial in frames per second.
    wanted: f64,
    /// Achieved sending rate of the trial in frames per second.
    pub sent_per_s: f64,
    /// Number of frames sent in the trial.
    sent: u64,
    /// Number of frames received in the trial.
    received: u64,
    /// Number of frames lost in the trial.
    lost: u64,
    /// Number of the trial's lost frames that found no receive WR.
    out_of_buffer: u64,
}

/// Statistics on the ages of probe frames when they are stamped, in nanoseconds.
#[derive(Debug, Serialize)]
struct Latency {
    /// Number of probe frames that arrived.
    probes: usize,
    /// Lowest age of a probe frame in nanoseconds.
    min: i64,
    /// Median age of the probe frames in nanoseconds.
    median: i64,
    /// 99th percentile of the ages of the probe frames in nanoseconds.
    p99: i64,
    /// Highest age of a probe frame in nanoseconds.
    max: i64,
}

/// Runs `wqcap bench wire`: searches for the highest rate without loss from one port to another,
/// and prints the results with the latency.
#[expect(clippy::disallowed_methods, reason = "the user chose the file")]
pub fn wire(args: &BenchWireArgs) -> Result<(), Failure> {
    if args.tx.is_none() {
        // The loopback wire returns every sent frame.
        enter_model(&["loopback".into()], &[])?;
    }
    let config = receiver(args)?;
    let mut results = Vec::new();
    // The frames of a file have their own sizes.
    let sizes = if args.replay.is_some() {
        &[64][..]
    } else {
        &args.sizes
    };
    for size in sizes {
        let traffic = Traffic::new(args, *size)?;
        results.push(measure(args, &config, &traffic)?);
    }
    let report = BenchReport::new(results);
    if let Some(path) = &args.report {
        fs::write(path, output::json(&report)?).map_err(|e| {
            Failure::failed(format!("cannot write the report {}: {e}", path.display()))
        })?;
    }
    report.print(args.json)?;
    if args.json {
        return Ok(());
    }
    report.results.iter().try_for_each(|it| {
        let latency = &it.more["latency_ns"];
        output::print(&format!(
            "{}: time from the arrival of a frame until it has its time stamp: min {} ns, p50 {} ns, p99 {} ns, max {} ns\n",
            it.name, latency["min"], latency["median"], latency["p99"], latency["max"]
        ))
    })
}

/// Returns the configuration of the benchmark's receiving capture, which only counts frames.
fn receiver(args: &BenchWireArgs) -> Result<Config, Failure> {
    let mut config = args.config.load()?;
    if let Some(device) = args.rx.as_ref().or(args.tx.as_ref()) {
        config.device.name = Some(device.clone());
        config.device.netdev = None;
    }
    if args.tx.is_none() {
        config.capture.queues.get_or_insert(1);
    }
    config.output.format = Format::None;
    Ok(config)
}

/// Measures the highest rate without loss and the latency for one kind of traffic.
fn measure(args: &BenchWireArgs, config: &Config, traffic: &Traffic) -> Result<Measured, Failure> {
    let plan = settle(&mut config.clone(), &FilterCompiler::default())?;
    let name = args
        .tx
        .clone()
        .unwrap_or_else(|| plan.port.device.name.clone());
    let context = Context::open(&name)?;
    let mut sender = Generator::make(&context, args.tx_port, DEPTH, &traffic.frames)?;
    let line = line_rate(&plan, traffic.mean_len());
    let (best, trials) = match args.rate {
        Some(rate) => {
            let trial = trial(&plan, &mut sender, rate as f64, args.seconds)?;
            (trial, vec![trial])
        }
        None => {
            let trial = |rate| trial(&plan, &mut sender, rate, args.seconds);
            search(line, args.loss / 100.0, trial)?
        }
    };
    drop(sender);
    let mut sender = Generator::make(&context, args.tx_port, DEPTH, &[traffic::probe()])?;
    let latency = latency(&plan, &mut sender, args.probes)?;
    let ns = 1e9 / best.sent_per_s;
    let name = format!("wire/{}", traffic.name);
    let result = Measured::from_pairs(name, "line", &[(ns, 1e9 / line)]);
    Ok(result
        .with("trials", json!(trials))
        .with("latency_ns", json!(latency)))
}

/// Returns the highest rate of the receiver's link for frames of `len` bytes, in frames per second.
pub fn line_rate(plan: &Plan, len: u64) -> f64 {
    let port = plan
        .port
        .device
        .ports
        .iter()
        .find(|it| it.number == plan.port.number);
    port.map_or(0.0, |it| it.rate_gbps) * 1e9 / (8 * (len + OVERHEAD)) as f64
}

/// Searches for the highest sending rate with at most the loss `loss`, to 1 %, by bisection from
/// the line rate down.
pub fn search(
    line: f64,
    loss: f64,
    mut trial: impl FnMut(f64) -> Result<Trial, Failure>,
) -> Result<(Trial, Vec<Trial>), Failure> {
    let mut trials = Vec::new();
    let (mut low, mut high) = (None::<Trial>, line);
    let mut wanted = line;
    loop {
        let it = trial(wanted)?;
        trials.push(it);
        if it.lost as f64 <= loss * it.sent as f64 {
            // The sender has reached its own limit if it cannot send at the requested rate.
            let own_limit = it.sent_per_s < 0.98 * wanted;
            low = Some(it);
            if own_limit || wanted >= line {
                return Ok((it, trials));
            }
        } else {
            high = it.sent_per_s.min(wanted);
        }
        let floor = low.map_or(0.0, |it| it.wanted);
        if let Some(best) = low
            && (high - floor) / high < 0.01
        {
            return Ok((best, trials));
        }
        wanted = f64::midpoint(floor, high);
        if low.is_none() && wanted < 100.0 {
            return Err(Failure::failed(
                "frames are lost at any rate; check that the ports are connected to each other",
            ));
        }
    }
}

/// Runs a trial: sends at `wanted` frames per second for `time`, and counts the received frames.
pub fn trial(
    plan: &Plan,
    sender: &mut Generator,
    wanted: f64,
    time: Duration,
) -> Result<Trial, Failure> {
    let mut capture = Capture::start_with(plan, Limits::default(), |_| Count)?;
    let (before, began) = (capture.snapshot(), Instant::now());
    let (mut sent, few) = (0, wanted * time.as_secs_f64() < 1000.0);
    while began.elapsed() < time {
        let due = (began.elapsed().as_secs_f64() * wanted) as u64;
        if sent + BURST as u64 <= due || few && sent < due {
            sent += sender.send(BURST.min((due - sent) as usize))? as u64;
        } else {
            std::hint::spin_loop();
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while !sender.is_done()? {
        if Instant::now() > deadline {
            return Err(Failure::failed(format!(
                "the sending port has not sent all frames of the benchmark within {PATIENCE:?}; check that its link is up"
            )));
        }
        thread::yield_now();
    }
    let took = began.elapsed();
    let (received, out_of_buffer) = settled(&mut capture, &before, sent);
    drop(capture.finish());
    Ok(Trial {
        wanted,
        sent_per_s: sent as f64 / took.as_secs_f64(),
        sent,
        received,
        // Other hosts may also send to the port.
        lost: sent.saturating_sub(received),
        out_of_buffer,
    })
}

/// Waits until all `sent` frames are counted or no more arrive. Returns the number of received
/// frames, and the number of frames that found no receive WR.
fn settled(capture: &mut Capture, before: &Snapshot, sent: u64) -> (u64, u64) {
    let without_wr = |at: &Snapshot| out_of_buffer(&at.nic).unwrap_or(0);
    let count = |capture: &Capture| -> (u64, u64) {
        let now = capture.snapshot();
        let received = now.queues.iter().map(|it| it.received).sum();
        (received, without_wr(&now) - without_wr(before))
    };
    let (mut last, mut since) = (count(capture), Instant::now());
    while last.0 + last.1 < sent && since.elapsed() < QUIET {
        let _ = capture.wait(Instant::now() + Duration::from_millis(5));
        let now = count(capture);
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// Measures the latency: sends numbered probe frames one by one, and takes the time from the send
/// call to each frame's time stamp.
fn latency(plan: &Plan, sender: &mut Generator, probes: u32) -> Result<Latency, Failure> {
    let stamps = Arc::new(Mutex::new(vec![None; probes as usize]));
    let mut capture = Capture::start_with(plan, Limits::default(), |_| {
        ProbeStamps(Arc::clone(&stamps))
    })?;
    let before = capture.snapshot();
    let mut sent_at = Vec::new();
    for number in 0..probes {
        let deadline = Instant::now() + PATIENCE;
        while !sender.write(traffic::NUMBER_AT, &number.to_be_bytes())? {
            if Instant::now() > deadline {
                return Err(Failure::failed(format!(
                    "the sending port has not sent a test frame within {PATIENCE:?}; check that its link is up"
                )));
            }
        }
        sent_at.push(now_ns());
        let _ = sender.send(1)?;
        let _ = capture.wait(Instant::now() + Duration::from_micros(500));
    }
    let _ = settled(&mut capture, &before, u64::from(probes));
    drop(capture.finish());
    let stamps = stamps.lock().map_or_else(|_| Vec::new(), |it| it.clone());
    let mut ages: Vec<i64> = stamps
        .iter()
        .zip(&sent_at)
        .filter_map(|(stamp, sent)| Some(stamp.as_ref()?.wrapping_sub(*sent).cast_signed()))
        .collect();
    ages.sort_unstable();
    let at = |share: f64| ages[((ages.len() - 1) as f64 * share) as usize];
    if ages.is_empty() {
        return Err(Failure::failed(
            "no probe frame arrived at the receiving port; check that the ports are connected to each other",
        ));
    }
    Ok(Latency {
        probes: ages.len(),
        min: at(0.0),
        median: at(0.5),
        p99: at(0.99),
        max: at(1.0),
    })
}

/// Frame consumer that records the time stamp of each probe frame, by its number.
struct ProbeStamps(Arc<Mutex<Vec<Option<u64>>>>);

impl Consumer for ProbeStamps {
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        if let (Some(number), Ok(mut seen)) = (number_in(frame.bytes), self.0.lock())
            && let Some(place) = seen.get_mut(number as usize)
        {
            place.get_or_insert(frame.ns);
        }
        Verdict::Captured
    }
}
