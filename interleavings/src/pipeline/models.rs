//! Loom models, each small enough to be explored within seconds.

use super::{
    Consumer, Frame, Verdict,
    resequencer::{Resequencer, ResequencerAttr},
    work_batch::{Item, WorkBatch},
};
use crate::{
    clock::{Conversion, SharedConversion, StampForm, Words},
    filter::{Filter, FilterCell, FilterReader},
    rx::{Filled, SlotMemory},
    stats::{Budget, QueueCounters},
    sync::{Arc, Mutex, Sender},
};
use loom::thread;

/// Runs a model in every order of steps. `preemptions` is the maximum number of times that a
/// runnable thread is preempted; `None` for no limit.
fn model(preemptions: Option<usize>, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(run);
}

/// Models two words, enough to detect a load that mixes two stores. All words have the same code.
#[test]
fn shared_words_are_consistent_and_never_go_back() {
    model(None, || {
        let shared = Arc::new(Words::new([1; 2]));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.store([2; 2]))
        };
        let seen = [shared.load(), shared.load()];
        for it in seen {
            assert!(it == [1; 2] || it == [2; 2], "{it:?}");
        }
        assert!(seen[0] <= seen[1]);
        writer.join().unwrap();
        assert_eq!(shared.load(), [2; 2]);
    });
}

#[test]
fn a_shared_conversion_is_read_consistently() {
    let line = |n| Conversion {
        form: StampForm,
        base: n,
        base_ns: n + 1,
        slope: n + 2,
        base_mono_ns: n + 3,
    };
    model(None, move || {
        let shared = Arc::new(SharedConversion::new(line(10)));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.store(&line(20)))
        };
        let seen = shared.load();
        assert!(seen == line(10) || seen == line(20), "{seen:?}");
        writer.join().unwrap();
        assert_eq!(shared.load(), line(20));
    });
}

#[test]
fn a_budget_is_never_exceeded_and_returned_frames_can_be_claimed() {
    model(None, || {
        let budget = Arc::new(Budget::new(3));
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let budget = Arc::clone(&budget);
                // A poll that claims two frames and finds one.
                thread::spawn(move || {
                    let grant = budget.claim(2);
                    let captured = grant.min(1) as u64;
                    budget.settle(grant, captured);
                    captured
                })
            })
            .collect();
        let taken: u64 = takers.into_iter().map(|it| it.join().unwrap()).sum();
        assert!(taken <= 3 && !budget.is_used_up());
        let rest = budget.claim(9);
        assert_eq!(rest as u64, 3 - taken);
        budget.settle(rest, rest as u64);
        assert!(budget.is_used_up());
    });
}

#[test]
fn a_reader_that_sees_a_change_has_the_new_filter() {
    model(None, || {
        let cell = Arc::new(FilterCell::new(Filter("ip")));
        let mut reader = FilterReader::new(Arc::clone(&cell));
        let hand = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                cell.set(Filter("tcp"));
                cell.set(Filter("udp"));
            })
        };
        let mut before = reader.filter().clone();
        for _ in 0..2 {
            let changed = reader.refresh();
            let now = reader.filter().clone();
            assert!(
                changed || now == before,
                "the filter changed to {now:?} although refresh reported no change"
            );
            // The filter never goes back to an older one.
            assert!(before != Filter("udp") || now == before);
            assert!(!changed || now != Filter("ip"));
            before = now;
        }
        hand.join().unwrap();
        reader.refresh();
        assert_eq!(*reader.filter(), Filter("udp"));
    });
}

/// Consumer that records the first byte of each frame.
struct Written(Arc<Mutex<Vec<u8>>>);

impl Consumer for Written {
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        self.0.lock().unwrap().push(frame.bytes[0]);
        Verdict::Captured
    }

    fn filter_changed(&mut self, _what: &str) {
        // Recorded in the order of the frames, like a note in a file.
        self.0.lock().unwrap().push(u8::MAX);
    }
}

/// Builds a work batch of frames; the number of a frame is also its position in the round.
fn work_batch(round: u64, parts: usize, lane: usize, frames: &[u8]) -> WorkBatch {
    let item = |number: &u8| Item::new(Filled::new(*number), 0, u32::from(*number));
    WorkBatch {
        round,
        parts,
        lane,
        filter: None,
        items: frames.iter().map(item).collect(),
    }
}

/// Models two parsers and three batches. Both parsers have a part of the first batch. The filter
/// changes with the second, and each parser receives the change with its next work batch.
fn hand_in(ordered: bool) {
    let sink = Arc::new(Mutex::new(Vec::new()));
    let home = Arc::new(Mutex::new(Vec::<WorkBatch>::new()));
    let counters = Arc::new(QueueCounters::new());
    // The budget is one more than the number of frames.
    let budget = Arc::new(Budget::new(7));
    assert_eq!(budget.claim(7), 7);
    let resequencer = Arc::new(Resequencer::new(ResequencerAttr {
        sink: Written(Arc::clone(&sink)),
        ordered,
        memory: Arc::new(SlotMemory),
        counters: Arc::clone(&counters),
        budget: Some(Arc::clone(&budget)),
        home: Sender(Arc::clone(&home)),
    }));
    let filter = Arc::new(Filter("arp"));
    let first = [work_batch(0, 2, 0, &[0, 2]), work_batch(2, 1, 0, &[5])];
    let second = [work_batch(0, 2, 1, &[1]), work_batch(1, 1, 1, &[3, 4])];
    let parsers = [first, second].map(|mut work_batches| {
        work_batches[1].filter = Some(Arc::clone(&filter));
        let resequencer = Arc::clone(&resequencer);
        thread::spawn(move || {
            for work_batch in work_batches {
                assert!(resequencer.submit(work_batch).is_ok());
            }
        })
    });
    // This thread is the loop between two polls: a frame is counted before its slot is returned.
    let back: usize = home.lock().unwrap().iter().map(|it| it.items.len()).sum();
    assert!(counters.ended() >= back as u64);
    for parser in parsers {
        parser.join().unwrap();
    }
    let written = sink.lock().unwrap().clone();
    if ordered {
        assert_eq!(written, [0, 1, 2, u8::MAX, 3, 4, 5]);
    } else {
        let mut frames: Vec<_> = written.into_iter().filter(|it| *it < 9).collect();
        frames.sort_unstable();
        assert_eq!(frames, [0, 1, 2, 3, 4, 5]);
    }
    assert_eq!(counters.ended(), 6);
    assert!(!budget.is_used_up());
    budget.settle(1, 1);
    assert!(budget.is_used_up());
    // The pool is complete: every token was returned exactly once.
    let home = home.lock().unwrap();
    let tokens = home.iter().flat_map(|work_batch| &work_batch.items);
    let mut tokens: Vec<_> = tokens.map(|it| it.filled.bytes(&SlotMemory)[0]).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn the_resequencer_restores_the_order_of_frames() {
    model(Some(4), || hand_in(true));
}

#[test]
fn an_unordered_resequencer_passes_all_frames() {
    model(Some(4), || hand_in(false));
}
