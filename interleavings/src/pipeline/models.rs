//! The models, each small enough for loom to go through all of it within seconds.

use super::{
    Consumer, Frame, Verdict,
    resequencer::{Resequencer, ResequencerAttr},
    work_batch::{Item, WorkBatch},
};
use crate::{
    clock::{Conversion, Form, SharedConversion, Words},
    filter::{Filter, FilterCell, FilterReader},
    rx::{Filled, SlotMemory},
    stats::{Budget, QueueCounters},
    sync::{Arc, Mutex, Sender},
};
use loom::thread;

/// Runs a model under every order. `interruptions`: at how many steps at most a thread is interrupted though it could
/// go on; `None`: at all of them.
fn model(interruptions: Option<usize>, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = interruptions;
    builder.check(run);
}

/// Two words: what is not of one store shows in a pair of them, and each is treated as the others are.
#[test]
fn shared_words_are_read_whole_and_never_older_ones() {
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
fn a_shared_conversion_is_all_of_its_words() {
    let line = |n| Conversion {
        form: Form,
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
fn a_budget_is_never_exceeded_and_what_is_given_back_can_be_claimed() {
    model(None, || {
        let budget = Arc::new(Budget::new(3));
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let budget = Arc::clone(&budget);
                // A poll that finds one frame of two.
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
fn who_sees_that_the_filter_changed_finds_the_new_one() {
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
                "{now:?} from one batch to the next"
            );
            // Never back to an older one.
            assert!(before != Filter("udp") || now == before);
            assert!(!changed || now != Filter("ip"));
            before = now;
        }
        hand.join().unwrap();
        reader.refresh();
        assert_eq!(*reader.filter(), Filter("udp"));
    });
}

/// Writes down what it is given.
struct Written(Arc<Mutex<Vec<u8>>>);

impl Consumer for Written {
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        self.0.lock().unwrap().push(frame.bytes[0]);
        Verdict::Captured
    }

    fn changed(&mut self, _what: &str) {
        // In the order of the frames, as a note in a file.
        self.0.lock().unwrap().push(u8::MAX);
    }
}

/// A work batch of these frames; the number of a frame is its place in its round too.
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

/// Two parsers, three batches, of which both have a part in the first, and a filter that changes with the second. Each
/// parser hears of it with its next work batch.
fn hand_in(ordered: bool) {
    let sink = Arc::new(Mutex::new(Vec::new()));
    let home = Arc::new(Mutex::new(Vec::<WorkBatch>::new()));
    let counters = Arc::new(QueueCounters::new());
    // One more than there are frames.
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
                assert!(resequencer.hand_in(work_batch).is_ok());
            }
        })
    });
    // The loop, between two polls: a frame is counted before its slot is home.
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
    // The pool is whole: every token came home, once.
    let home = home.lock().unwrap();
    let tokens = home.iter().flat_map(|work_batch| &work_batch.items);
    let mut tokens: Vec<_> = tokens.map(|it| it.filled.bytes(&SlotMemory)[0]).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn frames_pass_the_resequencer_in_order_whoever_is_first() {
    model(Some(4), || hand_in(true));
}

#[test]
fn without_an_order_nothing_waits_at_the_resequencer() {
    model(Some(4), || hand_in(false));
}
