//! Program `misuse DEVICE`: misuse of the verbs crate that is possible without unsafe code. Each
//! attempt must fail with an error or a panic, before it reaches the device or foreign memory. The
//! program prints a line for each attempt that does not fail.
#![forbid(unsafe_code)]

use std::{
    error::Error,
    panic::{self, AssertUnwindSafe},
};
use wqcap_engine::{
    memory::Region,
    verbs::{
        Channel, CompletionStamps, Context, Cq, CqAttr, InspectedAttr, InspectedQueue, MessageMemory, Mr, Pd, RssQp,
        RwqTable, Srq, VerbsError, Wq, WqAttr,
    },
};
use wqcap_rss::{key::RssKey, profile::HashFields};

const WRS: u32 = 16;

/// Value of EINVAL.
const INVALID: i32 = 22;

/// Number of attempts that were not refused.
#[derive(Default)]
struct Attempts(u32);

impl Attempts {
    fn refuse(&mut self, what: &str, is_refused: bool) {
        if !is_refused {
            self.0 += 1;
            println!("{what}: not refused");
        }
    }

    /// Checks that the result is EINVAL.
    fn invalid<T>(&mut self, what: &str, result: Result<T, VerbsError>) {
        let is_refused = match result {
            Err(VerbsError::Verb { source, .. }) => source.raw_os_error() == Some(INVALID),
            _ => false,
        };
        self.refuse(what, is_refused);
    }

    /// Checks that the attempt panics.
    fn panics<T>(&mut self, what: &str, attempt: impl FnOnce() -> T) {
        let result = panic::catch_unwind(AssertUnwindSafe(attempt));
        self.refuse(what, result.is_err());
    }
}

fn cq(context: &Context, channel: Option<Channel>) -> Result<Cq, VerbsError> {
    let attr = CqAttr {
        entries: WRS,
        vector: 0,
        stamps: CompletionStamps::None,
        compression: None,
    };
    Cq::create(context, attr, channel)
}

fn wq(pd: &Pd, cq: &Cq, memory: &Mr) -> Result<Wq, VerbsError> {
    let attr = WqAttr {
        max_wr: WRS,
        max_sge: 1,
        flags: 0,
        striding: None,
    };
    Wq::create(pd, cq, memory, attr)
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = std::env::args().nth(1).ok_or("usage: misuse DEVICE")?;
    // The panics are expected.
    panic::set_hook(Box::new(|_| {}));
    let mut attempts = Attempts::default();

    // Slots of one message set with the memory of another set.
    let context = Context::open(&device)?;
    let pd = Pd::alloc(&context)?;
    let (mut messages, _slots) = MessageMemory::register(&pd, 4, 64)?;
    let (mut others, mut slots) = MessageMemory::register(&pd, 4, 64)?;
    let mut srq = Srq::create(&pd, &messages, 4)?;
    let mut slot = slots.pop().ok_or("four slots")?;
    attempts.panics("a slot of another set, read", || {
        messages.bytes(&slot).len()
    });
    attempts.panics("a slot of another set, written", || {
        messages.bytes_mut(&mut slot).fill(1);
    });
    attempts.panics("a slot of another set, posted", || {
        srq.post(&mut messages, slot).is_ok()
    });
    let slot = slots.pop().ok_or("four slots")?;
    let posted = srq.post(&mut others, slot);
    attempts.refuse(
        "messages that the SRQ does not hold",
        posted.is_err_and(|(_, e)| e.raw_os_error() == Some(INVALID)),
    );

    // Objects of another context of the same device. In this context, their numbers name other
    // objects.
    let other = Context::open(&device)?;
    let other_pd = Pd::alloc(&other)?;
    let memory = Mr::register(&pd, Region::allocate(4096, None)?)?;
    let other_memory = Mr::register(&other_pd, Region::allocate(4096, None)?)?;
    let (cq, other_cq) = (cq(&context, None)?, cq(&other, None)?);
    attempts.invalid(
        "a CQ with a channel of another context",
        self::cq(&context, Some(Channel::create(&other)?)),
    );
    attempts.invalid(
        "a WQ with a CQ of another context",
        wq(&pd, &other_cq, &memory),
    );
    attempts.invalid(
        "a WQ with memory of another context",
        wq(&pd, &cq, &other_memory),
    );
    let other_wq = wq(&other_pd, &other_cq, &other_memory)?;
    attempts.invalid(
        "a table with a WQ of another context",
        RwqTable::create(&context, [other_wq.handle()]),
    );
    let table = RwqTable::create(&other, [other_wq.handle()])?;
    attempts.invalid(
        "a QP over a table of another context",
        RssQp::create(&pd, &table, &RssKey::MICROSOFT, HashFields::NONE),
    );
    attempts.invalid(
        "an SRQ with messages of another context",
        Srq::create(&other_pd, &messages, 4),
    );

    // WQEs owned by the device.
    let mut queue = {
        let attr = InspectedAttr { wrs: WRS, buffer: 2048, ..InspectedAttr::default() };
        InspectedQueue::create(&context, &pd, attr)?
    };
    attempts.invalid("WQEs of a WQ that is not reset", queue.make_ready(true));

    // Lengths beyond the address space.
    for len in [usize::MAX, usize::MAX - 4096, usize::MAX / 2] {
        let refused = panic::catch_unwind(|| {
            Region::allocate(len, None).is_err()
                && Region::allocate_many(1, len).is_err()
                && Region::allocate_many(usize::MAX, len).is_err()
        });
        attempts.refuse(
            "a region beyond the address space",
            refused.is_ok_and(|it| it),
        );
    }

    println!("{} attempts were not refused", attempts.0);
    Ok(())
}
