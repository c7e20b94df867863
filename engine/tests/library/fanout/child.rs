//! Child process of each test: a capture with consumers that check the frames they get.

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

/// Returns the numeric setting `key` of the parent.
fn order(key: &str) -> Option<u64> {
    text(key).map(|it| it.parse().expect("a number"))
}

fn text(key: &str) -> Option<String> {
    env::var(format!("FANOUT_{key}")).ok()
}

/// Record of the frames that all consumers got.
#[derive(Default)]
struct Seen {
    frames: u64,
    /// Highest wire number among the frames.
    last_number: u64,
    /// Parser of each flow, and the number of its last frame.
    flows: HashMap<FlowKey, (ConsumerPlace, u64)>,
    /// Number of frames that came after a later frame of their flow.
    disorder: u64,
    /// Number of frames that came to another parser than the previous frame of their flow.
    strays: u64,
}

/// Consumer that checks the frames of one parser.
struct Looking {
    place: ConsumerPlace,
    seen: Arc<Mutex<Seen>>,
    /// Processing time per frame.
    delay: Duration,
    /// Number of frames since the last pause.
    unpaused: u32,
    /// Number of frames after which the consumer panics.
    panic_after: u64,
    /// Number of frames after which a filter is set that rejects all frames of later rounds.
    filter_after: u64,
    filter: Arc<OnceLock<CaptureHandle>>,
}

impl Consumer for Looking {
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        self.pause();
        let number = u64::from_le_bytes(*frame.bytes.last_chunk().expect("frames hold a number"));
        let flow = FlowKey::from_headers(frame.bytes, &Headers::parse(frame.bytes));
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
        assert!(frames <= self.panic_after, "a panic that the test requests");
        if frames == self.filter_after {
            let filter = self.filter.wait();
            filter.set_filter("less 1").expect("a good filter");
        }
        Verdict::Captured
    }
}

impl Looking {
    /// Sleeps for the processing time of 64 frames after every 64th frame, because short sleeps take
    /// longer on a busy machine.
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
#[ignore = "run by the tests in main.rs as a child process"]
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
    let print = |name: &str, number: u64| println!("= {name} {number}");
    println!();
    print("received", total.received);
    for (name, of) in LINES {
        print(name, of(&total));
    }
    let unbalanced = report.queues.iter().filter(|it| it.check().is_err());
    print("unbalanced", unbalanced.count() as u64);
    let recovered = report
        .notes
        .lines()
        .filter(|it| it.contains("was recovered"));
    print("recoveries", recovered.count() as u64);
    let seen = seen
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    print("seen", seen.frames);
    print("disorder", seen.disorder);
    print("strays", seen.strays);
    print("last_number", seen.last_number);
    let mut places: Vec<_> = seen
        .flows
        .values()
        .map(|(place, _)| (place.queue, place.parser))
        .collect();
    places.sort_unstable();
    places.dedup();
    print("busy", places.len() as u64);
    println!("= end {:?}", report.end);
}
