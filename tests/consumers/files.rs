//! Example program `files DEVICE FOLDER`: captures a port into files until the port goes down, then
//! prints the number of frames in the files.

use std::{
    error::Error,
    time::{Duration, Instant},
};
use wqcap_engine::{
    Wakeup,
    capture::{Capture, Limits, Resources},
    config::{Config, OnPortDown, Size},
    device,
    plan::Plan,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut config = Config::default();
    config.device.name = args.next();
    config.capture.on_port_down = Some(OnPortDown::Stop);
    config.output.dir = args.next().ok_or("usage: files DEVICE FOLDER")?.into();
    config.output.buffer = Some(Size(16 << 20));
    let plan = Plan::new(&config, &device::list()?)?;
    let mut capture = Capture::start(
        &plan,
        &Resources::default(),
        Limits::default(),
        &Wakeup::new()?,
    )?;
    while !capture.wait(Instant::now() + Duration::from_secs(1)) {}
    let report = capture.finish();
    report.queues.iter().try_for_each(|queue| queue.check())?;
    let captured: u64 = report.queues.iter().map(|it| it.captured).sum();
    println!("{captured} frames captured");
    Ok(())
}
