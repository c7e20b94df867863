//! Counts DNS queries on a port, with a custom consumer instead of output files.
//!
//!     wqcap model --wire pcap:dns.pcap -- target/debug/examples/dns mlx5_0
//!
//! On a real NIC the example runs without `wqcap model`, until it is interrupted.

use std::{
    error::Error,
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
    time::{Duration, Instant},
};
use wqcap_engine::{
    capture::{Capture, Limits},
    config::{Config, OnPortDown},
    device,
    frame::{Headers, protocol},
    pipeline::{Consumer, Frame, Verdict},
    plan::Plan,
};

/// Consumer of one thread that counts DNS queries into a sum shared by all threads.
struct Queries {
    sum: Arc<AtomicU64>,
}

impl Consumer for Queries {
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        let headers = Headers::parse(frame.bytes);
        let to_dns = headers.tuple.protocol == protocol::UDP && headers.tuple.dst_port == 53;
        // RFC 1035, 4.1.1: the third byte of a message begins with the QR bit, 0 in a query.
        let flags = headers.payload().and_then(|at| frame.bytes.get(at + 2));
        if to_dns && flags.is_some_and(|flags| flags & 0x80 == 0) {
            self.sum.fetch_add(1, Ordering::Relaxed);
            return Verdict::Captured;
        }
        Verdict::Filtered
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = Config::default();
    config.device.name = std::env::args().nth(1);
    config.capture.on_port_down = Some(OnPortDown::Stop);
    let plan = Plan::new(&config, &device::list()?)?;
    let sum = Arc::new(AtomicU64::new(0));
    let mut capture = Capture::start_with(&plan, Limits::default(), |_| Queries {
        sum: Arc::clone(&sum),
    })?;
    while !capture.wait(Instant::now() + Duration::from_secs(1)) {}
    let report = capture.finish();
    report.queues.iter().try_for_each(|queue| queue.check())?;
    println!("{} DNS queries", sum.load(Ordering::Relaxed));
    Ok(())
}
