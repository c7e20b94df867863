//! The child of each test: a capture with consumers that look at what they are given.

use std::{
    collections::HashMap,
    env,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};
use wqcap_engine::{
    capture::{Capture, CaptureHandle, Limits},
    config::{Config, OnPortDown},
    device,
    frame::{FlowKey, Headers},
    pipeline::{Consumer, ConsumerPlace, Frame, Verdict},
    plan::Plan,
    stats::{LINES, QueueLedger},
};

/// An order of the parent.
fn order(key: &str) -> Option<u64> {
    text(key).map(|it| it.parse().expect("a number"))
}

fn text(key: &str) -> Option<String> {
    env::var(format!("FANOUT_{key}")).ok()
}

/// What all consumers have seen together.
#[derive(Default)]
struct Seen {
    frames: u64,
    last_number: u64,
    /// Each flow's parser, and its last frame's number.
    flows: HashMap<FlowKey, (ConsumerPlace, u64)>,
    /// Frames that came before an earlier one of their flow.
    disorder: u64,
    /// Frames that came to another parser than those of their flow before.
    strays: u64,
}

/// A consumer that looks.
struct Looking {
    place: ConsumerPlace,
    seen: Arc<Mutex<Seen>>,
    /// How long a frame takes, and how many were taken since the last pause.
    delay: Duration,
    unpaused: u32,
    panic_after: u64,
    /// After so many frames: refuse everything from the next round on.
    filter_after: u64,
    filter: Arc<OnceLock<CaptureHandle>>,
}

impl Consumer for Looking {
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        self.pause();
        let number = u64::from_le_bytes(*frame.bytes.last_chunk().expect("frames hold a number"));
        let flow = FlowKey::of(frame.bytes, &Headers::parse(frame.bytes));
        let frames = {
            let mut seen = self.seen.lock().expect("no panic while it is locked");
            seen.frames += 1;
            seen.last_number = seen.last_number.max(number);
            let before = seen.flows.insert(flow, (self.place, number));
            if let Some((place, last)) = before {
                seen.disorder += u64::from(last >= number);
                seen.strays += u64::from(place != self.place);
            }
            seen.frames
        };
        assert!(frames <= self.panic_after, "as ordered");
        if frames == self.filter_after {
            let filter = self.filter.wait();
            filter.set_filter("less 1").expect("a good filter");
        }
        Verdict::Captured
    }
}

impl Looking {
    /// The time of many frames at once: a short sleep takes as long as the machine is busy.
    fn pause(&mut self) {
        const FRAMES: u32 = 64;
        self.unpaused += 1;
        if self.unpaused == FRAMES {
            self.unpaused = 0;
            std::thread::sleep(self.delay * FRAMES);
        }
    }
}

fn config() -> Config {
    let lines = [
        Some("capture.idle=sleep".to_owned()),
        Some("output.format=none".to_owned()),
        Some("pipeline.mode=fanout".to_owned()),
        text("parsers").map(|it| format!("pipeline.parsers_per_queue={it}")),
        text("on_full").map(|it| format!("pipeline.on_full={it}")),
        Some(format!("capture.queues={}", order("queues").unwrap_or(1))),
        Some(format!("capture.ring={}", order("ring").unwrap_or(256))),
        text("access").map(|it| format!("capture.access={it}")),
    ];
    let settings: Vec<_> = lines
        .iter()
        .flatten()
        .filter_map(|it| it.split_once('='))
        .collect();
    let mut config = Config::with_overrides("", &settings).expect("a good configuration");
    config.capture.on_port_down = Some(OnPortDown::Stop);
    config
}

#[test]
#[ignore = "the child of the others"]
fn child() {
    let devices = device::list().expect("the model's device");
    let plan = Plan::new(&config(), &devices).expect("a plan");
    let (seen, filter) = (Arc::<Mutex<Seen>>::default(), Arc::<OnceLock<_>>::default());
    let limits = Limits {
        count: order("count"),
        ..Limits::default()
    };
    let mut capture = Capture::start_with(&plan, limits, |place| Looking {
        place,
        seen: Arc::clone(&seen),
        delay: Duration::from_micros(order("delay_us").unwrap_or(0)),
        unpaused: 0,
        panic_after: order("panic_after").unwrap_or(u64::MAX),
        filter_after: order("filter_after").unwrap_or(u64::MAX),
        filter: Arc::clone(&filter),
    })
    .expect("a capture");
    assert!(filter.set(capture.share()).is_ok());
    let stop_after = order("stop_after").unwrap_or(u64::MAX);
    while !capture.wait(Instant::now() + Duration::from_millis(5)) {
        if seen.lock().expect("no panic").frames >= stop_after {
            break;
        }
    }
    let report = capture.finish();
    let total = QueueLedger::total(&report.queues);
    let tell = |name: &str, number: u64| println!("= {name} {number}");
    println!();
    tell("received", total.received);
    for (name, of) in LINES {
        tell(name, of(&total));
    }
    let unbalanced = report.queues.iter().filter(|it| it.check().is_err());
    tell("unbalanced", unbalanced.count() as u64);
    let recovered = report
        .notes
        .iter()
        .filter(|it| it.contains("was recovered"));
    tell("recoveries", recovered.count() as u64);
    let seen = seen
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    tell("seen", seen.frames);
    tell("disorder", seen.disorder);
    tell("strays", seen.strays);
    tell("last_number", seen.last_number);
    let mut places: Vec<_> = seen
        .flows
        .values()
        .map(|(place, _)| (place.queue, place.parser))
        .collect();
    places.sort_unstable();
    places.dedup();
    tell("busy", places.len() as u64);
    println!("= end {:?}", report.end);
}
