//! Session of one authenticated client, over any transport: its rights, its limits, and its
//! subscription.
//!
//! A transport passes in complete messages while [`ClientSession::is_ready`], and sends the
//! results.

use super::{
    backend::{ChangeReply, Requester},
    idempotency::LONGEST_KEY,
    limits::TokenBucket,
    mailbox::{ClientId, Mailbox},
    service::{ControlService, TransportCounters},
};
use crate::{
    audit::{self, Peer},
    protocol::{
        AccessLevel, Answer, AnswerBody, Command, CommandKind, Query, Refusal, RefusalCode,
        Request, VERSION,
    },
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Range of allowed intervals in milliseconds between two pushes of statistics to a client.
const INTERVALS: std::ops::RangeInclusive<u32> = 100..=3_600_000;

/// State that the client sessions of one transport share.
#[derive(Clone)]
pub struct SessionContext {
    /// Control service that answers the clients' requests.
    pub service: Arc<ControlService>,
    /// Mailbox into which other threads put answers for this transport's clients.
    pub mailbox: Arc<Mailbox>,
    /// Counters of the transport over which the clients are connected.
    pub counters: Arc<TransportCounters>,
}

/// Session of an authenticated client of the control service, which may send requests.
pub struct ClientSession {
    client: ClientId,
    /// Name by which the audit trail refers to the client.
    pub who: Peer,
    access: AccessLevel,
    requester: Requester,
    context: SessionContext,
    bucket: TokenBucket,
    pending: u32,
    malformed: u32,
    subscription: Option<Subscription>,
}

struct Subscription {
    id: u64,
    interval: Duration,
    next: Instant,
}

/// Action of the transport after the session has handled a client's message.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionAction {
    /// The transport sends this answer to the client.
    Send(String),
    /// The transport sends no answer now; the answer will come through the mailbox.
    Wait,
    /// The transport sends this answer to the client, then disconnects the client.
    Disconnect(String),
}

impl ClientSession {
    /// Creates a session of the client `client`, whose name in the audit trail is `who`.
    #[must_use]
    pub fn new(
        client: ClientId,
        who: Peer,
        access: AccessLevel,
        requester: Requester,
        context: &SessionContext,
    ) -> Self {
        Self {
            client,
            who,
            access,
            requester,
            bucket: TokenBucket::new(&context.service.limits, Instant::now()),
            context: context.clone(),
            pending: 0,
            malformed: 0,
            subscription: None,
        }
    }

    /// Returns `true` if the client may send a request now. Otherwise its messages wait in the
    /// transport.
    pub fn is_ready(&mut self, now: Instant) -> bool {
        self.pending < self.context.service.limits.pending && self.bucket.wait(now).is_zero()
    }

    /// Returns the time until the client's rate allows another request, or until statistics for it
    /// are due; `None`: neither is awaited.
    pub fn wait(&mut self, now: Instant) -> Option<Duration> {
        let rate = Some(self.bucket.wait(now)).filter(|wait| !wait.is_zero());
        let push = self
            .subscription
            .as_ref()
            .map(|it| it.next.saturating_duration_since(now));
        [rate, push].into_iter().flatten().min()
    }

    /// Handles one message of the client, and returns the transport's next action.
    pub fn handle(&mut self, text: &[u8], now: Instant) -> SessionAction {
        self.bucket.take(now);
        self.context.counters.update(|it| it.requests += 1);
        match parse(text) {
            Ok(request) => self.perform(request, now),
            Err((id, refusal)) => {
                self.malformed += 1;
                audit::log_refusal(&self.who, "a message", &refusal);
                let text = Answer::error(id, refusal).text();
                if self.malformed > self.context.service.limits.malformed {
                    SessionAction::Disconnect(text)
                } else {
                    SessionAction::Send(text)
                }
            }
        }
    }

    /// Records that the answer to a pending change of the client arrived in the mailbox.
    pub fn change_answered(&mut self) {
        self.pending = self.pending.saturating_sub(1);
    }

    /// Returns the client's access to the control service: read-only or read-write.
    #[must_use]
    pub fn access(&self) -> AccessLevel {
        self.access
    }

    /// Returns `true` if the client waits for the answer to a change, or for statistics of a
    /// subscription.
    #[must_use]
    pub fn expects_answers(&self) -> bool {
        self.has_pending() || self.subscription.is_some()
    }

    /// Returns `true` if answers to changes of the client are pending.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.pending > 0
    }

    /// Returns the statistics to push to the subscribed client, if they are due. A client that does
    /// not keep up misses some.
    pub fn due_statistics(&mut self, now: Instant, keeps_up: bool) -> Option<String> {
        let it = self.subscription.as_mut().filter(|it| it.next <= now)?;
        it.next += it.interval;
        if it.next <= now {
            // Missed pushes are skipped.
            it.next = now + it.interval;
        }
        if !keeps_up {
            return None;
        }
        let stats = self.context.service.query(Query::Stats);
        Some(Answer::new(it.id, stats).text())
    }

    fn perform(&mut self, request: Request, now: Instant) -> SessionAction {
        let Request {
            id, once, command, ..
        } = request;
        let result = match command.kind() {
            CommandKind::Query(query) => self.context.service.query(query),
            CommandKind::Subscription { interval_ms } => self.subscribe(id, interval_ms, now),
            CommandKind::Change => return self.change(id, &command, once.as_deref()),
        };
        if let Err(refusal) = &result {
            audit::log_refusal(&self.who, &audit::describe(&command), refusal);
        }
        SessionAction::Send(Answer::new(id, result).text())
    }

    /// Passes a change that the client requests to the control service, or refuses it.
    fn change(&mut self, id: u64, command: &Command, once: Option<&str>) -> SessionAction {
        if self.access < AccessLevel::ReadWrite {
            let refusal = Refusal::new(
                RefusalCode::Denied,
                "this client has read-only access; a change needs read-write access",
            );
            audit::log_refusal(&self.who, &audit::describe(command), &refusal);
            return SessionAction::Send(Answer::error(id, refusal).text());
        }
        self.pending += 1;
        let (mailbox, client) = (Arc::clone(&self.context.mailbox), self.client);
        let reply = ChangeReply::new(self.requester, move |outcome| {
            let answer = Answer::new(id, outcome.map(AnswerBody::Changed));
            mailbox.push(client, answer.text());
        });
        self.context.service.change(&self.who, command, once, reply);
        SessionAction::Wait
    }

    fn subscribe(
        &mut self,
        id: u64,
        interval_ms: u32,
        now: Instant,
    ) -> Result<AnswerBody, Refusal> {
        if !INTERVALS.contains(&interval_ms) {
            return Err(Refusal::new(
                RefusalCode::Malformed,
                format!(
                    "interval_ms = {interval_ms} is out of range; {} to {} milliseconds are allowed",
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
        Ok(AnswerBody::Subscribed { interval_ms })
    }
}

fn parse(text: &[u8]) -> Result<Request, (u64, Refusal)> {
    let malformed = |id, problem: String| (id, Refusal::new(RefusalCode::Malformed, problem));
    let request: Request = serde_json::from_slice(text).map_err(|e| {
        let (id, version) = id_and_version(text);
        match version {
            Some(version) if version != u64::from(VERSION) => malformed(id, wrong_version(version)),
            _ => malformed(
                id,
                format!("the received message is not a valid request: {e}"),
            ),
        }
    })?;
    if request.version != VERSION {
        return Err(malformed(request.id, wrong_version(request.version.into())));
    }
    match &request.once {
        Some(key) if key.is_empty() || key.len() > LONGEST_KEY => Err(malformed(
            request.id,
            format!(
                "the idempotency key `once` has {} bytes; 1 to {LONGEST_KEY} are allowed",
                key.len()
            ),
        )),
        _ => Ok(request),
    }
}

fn wrong_version(version: u64) -> String {
    format!("protocol version {version} is not supported; this service supports version {VERSION}")
}

/// Returns the request number and the protocol version of a message that is not a valid request; 0
/// and `None` if they are missing.
fn id_and_version(text: &[u8]) -> (u64, Option<u64>) {
    let value: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    let number = |name: &str| value.get(name).and_then(serde_json::Value::as_u64);
    (number("id").unwrap_or(0), number("version"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{backend::Backend, limits::ClientLimits};
    use super::*;
    use crate::protocol::{AnswerOutcome, CaptureStatus, Changed, Stats};
    use serde_json::{Value, json};
    use std::sync::Mutex;

    /// Backend that collects the replies to changes.
    #[derive(Default)]
    struct DeferringBackend(Mutex<Vec<ChangeReply>>);

    impl Backend for DeferringBackend {
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
            Err(Refusal::new(RefusalCode::State, "none"))
        }
        fn change(&self, _: &Command, reply: ChangeReply) {
            self.0.lock().unwrap().push(reply);
        }
    }

    pub struct Harness {
        backend: Arc<DeferringBackend>,
        mailbox: Arc<Mailbox>,
        pub session: ClientSession,
        now: Instant,
    }

    pub fn harness(access: AccessLevel) -> Harness {
        let backend = Arc::new(DeferringBackend::default());
        let context = SessionContext {
            service: ControlService::new(Arc::clone(&backend) as _, ClientLimits::default()),
            mailbox: Arc::new(Mailbox::new().unwrap()),
            counters: Arc::default(),
        };
        Harness {
            session: ClientSession::new(7, Peer::process(7, 7), access, Requester::Owner, &context),
            backend,
            mailbox: context.mailbox,
            now: Instant::now(),
        }
    }

    impl Harness {
        fn ask(&mut self, value: Value) -> SessionAction {
            self.session.handle(value.to_string().as_bytes(), self.now)
        }

        fn refused(&mut self, value: Value) -> Refusal {
            match self.ask(value) {
                SessionAction::Send(text) => {
                    match serde_json::from_str::<Answer>(&text).unwrap().outcome {
                        AnswerOutcome::Error(refusal) => refusal,
                        AnswerOutcome::Ok(body) => panic!("{body:?}"),
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn command(id: u64, word: &str) -> Value {
        json!({"version": 1, "id": id, "command": {"do": word}})
    }

    /// Each query gets the answer of its kind, and no other command is treated as a query.
    #[test]
    fn each_query_has_its_own_answer() {
        let mut harness = harness(AccessLevel::ReadOnly);
        let mut answer = |value| match harness.ask(value) {
            SessionAction::Send(text) => serde_json::from_str::<Answer>(&text).unwrap().outcome,
            other => panic!("{other:?}"),
        };
        use AnswerOutcome::{Error, Ok};
        let status = answer(command(1, "status"));
        assert!(matches!(status, Ok(AnswerBody::Status(_))), "{status:?}");
        let stats = answer(command(2, "stats"));
        assert!(matches!(stats, Ok(AnswerBody::Stats(_))), "{stats:?}");
        let devices = answer(command(3, "devices"));
        assert!(matches!(devices, Ok(AnswerBody::Devices(_))), "{devices:?}");
        // The backend has no plan and refuses; the status would be a wrong answer.
        let plan = answer(command(4, "plan"));
        assert!(matches!(plan, Error(it) if it.code == RefusalCode::State));
        let subscribe = json!({"do": "subscribe", "interval_ms": 1000});
        let subscribed = answer(json!({"version": 1, "id": 5, "command": subscribe}));
        let interval_ms = 1000;
        assert_eq!(subscribed, Ok(AnswerBody::Subscribed { interval_ms }));
        for word in ["start", "stop", "drain", "rotate", "reload", "shutdown"] {
            let refused = answer(command(6, word));
            assert!(
                matches!(refused, Error(it) if it.code == RefusalCode::Denied),
                "{word}"
            );
        }
    }

    #[test]
    fn a_read_only_client_may_not_change() {
        let mut harness = harness(AccessLevel::ReadOnly);
        assert!(
            matches!(harness.ask(command(1, "status")), SessionAction::Send(text) if text.contains("\"ok\""))
        );
        assert_eq!(
            harness.refused(command(2, "stop")).code,
            RefusalCode::Denied
        );
        assert!(harness.backend.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_change_is_pending_until_its_answer_is_in_the_mailbox() {
        let mut harness = harness(AccessLevel::ReadWrite);
        let most = ClientLimits::default().pending;
        for id in 0..most {
            assert!(harness.session.is_ready(harness.now));
            assert_eq!(
                harness.ask(command(id.into(), "rotate")),
                SessionAction::Wait
            );
        }
        assert!(!harness.session.is_ready(harness.now));
        let reply = harness.backend.0.lock().unwrap().remove(0);
        reply.send(Ok(Changed::default()));
        let answers = harness.mailbox.take();
        assert_eq!((answers.len(), answers[0].0), (1, 7));
        assert!(answers[0].1.contains("\"id\":0"));
        harness.session.change_answered();
        assert!(harness.session.is_ready(harness.now));
    }

    #[test]
    fn a_change_with_a_key_is_carried_out_once() {
        let mut harness = harness(AccessLevel::ReadWrite);
        let named = json!({"version": 1, "id": 1, "once": "n", "command": {"do": "rotate"}});
        assert_eq!(harness.ask(named.clone()), SessionAction::Wait);
        assert_eq!(harness.ask(named.clone()), SessionAction::Wait);
        let reply = harness.backend.0.lock().unwrap().pop().unwrap();
        reply.send(Ok(Changed::default()));
        assert_eq!(harness.mailbox.take().len(), 2);
        assert_eq!(harness.ask(named), SessionAction::Wait);
        assert_eq!(harness.mailbox.take().len(), 1);
        assert!(
            harness.backend.0.lock().unwrap().is_empty(),
            "carried out once"
        );
    }

    #[test]
    fn malformed_requests_are_answered_a_few_times() {
        let mut harness = harness(AccessLevel::ReadWrite);
        let refusal = harness.refused(json!({"version": 2, "id": 1, "command": {"do": "x"}}));
        assert!(
            refusal.message.contains("supports version 1"),
            "{refusal:?}"
        );
        let name = "n".repeat(65);
        let refusal = harness
            .refused(json!({"version": 1, "id": 1, "once": name, "command": {"do": "stop"}}));
        assert!(refusal.message.contains("65 bytes"), "{refusal:?}");
        let mut answered = 2;
        while let SessionAction::Send(text) = harness.session.handle(b"\xff{", harness.now) {
            assert!(text.contains("malformed"));
            answered += 1;
        }
        assert_eq!(answered, ClientLimits::default().malformed);
    }

    #[test]
    fn requests_beyond_the_rate_wait() {
        let mut harness = harness(AccessLevel::ReadOnly);
        let mut asked = 0;
        while harness.session.is_ready(harness.now) {
            let _ = harness.ask(command(1, "status"));
            asked += 1;
        }
        assert_eq!(asked, ClientLimits::default().burst);
        let wait = harness.session.wait(harness.now).unwrap();
        assert!(harness.session.is_ready(harness.now + wait * 2));
    }

    #[test]
    fn statistics_are_pushed_each_interval_to_a_client_that_keeps_up() {
        let mut harness = harness(AccessLevel::ReadOnly);
        let subscribe =
            |ms| json!({"version": 1, "id": 5, "command": {"do": "subscribe", "interval_ms": ms}});
        assert_eq!(harness.refused(subscribe(99)).code, RefusalCode::Malformed);
        assert!(matches!(
            harness.ask(subscribe(1000)),
            SessionAction::Send(_)
        ));
        let mut now = harness.now;
        assert!(
            harness
                .session
                .due_statistics(now, true)
                .unwrap()
                .contains("\"id\":5")
        );
        assert_eq!(harness.session.due_statistics(now, true), None);
        assert_eq!(harness.session.wait(now), Some(Duration::from_secs(1)));
        now += Duration::from_secs(1);
        assert_eq!(
            harness.session.due_statistics(now, false),
            None,
            "the client does not keep up"
        );
        now += Duration::from_secs(1);
        assert!(harness.session.due_statistics(now, true).is_some());
        now += Duration::from_secs(60);
        assert!(harness.session.due_statistics(now, true).is_some());
        assert!(
            harness.session.due_statistics(now, true).is_none(),
            "missed pushes are skipped"
        );
    }
}
