//! One client, whatever it is connected by: what it may do, how much, and what it has asked for.
//!
//! A transport hands whole messages in, as long as [`Session::is_ready`], and sends what comes out.

use super::{
    backend::Done,
    limits::Bucket,
    mailbox::{Mailbox, Token},
    message::{Access, Answer, Body, Code, Command, Refusal, Request, VERSION},
    once::LONGEST_NAME,
    service::{Counters, Service},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Milliseconds between two pushes of statistics.
const INTERVALS: std::ops::RangeInclusive<u32> = 100..=3_600_000;

/// A client that may ask.
pub struct Session {
    token: Token,
    access: Access,
    service: Arc<Service>,
    mailbox: Arc<Mailbox>,
    counters: Arc<Counters>,
    bucket: Bucket,
    outstanding: u32,
    malformed: u32,
    subscription: Option<Subscription>,
}

struct Subscription {
    id: u64,
    interval: Duration,
    next: Instant,
}

/// What came of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this.
    Answer(String),
    /// The answer comes by mail.
    Later,
    /// Send this, and put the client out.
    Expel(String),
}

impl Session {
    /// Of the client `token`, whose mail comes to `mailbox`.
    #[must_use]
    pub fn new(
        token: Token,
        access: Access,
        service: &Arc<Service>,
        mailbox: &Arc<Mailbox>,
        counters: &Arc<Counters>,
    ) -> Self {
        Self {
            token,
            access,
            bucket: Bucket::new(&service.limits, Instant::now()),
            service: Arc::clone(service),
            mailbox: Arc::clone(mailbox),
            counters: Arc::clone(counters),
            outstanding: 0,
            malformed: 0,
            subscription: None,
        }
    }

    /// Whether it may ask now; if not, leave its messages where they are.
    pub fn is_ready(&mut self, now: Instant) -> bool {
        self.outstanding < self.service.limits.outstanding && self.bucket.wait(now).is_zero()
    }

    /// When there is something to do for it of itself: it may ask again, or wants to be told statistics.
    pub fn wait(&mut self, now: Instant) -> Option<Duration> {
        let rate = Some(self.bucket.wait(now)).filter(|wait| !wait.is_zero());
        let push = self
            .subscription
            .as_ref()
            .map(|it| it.next.saturating_duration_since(now));
        [rate, push].into_iter().flatten().min()
    }

    /// Takes one message.
    pub fn take(&mut self, text: &[u8], now: Instant) -> Step {
        self.bucket.take(now);
        Counters::count(&self.counters.requests);
        match self.read(text) {
            Ok(request) => self.perform(request, now),
            Err((id, refusal)) => {
                self.malformed += 1;
                let text = Answer::error(id, refusal).text();
                if self.malformed > self.service.limits.malformed {
                    Step::Expel(text)
                } else {
                    Step::Answer(text)
                }
            }
        }
    }

    /// Its mail came: an answer to a change.
    pub fn answered(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Whether answers are still to come by mail.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.outstanding > 0
    }

    /// What is to be pushed to it now. A client that does not keep up misses some.
    pub fn push(&mut self, now: Instant, keeps_up: bool) -> Option<String> {
        let it = self.subscription.as_mut().filter(|it| it.next <= now)?;
        it.next += it.interval;
        if it.next <= now {
            // What was missed is not made up for.
            it.next = now + it.interval;
        }
        if !keeps_up {
            return None;
        }
        let stats = self.service.look(&Command::Stats);
        Some(Answer::of(it.id, stats).text())
    }

    fn read(&self, text: &[u8]) -> Result<Request, (u64, Refusal)> {
        let malformed = |id, problem: String| (id, Refusal::new(Code::Malformed, problem));
        let request: Request = serde_json::from_slice(text).map_err(|e| {
            let (id, version) = id_and_version(text);
            match version {
                Some(version) if version != u64::from(VERSION) => malformed(id, wrong(version)),
                _ => malformed(id, format!("no request: {e}")),
            }
        })?;
        if request.version != VERSION {
            return Err(malformed(request.id, wrong(request.version.into())));
        }
        match &request.once {
            Some(name) if name.is_empty() || name.len() > LONGEST_NAME => Err(malformed(
                request.id,
                format!(
                    "once has {} bytes; 1 to {LONGEST_NAME} are allowed",
                    name.len()
                ),
            )),
            _ => Ok(request),
        }
    }

    fn perform(&mut self, request: Request, now: Instant) -> Step {
        let Request {
            id, once, command, ..
        } = request;
        if command.is_change() {
            if self.access < Access::ReadWrite {
                let refusal = Refusal::new(
                    Code::Denied,
                    "you may look but not change anything; that takes read-write access",
                );
                return Step::Answer(Answer::error(id, refusal).text());
            }
            self.outstanding += 1;
            let (mailbox, token) = (Arc::clone(&self.mailbox), self.token);
            let done = Done::new(move |outcome| {
                mailbox.put(token, Answer::of(id, outcome.map(Body::Changed)).text());
            });
            self.service.change(&command, once.as_deref(), done);
            return Step::Later;
        }
        let result = match command {
            Command::Subscribe { interval_ms } => self.subscribe(id, interval_ms, now),
            command => self.service.look(&command),
        };
        Step::Answer(Answer::of(id, result).text())
    }

    fn subscribe(&mut self, id: u64, interval_ms: u32, now: Instant) -> Result<Body, Refusal> {
        if !INTERVALS.contains(&interval_ms) {
            return Err(Refusal::new(
                Code::Malformed,
                format!(
                    "interval_ms = {interval_ms}; {} to {} are allowed",
                    INTERVALS.start(),
                    INTERVALS.end()
                ),
            ));
        }
        self.subscription = Some(Subscription {
            id,
            interval: Duration::from_millis(interval_ms.into()),
            next: now,
        });
        Ok(Body::Subscribed { interval_ms })
    }
}

fn wrong(version: u64) -> String {
    format!("version {version}; this service speaks version {VERSION}")
}

/// What can be told of a message that is no request.
fn id_and_version(text: &[u8]) -> (u64, Option<u64>) {
    let value: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    let number = |name: &str| value.get(name).and_then(serde_json::Value::as_u64);
    (number("id").unwrap_or(0), number("version"))
}

#[cfg(test)]
mod tests {
    use super::super::{backend::Backend, limits::Limits, message::*};
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Mutex;

    /// Takes changes and tells their outcome when asked to.
    #[derive(Default)]
    struct Slow(Mutex<Vec<Done>>);

    impl Backend for Slow {
        fn status(&self) -> CaptureStatus {
            CaptureStatus::default()
        }
        fn stats(&self) -> Stats {
            Stats::default()
        }
        fn devices(&self) -> Result<Value, Refusal> {
            Ok(json!([]))
        }
        fn plan(&self) -> Result<Value, Refusal> {
            Err(Refusal::new(Code::State, "none"))
        }
        fn change(&self, _: &Command, done: Done) {
            self.0.lock().unwrap().push(done);
        }
    }

    struct Bench {
        backend: Arc<Slow>,
        mailbox: Arc<Mailbox>,
        session: Session,
        now: Instant,
    }

    fn bench(access: Access) -> Bench {
        let backend = Arc::new(Slow::default());
        let service = Service::new(Arc::clone(&backend) as _, Limits::default());
        let mailbox = Arc::new(Mailbox::new().unwrap());
        Bench {
            session: Session::new(7, access, &service, &mailbox, &Arc::default()),
            backend,
            mailbox,
            now: Instant::now(),
        }
    }

    impl Bench {
        fn ask(&mut self, value: Value) -> Step {
            self.session.take(value.to_string().as_bytes(), self.now)
        }

        fn refused(&mut self, value: Value) -> Refusal {
            match self.ask(value) {
                Step::Answer(text) => {
                    match serde_json::from_str::<Answer>(&text).unwrap().outcome {
                        Outcome::Error(refusal) => refusal,
                        Outcome::Ok(body) => panic!("{body:?}"),
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn command(id: u64, word: &str) -> Value {
        json!({"version": 1, "id": id, "command": {"do": word}})
    }

    #[test]
    fn who_may_look_may_not_change() {
        let mut bench = bench(Access::ReadOnly);
        assert!(
            matches!(bench.ask(command(1, "status")), Step::Answer(text) if text.contains("\"ok\""))
        );
        assert_eq!(bench.refused(command(2, "stop")).code, Code::Denied);
        assert!(bench.backend.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_change_is_answered_by_mail_and_counts_until_then() {
        let mut bench = bench(Access::ReadWrite);
        let most = Limits::default().outstanding;
        for id in 0..most {
            assert!(bench.session.is_ready(bench.now));
            assert_eq!(bench.ask(command(id.into(), "rotate")), Step::Later);
        }
        assert!(!bench.session.is_ready(bench.now));
        let done = bench.backend.0.lock().unwrap().remove(0);
        done.tell(Ok(Changed::default()));
        let mails = bench.mailbox.take();
        assert_eq!((mails.len(), mails[0].0), (1, 7));
        assert!(mails[0].1.contains("\"id\":0"));
        bench.session.answered();
        assert!(bench.session.is_ready(bench.now));
    }

    #[test]
    fn a_named_change_is_carried_out_once() {
        let mut bench = bench(Access::ReadWrite);
        let named = json!({"version": 1, "id": 1, "once": "n", "command": {"do": "rotate"}});
        assert_eq!(bench.ask(named.clone()), Step::Later);
        assert_eq!(bench.ask(named.clone()), Step::Later);
        let done = bench.backend.0.lock().unwrap().pop().unwrap();
        done.tell(Ok(Changed::default()));
        assert_eq!(bench.mailbox.take().len(), 2);
        assert_eq!(bench.ask(named), Step::Later);
        assert_eq!(bench.mailbox.take().len(), 1);
        assert!(
            bench.backend.0.lock().unwrap().is_empty(),
            "carried out once"
        );
    }

    #[test]
    fn garbage_is_answered_a_few_times() {
        let mut bench = bench(Access::ReadWrite);
        let refusal = bench.refused(json!({"version": 2, "id": 1, "command": {"do": "x"}}));
        assert!(refusal.message.contains("speaks version 1"), "{refusal:?}");
        let name = "n".repeat(65);
        let refusal =
            bench.refused(json!({"version": 1, "id": 1, "once": name, "command": {"do": "stop"}}));
        assert!(refusal.message.contains("65 bytes"), "{refusal:?}");
        let mut answered = 2;
        while let Step::Answer(text) = bench.session.take(b"\xff{", bench.now) {
            assert!(text.contains("malformed"));
            answered += 1;
        }
        assert_eq!(answered, Limits::default().malformed);
    }

    #[test]
    fn requests_beyond_the_rate_wait() {
        let mut bench = bench(Access::ReadOnly);
        let mut asked = 0;
        while bench.session.is_ready(bench.now) {
            let _ = bench.ask(command(1, "status"));
            asked += 1;
        }
        assert_eq!(asked, Limits::default().burst);
        let wait = bench.session.wait(bench.now).unwrap();
        assert!(bench.session.is_ready(bench.now + wait * 2));
    }

    #[test]
    fn statistics_are_pushed_each_interval_to_those_who_keep_up() {
        let mut bench = bench(Access::ReadOnly);
        let subscribe =
            |ms| json!({"version": 1, "id": 5, "command": {"do": "subscribe", "interval_ms": ms}});
        assert_eq!(bench.refused(subscribe(99)).code, Code::Malformed);
        assert!(matches!(bench.ask(subscribe(1000)), Step::Answer(_)));
        let mut now = bench.now;
        assert!(bench.session.push(now, true).unwrap().contains("\"id\":5"));
        assert_eq!(bench.session.push(now, true), None);
        assert_eq!(bench.session.wait(now), Some(Duration::from_secs(1)));
        now += Duration::from_secs(1);
        assert_eq!(bench.session.push(now, false), None, "it does not keep up");
        now += Duration::from_secs(1);
        assert!(bench.session.push(now, true).is_some());
        now += Duration::from_secs(60);
        assert!(bench.session.push(now, true).is_some());
        assert!(
            bench.session.push(now, true).is_none(),
            "missed pushes are gone"
        );
    }
}
