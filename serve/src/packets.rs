//! Streams the frames of a query.
//!
//! ```text
//! query -> thread: extract_into -> pieces over a bounded channel -> body of the answer
//! ```
//!
//! The first pieces decide the head of the answer: no frame is 204, a short answer states in its
//! headers if it is complete, a long one in a trailer. In pcapng the last block states it as well.
//! Clients that accept no trailers take a pcap answer for complete if it has a regular end, so that
//! an incomplete one is broken off.
//!
//! Invariants: a piece that the client does not take within [`STALLED`] ends the work, and so does a
//! client that leaves. A request holds at most [`WAITING`] pieces besides the one being filled, and its
//! permit while it holds any.

use crate::{
    audit::{AnswerFacts, Counters, OpenAnswer},
    error::ApiError,
    permits::{ReadPermit, held},
};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header},
};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use std::{
    io::{self, ErrorKind, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use tokio::{runtime::Handle, sync::mpsc, time::timeout};
use wqcap_files::{
    extract::{ExtractQuery, Extracted, extract_into},
    format::{ETHERNET, pcap},
    merge::MergeError,
};

/// Time after which an answer is ended if its client does not read.
pub const STALLED: Duration = Duration::from_secs(60);
/// Maximum number of pieces of an answer, of at most 2 MiB each, that wait for the client.
const WAITING: usize = 4;
/// Time for which the head of an answer is delayed, so that the head of a short answer can state
/// its completeness.
const SHORT: Duration = Duration::from_millis(50);
/// Header and trailer that state whether an answer with packets is complete: `true` or `false`; in
/// the head of a long answer `trailer`.
pub(crate) const COMPLETE: HeaderName = HeaderName::from_static("wqcap-complete");
/// Header and trailer with the number of frames in an answer with packets.
pub(crate) const FRAMES: HeaderName = HeaderName::from_static("wqcap-frames");
/// Header and trailer with the reasons why an answer with packets is incomplete.
pub(crate) const LACKS: HeaderName = HeaderName::from_static("wqcap-lacks");
/// Maximum length in bytes of the HTTP header or trailer `Wqcap-Lacks`: the reasons why an answer
/// lacks frames.
const LONGEST_LACKS: usize = 1024;

/// Message from the thread that reads capture files to the task that sends the answer.
enum AnswerPiece {
    /// Form of the answer, which is the first message.
    Form(PacketsForm),
    /// Next bytes of the body of the answer with packets.
    Bytes(Bytes),
    /// The answer has ended with these counts and reasons of losses.
    End(AnswerFacts),
    /// The request is refused, and has no answer with packets.
    Refused(ApiError),
}

/// Form of an HTTP answer with packets.
#[derive(Clone, Copy, Debug)]
pub struct PacketsForm {
    /// Media type of the answer with packets.
    pub media_type: &'static str,
    /// Name under which a browser saves the answer as a file.
    pub file_name: &'static str,
    /// Set when an answer without frames is a capture file without frames instead of status 204.
    pub is_file_always: bool,
    /// Set when the client sees in the file, or in the trailers, that a long answer lacks frames.
    pub shows_losses: bool,
    /// Limit of the service on the length of the answer in bytes.
    pub max_bytes: u64,
}

impl PacketsForm {
    /// Returns `true` if the client would take a long answer for complete although it lacks frames.
    fn hides_losses(&self, facts: &AnswerFacts) -> bool {
        !self.shows_losses && !facts.losses.is_empty() && !facts.at_own_limit
    }
}

/// Answers a request with the frames of the query that `prepare` builds. The permit is held until
/// the capture files are read and the client has taken the answer.
pub async fn answer(
    prepare: impl FnOnce(&ReadPermit) -> Result<(ExtractQuery, PacketsForm), ApiError> + Send + 'static,
    permit: ReadPermit,
    open: Arc<OpenAnswer>,
    counters: Arc<Counters>,
) -> Result<Response<Body>, ApiError> {
    let (sender, mut pieces) = mpsc::channel(WAITING);
    let permit = Arc::new(permit);
    let of_answer = Arc::clone(&permit);
    let handle = Handle::current();
    let run = move || {
        // Dropped last: the end of the service waits for the audit lines of all permits.
        let permit = permit;
        let has_left = Arc::<AtomicBool>::default();
        let writer = PieceWriter {
            sender: sender.clone(),
            handle: handle.clone(),
            open: Arc::clone(&open),
            has_left: Arc::clone(&has_left),
        };
        let result = prepare(&permit).and_then(|(query, form)| {
            send(&handle, &sender, AnswerPiece::Form(form));
            read(&query, form, writer, || !sender.is_closed())
        });
        let has_left = has_left.load(Ordering::Relaxed) || sender.is_closed();
        match result {
            Err(e) => {
                if let Some(audited) = open.end() {
                    audited.refuse(&counters, e.status(), &e.to_string());
                }
                send(&handle, &sender, AnswerPiece::Refused(e));
            }
            // Without the last message the body ends with an error.
            Ok(_) if has_left => open.leave(&counters),
            Ok(facts) => {
                if let Some(audited) = open.end() {
                    audited.answer(&counters, &facts);
                }
                send(&handle, &sender, AnswerPiece::End(facts));
            }
        }
    };
    thread::Builder::new()
        .name("serve-read".into())
        .spawn(run)
        .map_err(ApiError::NoThread)?;
    let ended = || ApiError::Failed("the thread that reads the files ended early".into());
    let mut form = None;
    let mut bytes = Vec::new();
    loop {
        // The head of the answer waits for its first bytes, and for more of them only briefly.
        let next = match bytes.is_empty() {
            true => pieces.recv().await,
            false => match timeout(SHORT, pieces.recv()).await {
                Ok(next) => next,
                Err(_) => break,
            },
        };
        match next.ok_or_else(ended)? {
            AnswerPiece::Form(it) => form = Some(it),
            AnswerPiece::Refused(e) => return Err(e),
            AnswerPiece::End(facts) => {
                return Ok(short(bytes, &facts, form.ok_or_else(ended)?, of_answer));
            }
            AnswerPiece::Bytes(it) => bytes.push(it),
        }
        if bytes.len() > 1 {
            break;
        }
    }
    Ok(long(bytes, pieces, form.ok_or_else(ended)?, of_answer))
}

/// Reads the frames of a query from the capture files, and passes them to the answer.
fn read(
    query: &ExtractQuery,
    form: PacketsForm,
    mut writer: PieceWriter,
    is_wanted: impl Fn() -> bool,
) -> Result<AnswerFacts, ApiError> {
    let files = query.files.as_ref();
    if files.is_some_and(|it| it.finished.is_empty() && it.open.is_empty()) {
        // A file without frames; the caller replaces it by 204 where that is the form.
        let head = pcap::encode_header(pcap::NO_LIMIT, ETHERNET, None);
        let _ = writer.write(&head);
        return Ok(AnswerFacts {
            losses: files.map(|it| it.losses.clone()).unwrap_or_default(),
            ..AnswerFacts::default()
        });
    }
    match extract_into(query, Box::new(writer), |_, _| is_wanted()) {
        Ok(Extracted { written: it, .. }) => Ok(AnswerFacts {
            frames: it.frames,
            bytes: it.bytes,
            at_own_limit: it.at_limit && it.bytes < form.max_bytes && it.losses.len() == 1,
            losses: it.losses,
        }),
        Err(MergeError::Stopped) => Ok(AnswerFacts::default()),
        Err(e @ MergeError::Refused(_)) => Err(ApiError::Malformed(e.to_string())),
        Err(e) => Err(ApiError::Failed(e.to_string())),
    }
}

/// Sends a message to the task of the answer; returns `false` if the client has left or does not
/// read.
fn send(handle: &Handle, sender: &mpsc::Sender<AnswerPiece>, piece: AnswerPiece) -> bool {
    let sent = handle.block_on(async { timeout(STALLED, sender.send(piece)).await });
    matches!(sent, Ok(Ok(())))
}

/// Writer that passes the output of an extraction to the answer in pieces.
struct PieceWriter {
    sender: mpsc::Sender<AnswerPiece>,
    handle: Handle,
    /// Answer to which the pieces belong.
    open: Arc<OpenAnswer>,
    /// Set when the client has left, or does not read the answer.
    has_left: Arc<AtomicBool>,
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let piece = AnswerPiece::Bytes(Bytes::copy_from_slice(bytes));
        if !send(&self.handle, &self.sender, piece) {
            self.has_left.store(true, Ordering::Relaxed);
            return Err(ErrorKind::BrokenPipe.into());
        }
        self.open
            .sent
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a short answer with packets, whose headers state its completeness.
fn short(
    bytes: Vec<Bytes>,
    facts: &AnswerFacts,
    form: PacketsForm,
    permit: Arc<ReadPermit>,
) -> Response<Body> {
    let body = match facts.frames > 0 || form.is_file_always {
        true => bytes.concat(),
        false => Vec::new(),
    };
    let mut answer = match body.is_empty() {
        true => Response::new(Body::empty()),
        false => held::answer(body, permit),
    };
    if facts.frames == 0 && !form.is_file_always {
        *answer.status_mut() = StatusCode::NO_CONTENT;
    } else {
        add_form(answer.headers_mut(), form);
    }
    add_facts(answer.headers_mut(), facts);
    answer
}

/// Returns a long answer with packets, whose trailers state its completeness.
fn long(
    first: Vec<Bytes>,
    rest: mpsc::Receiver<AnswerPiece>,
    form: PacketsForm,
    permit: Arc<ReadPermit>,
) -> Response<Body> {
    let first = first
        .into_iter()
        .map(|it| Ok::<_, io::Error>(Frame::data(it)));
    let rest = stream::unfold(Some((rest, permit)), move |rest| async move {
        let (mut rest, permit) = rest?;
        match rest.recv().await {
            Some(AnswerPiece::Bytes(bytes)) => Some((Ok(Frame::data(bytes)), Some((rest, permit)))),
            Some(AnswerPiece::End(facts)) if form.hides_losses(&facts) => {
                let why = format!("the answer is incomplete: {}", facts.losses.join("; "));
                Some((Err(io::Error::other(why)), None))
            }
            Some(AnswerPiece::End(facts)) => {
                let mut trailers = HeaderMap::new();
                add_facts(&mut trailers, &facts);
                Some((Ok(Frame::trailers(trailers)), None))
            }
            // The body ends with an error, so that the client does not take it for complete.
            Some(AnswerPiece::Refused(e)) => Some((Err(io::Error::other(e.to_string())), None)),
            Some(AnswerPiece::Form(_)) | None => Some((Err(ErrorKind::UnexpectedEof.into()), None)),
        }
    });
    let body = StreamBody::new(stream::StreamExt::chain(stream::iter(first), rest));
    let mut answer = Response::new(Body::new(body));
    let headers = answer.headers_mut();
    add_form(headers, form);
    headers.insert(COMPLETE, HeaderValue::from_static("trailer"));
    let trailers = HeaderValue::from_static("wqcap-complete, wqcap-frames, wqcap-lacks");
    headers.insert(header::TRAILER, trailers);
    answer
}

fn add_form(headers: &mut HeaderMap, form: PacketsForm) {
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(form.media_type),
    );
    let disposition = format!("attachment; filename=\"{}\"", form.file_name);
    let disposition = HeaderValue::try_from(disposition);
    headers.extend(disposition.map(|it| (header::CONTENT_DISPOSITION, it)));
}

/// Adds headers or trailers with the number of frames in an answer and the reasons why it lacks
/// frames.
fn add_facts(headers: &mut HeaderMap, facts: &AnswerFacts) {
    let complete = match facts.losses.is_empty() {
        true => "true",
        false => "false",
    };
    headers.insert(COMPLETE, HeaderValue::from_static(complete));
    headers.insert(FRAMES, HeaderValue::from(facts.frames));
    if !facts.losses.is_empty() {
        // Names of files may have any characters.
        let text: String = facts
            .losses
            .join("; ")
            .chars()
            .take(LONGEST_LACKS)
            .collect();
        let plain = |it: char| {
            if it.is_ascii_graphic() || it == ' ' {
                it
            } else {
                '?'
            }
        };
        let text: String = text.chars().map(plain).collect();
        headers.extend(HeaderValue::try_from(text).map(|it| (LACKS, it)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permits::tests::with_one_taken;
    use futures_util::FutureExt;
    use http_body_util::BodyExt;

    #[test]
    fn a_long_answer_holds_its_permit_until_it_is_taken() {
        let (permits, permit) = with_one_taken();
        let (sender, pieces) = mpsc::channel(WAITING);
        let piece = || Bytes::from_static(b"frames");
        for piece in [
            AnswerPiece::Bytes(piece()),
            AnswerPiece::End(AnswerFacts::default()),
        ] {
            assert!(sender.try_send(piece).is_ok());
        }
        drop(sender);
        let form = PacketsForm {
            media_type: "application/octet-stream",
            file_name: "packets.pcap",
            is_file_always: true,
            shows_losses: true,
            max_bytes: u64::MAX,
        };
        let mut body = long(vec![piece()], pieces, form, permit).into_body();
        let mut frame = || {
            let next = body.frame().now_or_never().expect("ready");
            next.expect("a frame").expect("no error")
        };
        for _ in 0..2 {
            assert!(frame().is_data() && permits.is_any_taken());
        }
        let last = frame();
        assert!(last.is_trailers() && !permits.is_any_taken());
    }
}
