use super::*;
use wqcap_frame::Headers;

/// Time stamp of the first frame, in November 2023, not at a multiple of ten seconds: talker
/// windows start with the first frame.
const START: u64 = 1_700_000_007_000_000_000;
const MS: u64 = 1_000_000;

/// Returns a TCP frame over IPv4 from 10.0.0.`from`, with `len` bytes.
fn tcp(from: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend_from_slice(&[8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
    frame.extend_from_slice(&[10, 0, 0, from, 10, 0, 0, 200, 0, 9, 0, 80]);
    frame.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    frame.resize(len, 0);
    frame
}

fn arp() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&[2, 0, 0, 0, 0, 9, 8, 6]);
    frame.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    frame.resize(60, 0);
    frame
}

fn give(recorder: &mut Recorder, frame: &[u8], ns: u64) {
    let outer = Headers::parse(frame);
    let inner = outer.descend(frame);
    let inner = inner.as_ref().unwrap_or(&outer);
    let len = u32::try_from(frame.len()).unwrap();
    recorder.count(frame, len, ns, &outer, inner);
}

fn shares(talkers: &[Talker]) -> Vec<(&str, u64)> {
    talkers
        .iter()
        .map(|it| (it.address.as_str(), it.count))
        .collect()
}

#[test]
fn all_frames_are_counted_at_the_end() {
    let statistics = Statistics::new(2, 1);
    assert_eq!(statistics.snapshot().frames, 0);
    assert_eq!(statistics.snapshot().inter_arrival, None);
    for queue in 0..2 {
        let mut recorder = statistics.recorder(queue, true);
        for i in 0..100 {
            let ns = START + i * 1000;
            give(&mut recorder, &tcp(1, 60), ns);
            if i % 2 == 0 {
                give(&mut recorder, &tcp(2, 1500), ns);
            }
            recorder.handled(|| ns + 5000);
        }
        give(&mut recorder, &arp(), START + MS);
    }
    let it = statistics.snapshot();
    assert_eq!((it.frames, it.bytes), (302, 200 * 60 + 100 * 1500 + 120));
    assert_eq!(it.queues.len(), 2);
    assert_eq!(it.queues[1].queue, 1);
    assert_eq!(it.queues.iter().map(|q| q.frames).sum::<u64>(), 302);
    let tcp = Volume {
        frames: 300,
        bytes: 162_000,
    };
    assert_eq!(it.protocols["tcp"], tcp);
    assert_eq!(it.protocols["arp"].frames, 2);
    assert_eq!(it.protocols["udp"], Volume::default());
    assert_eq!(it.traits["ipv4"], tcp);
    assert_eq!(it.traits["malformed"].frames, 0);
    let sizes: Vec<_> = it.sizes.iter().map(|bin| bin.frames).collect();
    assert_eq!(sizes, [202, 0, 0, 0, 0, 100, 0, 0, 0, 0]);
    assert_eq!(
        shares(&it.talkers.by_bytes),
        [
            ("10.0.0.2", 150_000),
            ("10.0.0.1", 12_000),
            ("02:00:00:00:00:09", 120)
        ]
    );
    assert_eq!(
        shares(&it.talkers.by_frames),
        [
            ("10.0.0.1", 200),
            ("10.0.0.2", 100),
            ("02:00:00:00:00:09", 2)
        ]
    );
    let gaps = it.inter_arrival.unwrap();
    assert_eq!((gaps.count, gaps.min_ns), (300, 0));
    let hold = it.hold.unwrap();
    assert_eq!(hold.count, 200);
    assert!((4950..=5050).contains(&hold.p50_ns), "{hold:?}");
    let counts: Vec<_> = hold.up_to.iter().map(|bound| bound.count).collect();
    assert_eq!(counts, [0, 0, 200, 200, 200, 200, 200, 200, 200]);
}

#[test]
fn rates_cover_the_last_seconds_and_decrease_to_zero() {
    let statistics = Statistics::new(1, 1);
    let mut recorder = statistics.recorder(0, true);
    // 1000 frames per second, then ten times as many.
    for i in 0..5000 {
        give(&mut recorder, &tcp(1, 125), START + i * MS);
    }
    let it = statistics.snapshot();
    assert!((990.0..=1010.0).contains(&it.frames_per_s), "{it:?}");
    assert!((it.bits_per_s / it.frames_per_s - 1000.0).abs() < 1.0);
    for i in 0..50_000 {
        give(&mut recorder, &tcp(1, 125), START + 5000 * MS + i * MS / 10);
    }
    let rate = statistics.snapshot().frames_per_s;
    assert!((9900.0..=10_100.0).contains(&rate), "{rate}");
    // While no frame arrives, publications continue with the elapsed time.
    recorder.idle();
    let rate = statistics.snapshot().frames_per_s;
    give(&mut recorder, &tcp(1, 125), START + 30_000 * MS);
    let later = statistics.snapshot().frames_per_s;
    assert!(later < rate / 5.0, "{later} after {rate}");
}

#[test]
fn talkers_are_those_of_the_last_complete_window() {
    let statistics = Statistics::new(2, 1);
    let mut one = statistics.recorder(0, true);
    let mut two = statistics.recorder(1, true);
    let talkers = || shares_of(&statistics);
    for i in 0..10 {
        give(&mut one, &tcp(1, 60), START + i * 1000 * MS);
        give(&mut two, &tcp(2, 60), START + i * 1000 * MS);
    }
    // The first window is not complete: the talkers so far, as last published.
    assert_eq!(talkers(), [("10.0.0.1".into(), 9), ("10.0.0.2".into(), 9)]);
    give(&mut one, &tcp(3, 60), START + 10_000 * MS);
    give(&mut two, &tcp(3, 60), START + 10_000 * MS);
    assert_eq!(
        talkers(),
        [("10.0.0.1".into(), 10), ("10.0.0.2".into(), 10)]
    );
    // The second queue becomes silent, so its window is outdated.
    give(&mut one, &tcp(4, 60), START + 20_000 * MS);
    assert_eq!(talkers(), [("10.0.0.3".into(), 1)]);
    assert!((statistics.snapshot().talkers.over_s - 10.0).abs() < 1e-9);
    // Window without frames.
    give(&mut one, &tcp(4, 60), START + 40_000 * MS);
    assert_eq!(talkers(), []);
}

fn shares_of(statistics: &Statistics) -> Vec<(String, u64)> {
    let talkers = statistics.snapshot().talkers.by_frames;
    talkers
        .into_iter()
        .map(|it| (it.address, it.count))
        .collect()
}

#[test]
fn readers_never_see_half_of_a_publication() {
    let statistics = Statistics::new(1, 1);
    std::thread::scope(|scope| {
        let reader = statistics.clone();
        let looking = scope.spawn(move || {
            let mut last = 0;
            while last < 20_000 {
                let it = reader.snapshot();
                assert!(it.frames >= last);
                assert_eq!(it.bytes, it.frames * 100);
                assert_eq!(it.protocols["tcp"].frames, it.frames);
                assert_eq!(
                    it.sizes.iter().map(|bin| bin.frames).sum::<u64>(),
                    it.frames
                );
                last = it.frames;
            }
        });
        let mut recorder = statistics.recorder(0, true);
        for i in 0..20_000 {
            give(&mut recorder, &tcp(1, 100), START + i * 20 * MS);
        }
        drop(recorder);
        looking.join().unwrap();
    });
}

#[test]
fn without_the_systems_time_there_is_no_hold_time() {
    let statistics = Statistics::new(1, 1);
    let mut recorder = statistics.recorder(0, false);
    give(&mut recorder, &tcp(1, 100), START);
    recorder.handled(|| unreachable!("the clock is not read"));
    drop(recorder);
    assert_eq!(statistics.snapshot().hold, None);
}

#[test]
fn a_snapshot_survives_json() {
    let statistics = Statistics::new(1, 1);
    let mut recorder = statistics.recorder(0, true);
    give(&mut recorder, &tcp(1, 100), START);
    give(&mut recorder, &tcp(2, 100), START + MS);
    drop(recorder);
    let snapshot = statistics.snapshot();
    let text = serde_json::to_string(&snapshot).unwrap();
    assert_eq!(
        serde_json::from_str::<TrafficSnapshot>(&text).unwrap(),
        snapshot
    );
}

#[test]
fn a_queues_recorders_are_one_queue() {
    let statistics = Statistics::new(2, 2);
    for number in 0..4 {
        let mut recorder = statistics.recorder(number, true);
        for i in 0..=number as u64 {
            give(&mut recorder, &tcp(1, 60), START + i);
        }
    }
    let frames: Vec<_> = statistics
        .snapshot()
        .queues
        .iter()
        .map(|it| (it.queue, it.frames))
        .collect();
    assert_eq!(frames, [(0, 3), (1, 7)]);
}
