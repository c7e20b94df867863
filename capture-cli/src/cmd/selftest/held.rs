//! Frames that a device holds for a WQ without WQEs (delay drop), and its timeout.

use super::{
    frames::numbered,
    rig::{PATIENCE, Pass, Sender, WRS, accepted},
    run::SelftestRun,
};
use std::{
    thread,
    time::{Duration, Instant},
};
use wqcap_engine::{device::counters::NicReader, verbs::DELAY_DROP};

/// Subject of the selftest's findings on held frames.
const SUBJECT: &str = "delay_drop";
/// Time for which the test keeps the queue full. It is less than the driver's timeout of 100 ms
/// (`MLX5_MAX_DELAY_DROP_TIMEOUT_MS` of drivers/infiniband/hw/mlx5/mlx5_ib.h).
const FULL: Duration = Duration::from_millis(10);
/// Time limit for the device to drop and count a held frame.
const DROPPED: Duration = Duration::from_secs(2);

/// Tests that the device holds a frame without a free WQE until the queue has one, or until the
/// timeout.
pub fn held(run: &mut SelftestRun, sender: &Sender, netdev: Option<&str>) {
    let id = "held: arrives when the queue has room";
    if !accepted(run, "wq/flag/delay_drop") {
        return run.record_not_asked(SUBJECT, id, "the device refused the flag");
    }
    run.announce("sending frames to a full queue");
    let pass = Pass::new("held", SUBJECT).with_flags(DELAY_DROP);
    let frames: Vec<_> = (0..=WRS).map(|n| numbered(1, 40, n)).collect();
    let Some((mut rig, mut generator)) = pass.open(run, sender, &frames) else {
        return;
    };
    let reader = NicReader::start(run.context.name(), run.port, netdev, false);
    let lost = || reader.growth().get("out_of_buffer")?.value();
    let mut fill = || {
        let (mut sent, began) = (0, Instant::now());
        while sent <= WRS && began.elapsed() < PATIENCE {
            sent += generator.send(1).map_or(0, |n| n as u32);
        }
    };
    fill();
    thread::sleep(FULL);
    let arrived: Vec<_> = std::iter::from_fn(|| rig.receive_within(FULL)).collect();
    let last = arrived.last().map(|(_, it)| &it.bytes) == frames.last();
    if run.is_lost() {
        return;
    }
    run.expect(SUBJECT, id, true, last, None);
    // No WQE is posted now until the device gives up.
    let (before, began) = (lost(), Instant::now());
    fill();
    while lost() == before && began.elapsed() < DROPPED {
        if run.is_over() {
            return;
        }
        thread::yield_now();
    }
    let waited = began.elapsed();
    if run.is_lost() {
        return;
    }
    let dropped = lost() > before;
    run.value(SUBJECT, "held: is dropped in the end", dropped);
    if dropped {
        let ms = waited.as_secs_f64() * 1e3;
        run.measured(SUBJECT, "held: is dropped after", ms, "ms", None);
    }
}
