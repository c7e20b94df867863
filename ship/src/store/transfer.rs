//! Sends a request to a store and receives its response, each with a time limit for a transfer that
//! makes no progress. A slow transfer takes the time that it needs.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::{Either, select};
use http_body_util::BodyExt;
use hyper::{
    body::{Body, Frame, SizeHint},
    header::CONTENT_RANGE,
};
use object_store::client::{
    HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use std::{
    error::Error as StdError,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep};

/// Least number of bytes that must be transferred in each period, and largest number of bytes that
/// are passed to a connection at once.
const PIECE: usize = 64 << 10;

/// Number of checks of an upload's progress in the time limit.
const CHECKS: u32 = 16;

/// Error of a transfer that made too little progress.
#[derive(Debug, thiserror::Error)]
#[error("the store accepted or sent fewer than {PIECE} bytes in {0:?}, which is the limit")]
struct Stalled(Duration);

impl From<Stalled> for HttpError {
    fn from(e: Stalled) -> Self {
        Self::new(HttpErrorKind::Timeout, e)
    }
}

/// HTTP client that ends transfers that make no progress.
#[derive(Debug)]
pub(super) struct TransferClient {
    pub(super) client: reqwest::Client,
    /// Time in which at least [`PIECE`] bytes must be transferred, or the response begin.
    pub(super) limit: Duration,
}

#[async_trait]
impl HttpService for TransferClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = parts.uri.to_string().parse();
        let url = url.map_err(|e| {
            HttpError::new_boxed(HttpErrorKind::Unknown, Box::new(io::Error::other(e)))
        })?;
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        let sent = Arc::default();
        *request.body_mut() = Some(reqwest::Body::wrap(SentBody {
            body,
            piece: Bytes::new(),
            pieces: Arc::clone(&sent),
        }));
        let mut answer = pin!(self.client.execute(request));
        // Number of pieces, and when it last changed.
        let mut seen = (0, Instant::now());
        let response = loop {
            match select(answer, pin!(sleep(self.limit / CHECKS))).await {
                Either::Left((response, _)) => break response.map_err(error)?,
                Either::Right(((), pending)) => {
                    let now = sent.load(Ordering::Relaxed);
                    if now != seen.0 {
                        seen = (now, Instant::now());
                    } else if seen.1.elapsed() >= self.limit {
                        return Err(Stalled(self.limit).into());
                    }
                    answer = pending;
                }
            }
        };
        let (mut parts, body) = hyper::Response::<reqwest::Body>::from(response).into_parts();
        // `object_store` adds 1 to the end of the range. It reports a response without the header.
        let last = u64::MAX.to_string();
        let range = parts.headers.get(CONTENT_RANGE);
        if range.is_some_and(|it| it.to_str().is_ok_and(|it| it.contains(&last))) {
            parts.headers.remove(CONTENT_RANGE);
        }
        let body = ReceivedBody::new(body.map_err(error), self.limit);
        let body = HttpResponseBody::new(body);
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// Body of a request that counts the pieces which the connection has taken.
struct SentBody {
    body: HttpRequestBody,
    /// Rest of the present frame of the body.
    piece: Bytes,
    pieces: Arc<AtomicU64>,
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        while self.piece.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(e)) => return Poll::Ready(Some(Err(e))),
                // A request has no trailers.
                Some(Ok(frame)) => self.piece = frame.into_data().unwrap_or_default(),
            }
        }
        self.pieces.fetch_add(1, Ordering::Relaxed);
        let len = self.piece.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.piece.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.body.size_hint().exact().unwrap_or_default();
        SizeHint::with_exact(rest + self.piece.len() as u64)
    }
}

/// Body of a response that ends with an error if too few bytes arrive while the reader waits.
struct ReceivedBody<B> {
    body: B,
    limit: Duration,
    /// Number of bytes that arrived since `waited` was 0.
    received: usize,
    /// Time for which the reader has waited, without the present wait.
    waited: Duration,
    /// Start of the present wait, and its end if nothing arrives.
    wait: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<B> ReceivedBody<B> {
    fn new(body: B, limit: Duration) -> Self {
        Self {
            body,
            limit,
            received: 0,
            waited: Duration::ZERO,
            wait: None,
        }
    }
}

impl<B: Body<Data = Bytes, Error = HttpError> + Unpin> Body for ReceivedBody<B> {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let it = &mut *self;
        if let Poll::Ready(next) = Pin::new(&mut it.body).poll_frame(cx) {
            it.waited += it
                .wait
                .take()
                .map_or(Duration::ZERO, |wait| wait.0.elapsed());
            if let Some(Ok(frame)) = &next {
                it.received += frame.data_ref().map_or(0, Bytes::len);
            }
            return Poll::Ready(next);
        }
        loop {
            let left = it.limit.saturating_sub(it.waited);
            let begin = || (Instant::now(), Box::pin(sleep(left)));
            ready!(it.wait.get_or_insert_with(begin).1.as_mut().poll(cx));
            if it.received < PIECE {
                return Poll::Ready(Some(Err(Stalled(it.limit).into())));
            }
            (it.received, it.waited, it.wait) = (0, Duration::ZERO, None);
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Converts an error of reqwest. Its kind decides whether `object_store` sends the request again.
fn error(e: reqwest::Error) -> HttpError {
    let of_io = |e: &io::Error| match e.kind() {
        io::ErrorKind::TimedOut => Some(HttpErrorKind::Timeout),
        io::ErrorKind::ConnectionAborted
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => Some(HttpErrorKind::Interrupted),
        _ => None,
    };
    let of_hyper = |e: &hyper::Error| {
        let is_cut = e.is_closed() || e.is_incomplete_message() || e.is_body_write_aborted();
        is_cut.then_some(HttpErrorKind::Request)
    };
    let mut cause = e.source();
    let mut found = None;
    while let (None, Some(it)) = (&found, cause) {
        found = it.downcast_ref().and_then(of_hyper);
        found = found.or_else(|| it.downcast_ref().and_then(of_io));
        cause = it.source();
    }
    let kind = match (e.is_timeout(), e.is_connect(), e.is_decode()) {
        (true, ..) => HttpErrorKind::Timeout,
        (_, true, _) => HttpErrorKind::Connect,
        (.., true) => HttpErrorKind::Decode,
        _ => found.unwrap_or(HttpErrorKind::Unknown),
    };
    // The URL may have a signature.
    HttpError::new(kind, e.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::HeaderMap;
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        thread,
    };
    use tokio::runtime::Builder;

    const LIMIT: Duration = Duration::from_secs(2);

    /// Sends a body of `len` bytes to a server that handles the connection, and receives the body of
    /// the response. Returns its length.
    fn transferred(
        len: usize,
        server: impl FnOnce(TcpStream) -> io::Result<()> + Send + 'static,
    ) -> Result<usize, HttpError> {
        answered(len, server).map(|(_, received)| received)
    }

    /// Sends a body of `len` bytes to a server that handles the connection. Returns the headers of the
    /// response and the length of its body.
    fn answered(
        len: usize,
        server: impl FnOnce(TcpStream) -> io::Result<()> + Send + 'static,
    ) -> Result<(HeaderMap, usize), HttpError> {
        // Another test may have selected the TLS provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let server = thread::spawn(move || server(listener.accept()?.0));
        let client = TransferClient {
            client: reqwest::Client::new(),
            limit: LIMIT,
        };
        let request = hyper::Request::put(url).header("content-length", len);
        let request = request.body(vec![7; len].into()).expect("a request");
        let runtime = Builder::new_current_thread().enable_all().build();
        let received = runtime.expect("a runtime").block_on(async {
            let (parts, body) = client.call(request).await?.into_parts();
            Ok((parts.headers, body.bytes().await?.len()))
        });
        // The client may have ended the connection.
        let _ = server.join().expect("no panic");
        received
    }

    /// Reads the head of a request and `len` bytes of its body as a slow server does: waits for the
    /// time `pace` before each MiB.
    fn read(stream: &mut TcpStream, mut len: usize, pace: Duration) -> io::Result<()> {
        let mut bytes = vec![0; 1 << 20];
        let head = stream.read(&mut bytes)?;
        let end = bytes[..head].windows(4).position(|it| it == b"\r\n\r\n");
        len -= head - end.expect("a whole head") - 4;
        while len > 0 {
            thread::sleep(pace);
            let most = len.min(bytes.len());
            stream.read_exact(&mut bytes[..most])?;
            len -= most;
        }
        Ok(())
    }

    #[test]
    fn a_range_whose_end_overflows_is_no_range() {
        for (last, is_kept) in [(u64::MAX - 1, true), (u64::MAX, false)] {
            let headers = answered(0, move |mut stream| {
                read(&mut stream, 0, Duration::ZERO)?;
                write!(
                    stream,
                    "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-{last}/7\r\nContent-Length: 2\r\n\r\nok"
                )
            });
            let (headers, _) = headers.expect("received");
            assert_eq!(headers.contains_key(CONTENT_RANGE), is_kept);
        }
    }

    #[test]
    fn a_slow_upload_takes_its_time() {
        const LEN: usize = 48 << 20;
        let begun = Instant::now();
        let sent = transferred(LEN, |mut stream| {
            // Slower than the limit in all, faster than that for what the kernel buffers.
            read(&mut stream, LEN, LIMIT / 20)?;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        });
        assert_eq!(sent.expect("sent"), 2);
        assert!(begun.elapsed() > 2 * LIMIT);
    }

    #[test]
    fn a_store_that_takes_nothing_is_given_up() {
        let begun = Instant::now();
        let stalled = transferred(64 << 20, |_stream| {
            thread::sleep(3 * LIMIT);
            Ok(())
        });
        assert_eq!(stalled.expect_err("stalled").kind(), HttpErrorKind::Timeout);
        assert!(begun.elapsed() >= LIMIT);
    }

    #[test]
    fn a_slow_response_takes_its_time_and_one_that_drips_is_given_up() {
        let answered = |piece: usize, pieces: usize, pause: Duration| {
            transferred(0, move |mut stream| {
                read(&mut stream, 0, Duration::ZERO)?;
                let len = piece * pieces;
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n")?;
                for _ in 0..pieces {
                    stream.write_all(&vec![7; piece])?;
                    thread::sleep(pause);
                }
                Ok(())
            })
        };
        let slow = answered(2 * PIECE, 5, LIMIT / 4 * 3);
        assert_eq!(slow.expect("received"), 10 * PIECE);
        let dripping = answered(1, 1000, LIMIT / 50);
        assert_eq!(
            dripping.expect_err("stalled").kind(),
            HttpErrorKind::Timeout
        );
    }
}
