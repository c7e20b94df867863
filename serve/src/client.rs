//! Client of other sensors' services: fetches the frames of a query.

use crate::packets::{COMPLETE, FRAMES, LACKS};
use http_body_util::BodyExt;
use reqwest::{
    Certificate, Client, Identity, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, TE},
    redirect::Policy,
};
use serde_json::Value;
use std::{
    env,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, interval, timeout, timeout_at},
};
use wqcap_files::folder::open::{MOST_TEXT, read_named};

/// Name of the environment variable that holds the access token, unless a file with it is named.
pub const TOKEN_VARIABLE: &str = "WQCAP_TOKEN";
/// Time limit for connecting to another sensor's service.
const CONNECT: Duration = Duration::from_secs(10);
/// Time within which the head of a sensor's answer must arrive, and the length of the periods in
/// which at least [`LEAST`] bytes must follow. A sensor may search large files first.
const SILENT: Duration = Duration::from_secs(300);
/// Minimum number of bytes that a sensor must send in each period of [`SILENT`].
const LEAST: u64 = 1 << 10;
/// Interval at which a fetch checks whether the caller has stopped it.
const TICK: Duration = Duration::from_millis(200);
/// Maximum number of bytes of an answer with packets: the largest `serve.max_bytes` of a sensor, and
/// the end of the file after this limit.
pub const MOST_PACKETS: u64 = (1 << 40) + (1 << 20);
/// Maximum length in bytes of the body of a sensor's error answer that is read.
const MOST_ERROR: usize = 64 << 10;

/// Files with the client's token and certificate, and with the authorities that it trusts.
#[derive(Clone, Debug, Default)]
pub struct ClientFiles {
    /// File with the access token; `None`: the environment variable [`TOKEN_VARIABLE`] may have it.
    pub token: Option<PathBuf>,
    /// PEM file of the authorities that sign the sensors' certificates; `None`: the authorities of
    /// the system.
    pub ca: Option<PathBuf>,
    /// PEM file of the client's TLS certificate.
    pub cert: Option<PathBuf>,
    /// PEM file of the private key of the client's certificate.
    pub key: Option<PathBuf>,
}

/// Reason why no answer could be fetched from a sensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SensorFetchError {
    /// A file with the client's token, certificate, key or authorities cannot be used.
    #[error("{}: {problem}", .path.display())]
    File {
        /// Path of the file that cannot be used.
        path: PathBuf,
        /// Reason why the client cannot use the file.
        problem: String,
    },
    /// The HTTP client cannot be created.
    #[error("cannot create the client: {0}")]
    Client(String),
    /// The sensor refused the request.
    #[error("{url}: {detail}; {remedy}")]
    Refused {
        /// URL of the sensor that refused the request.
        url: String,
        /// Description of the failure in the sensor's answer.
        detail: String,
        /// What the user can do about the refusal, as stated in the sensor's answer.
        remedy: String,
    },
    /// The sensor cannot be reached, or its answer ended early.
    #[error("{url}: {problem}")]
    Lost {
        /// URL of the sensor that cannot be reached, or whose answer ended early.
        url: String,
        /// Reason why the connection failed or the answer ended.
        problem: String,
    },
    /// The answer of the sensor is longer than the caller accepts.
    #[error(
        "{url}: the answer has more than {most} bytes, which is the limit: half of the free space for temporary files, or {MOST_PACKETS}"
    )]
    TooLong {
        /// URL of the sensor.
        url: String,
        /// Maximum length of the answer in bytes.
        most: u64,
    },
    /// The answer of the sensor cannot be written to the file.
    #[error("cannot write the answer of {url}: {source}")]
    Write {
        /// URL of the sensor.
        url: String,
        /// Error of the system when the answer was written to the file.
        source: io::Error,
    },
    /// The caller stopped the fetch before the sensor's answer was complete.
    #[error("a signal stopped the command before the answer of {0} was complete")]
    Stopped(String),
}

/// Length of an answer fetched from a sensor, and its number of frames and missing frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchedAnswer {
    /// Number of bytes in the sensor's answer.
    pub bytes: u64,
    /// Number of frames in the answer, as the sensor states; `None`: the sensor does not state one.
    pub frames: Option<u64>,
    /// Description of the frames that the answer lacks, from its header, trailer or last block, or
    /// of doubts about its completeness; `None`: the answer is complete.
    pub lacks: Option<String>,
}

/// Statement of headers or trailers on whether an answer is complete.
#[derive(Debug)]
enum Completeness {
    /// The headers or trailers do not state whether the answer is complete.
    Unstated,
    /// The headers of the answer announce that its trailers state the completeness.
    InTrailers,
    /// The headers or trailers state that the answer has all frames of the query.
    Complete,
    /// The headers or trailers state that the answer lacks frames, with this reason.
    Lacks(String),
}

impl Completeness {
    fn of(headers: &HeaderMap) -> Self {
        let value = |name: &HeaderName| headers.get(name)?.to_str().ok();
        match (value(&COMPLETE), value(&LACKS)) {
            (_, Some(lacks)) => Self::Lacks(lacks.to_owned()),
            (Some("true"), None) => Self::Complete,
            (Some("trailer"), None) => Self::InTrailers,
            (Some(_), None) => Self::Lacks("it is not complete, without a reason".into()),
            (None, None) => Self::Unstated,
        }
    }

    /// Returns what an answer lacks, after its end; `None`: it is complete.
    fn lacks(self) -> Option<String> {
        match self {
            Self::Complete => None,
            Self::Lacks(lacks) => Some(lacks),
            Self::Unstated => Some(
                "the answer does not state if it is complete (Wqcap-Complete): is it from wqcap serve?".into(),
            ),
            Self::InTrailers => Some(
                "the answer ended without its trailers, so that it is unknown if it is complete: does a proxy remove them?".into(),
            ),
        }
    }
}

/// HTTP client that fetches frames from other sensors' services.
pub struct SensorClient {
    http: Client,
    token: Option<String>,
    runtime: Runtime,
}

fn read(path: &Path) -> Result<Vec<u8>, SensorFetchError> {
    read_named(path, MOST_TEXT).map_err(|e| SensorFetchError::File {
        path: path.to_owned(),
        problem: e.to_string(),
    })
}

impl SensorClient {
    /// Creates a client with the user's token, certificate and authorities.
    ///
    /// # Errors
    /// A file cannot be used, or the HTTP client cannot be created.
    pub fn new(files: &ClientFiles) -> Result<Self, SensorFetchError> {
        // Selects the TLS provider. It may be selected already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let token = match &files.token {
            Some(path) => Some(String::from_utf8_lossy(&read(path)?).trim().to_owned()),
            None => env::var(TOKEN_VARIABLE).ok(),
        };
        let bad = |path: &Path, e: reqwest::Error| SensorFetchError::File {
            path: path.to_owned(),
            problem: e.to_string(),
        };
        let mut http = Client::builder()
            .connect_timeout(CONNECT)
            // A token is for the named sensor only.
            .redirect(Policy::none());
        if let Some(path) = &files.ca {
            let all = Certificate::from_pem_bundle(&read(path)?).map_err(|e| bad(path, e))?;
            http = http.tls_certs_only(all);
        }
        if let (Some(cert), Some(key)) = (&files.cert, &files.key) {
            let both = [read(cert)?, read(key)?].concat();
            http = http.identity(Identity::from_pem(&both).map_err(|e| bad(cert, e))?);
        }
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Self {
            http: http
                .build()
                .map_err(|e| SensorFetchError::Client(causes(&e)))?,
            token: token.filter(|it| !it.is_empty()),
            runtime: runtime.map_err(|e| SensorFetchError::Client(e.to_string()))?,
        })
    }

    /// Fetches the frames of a query from the sensor at `url`, and writes them to `to` as pcapng or
    /// pcap. `params` are parameters of `/api/v1/packets`. For an answer without frames nothing is
    /// written. `most` is the limit on the length of the answer in bytes. Setting `stop` ends the
    /// fetch. `watch` is called with the number of bytes so far.
    ///
    /// # Errors
    /// See [`SensorFetchError`].
    pub fn fetch(
        &self,
        url: &str,
        params: &[(&str, String)],
        to: &mut File,
        most: u64,
        stop: &AtomicBool,
        mut watch: impl FnMut(u64),
    ) -> Result<FetchedAnswer, SensorFetchError> {
        let work = async {
            let answer = self.request(url, params).await?;
            let mut bytes = 0u64;
            let lost = |bytes, problem: String| SensorFetchError::Lost {
                url: url.to_owned(),
                problem: format!(
                    "the answer ended before it was complete, after {bytes} bytes: {problem}"
                ),
            };
            let (head, mut body) = hyper::Response::from(answer).into_parts();
            let mut frames = frames_stated(&head.headers);
            let mut completeness = Completeness::of(&head.headers);
            // Bytes at the start of the current period, and its end.
            let mut period = (0, Instant::now() + SILENT);
            loop {
                let next = match timeout_at(period.1, body.frame()).await {
                    Ok(None) => break,
                    Ok(Some(next)) => next.map_err(|e| lost(bytes, causes(&e)))?,
                    Err(_) if bytes - period.0 >= LEAST => {
                        period = (bytes, Instant::now() + SILENT);
                        continue;
                    }
                    Err(_) => return Err(lost(bytes, too_slow())),
                };
                match next.into_data() {
                    Ok(piece) => {
                        bytes += piece.len() as u64;
                        if bytes > most {
                            let url = url.to_owned();
                            return Err(SensorFetchError::TooLong { url, most });
                        }
                        to.write_all(&piece)
                            .map_err(|source| SensorFetchError::Write {
                                url: url.to_owned(),
                                source,
                            })?;
                        watch(bytes);
                    }
                    Err(other) => {
                        if let Ok(trailers) = other.into_trailers() {
                            frames = frames_stated(&trailers).or(frames);
                            completeness = Completeness::of(&trailers);
                        }
                    }
                }
            }
            Ok((bytes, frames, completeness))
        };
        let stopped = async {
            let mut ticks = interval(TICK);
            while !stop.load(Ordering::Relaxed) {
                ticks.tick().await;
            }
        };
        let (bytes, frames, completeness) = self.runtime.block_on(async {
            tokio::select! {
                done = work => done,
                () = stopped => Err(SensorFetchError::Stopped(url.to_owned())),
            }
        })?;
        let lacks = closing_comment(to).ok().flatten();
        let lacks = lacks.or_else(|| completeness.lacks());
        // The end of such an answer may only be the end of its connection.
        let unstated = "the answer does not state its number of frames (Wqcap-Frames), so that it is unknown if it is complete: does a proxy remove it?";
        let lacks = lacks.or_else(|| frames.is_none().then(|| unstated.into()));
        Ok(FetchedAnswer {
            bytes,
            frames,
            lacks,
        })
    }

    /// Sends a request for packets to a sensor, and returns the answer unless it is an error.
    async fn request(
        &self,
        url: &str,
        params: &[(&str, String)],
    ) -> Result<Response, SensorFetchError> {
        let address = format!("{}/api/v1/packets", url.trim_end_matches('/'));
        let mut request = self
            .http
            .post(&address)
            .header(CONTENT_TYPE, "application/json")
            // Without this header a server leaves trailers out (RFC 9110, 6.5.1).
            .header(TE, "trailers")
            .body(body(params).to_string());
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let lost = |problem| SensorFetchError::Lost {
            url: url.to_owned(),
            problem,
        };
        let answer = timeout(SILENT, request.send()).await;
        let answer = answer.map_err(|_| lost(too_slow()))?;
        let mut answer = answer.map_err(|e| lost(causes(&e)))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let mut text = Vec::new();
        // An error message is short: a sensor that drips it is not waited for.
        let read = async {
            while let Ok(Some(piece)) = answer.chunk().await
                && text.len() <= MOST_ERROR
            {
                text.extend_from_slice(&piece);
            }
        };
        let _ = timeout(CONNECT, read).await;
        let stated: Value = serde_json::from_slice(&text).unwrap_or_default();
        let of = |field: &str| stated[field].as_str().map(str::to_owned);
        let remedy = of("remedy").unwrap_or_default();
        // A sensor that is busy or has failed does not refuse the request itself.
        let is_of_sensor = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
        match of("detail") {
            Some(detail) if is_of_sensor => Err(lost(format!("{detail}; {remedy}"))),
            Some(detail) => Err(SensorFetchError::Refused {
                url: url.to_owned(),
                detail,
                remedy,
            }),
            None => Err(lost(format!(
                "the answer has the HTTP status {status}, and is not an error message of `wqcap serve`"
            ))),
        }
    }
}

/// Returns the text of the error that a sensor sends too few bytes in the time limit.
fn too_slow() -> String {
    format!(
        "the sensor sent fewer than {LEAST} bytes in {} s, which is the limit",
        SILENT.as_secs()
    )
}

/// Returns the number of frames that the headers or trailers of an answer state. A value that is not
/// a number counts as the largest number, which no answer has.
fn frames_stated(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(FRAMES)?.to_str().ok();
    let number = text.and_then(|it| it.parse().ok());
    Some(number.unwrap_or(u64::MAX))
}

fn body(params: &[(&str, String)]) -> Value {
    let pairs = params.iter();
    pairs
        .map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str())))
        .collect()
}

/// Returns the text of an HTTP error with its causes, which reqwest leaves out.
fn causes(e: &reqwest::Error) -> String {
    let mut text = e.to_string();
    let mut cause = std::error::Error::source(e);
    while let Some(it) = cause {
        text = format!("{text}: {it}");
        cause = it.source();
    }
    text
}

/// Returns the comment in the last block of a pcapng file, which describes the frames that the file
/// lacks.
fn closing_comment(file: &mut File) -> io::Result<Option<String>> {
    /// Block type of interface statistics, and option code of a comment (pcapng draft, 4.6 and 3.5).
    const STATISTICS: u32 = 5;
    const COMMENT: u16 = 1;
    const MOST: u64 = 64 << 10;
    let len = file.seek(SeekFrom::End(0))?;
    let mut tail = vec![0; usize::try_from(len.min(MOST)).unwrap_or(0)];
    file.seek(SeekFrom::Start(len - tail.len() as u64))?;
    file.read_exact(&mut tail)?;
    let word = |at: usize| Some(u32::from_ne_bytes(tail.get(at..at + 4)?.try_into().ok()?));
    let find = || {
        let block = word(tail.len().checked_sub(4)?)? as usize;
        let start = tail.len().checked_sub(block)?;
        // Type, length, interface and time are before the options.
        let options = start + 20;
        let code = u16::from_ne_bytes(tail.get(options..options + 2)?.try_into().ok()?);
        let len = u16::from_ne_bytes(tail.get(options + 2..options + 4)?.try_into().ok()?);
        let text = tail.get(options + 4..options + 4 + usize::from(len))?;
        let text = std::str::from_utf8(text).ok()?;
        let is_comment = word(start)? == STATISTICS && code == COMMENT;
        let lacks = text.strip_prefix("incomplete: ").filter(|_| is_comment)?;
        Some(lacks.to_owned())
    };
    Ok(find())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    #[test]
    fn the_last_block_says_what_is_missing() {
        let file = |text: &str| {
            let mut block = Vec::new();
            let padded = text.len().next_multiple_of(4);
            let len = (28 + padded) as u32;
            for word in [5, len, 0, 0, 0] {
                block.extend(u32::to_ne_bytes(word));
            }
            block.extend(1u16.to_ne_bytes());
            block.extend((text.len() as u16).to_ne_bytes());
            block.extend(text.as_bytes());
            block.resize(24 + padded, 0);
            block.extend(len.to_ne_bytes());
            let mut file = tempfile::tempfile().expect("file");
            file.write_all(&[7; 100]).expect("written");
            file.write_all(&block).expect("written");
            file
        };
        let of = |text: &str| closing_comment(&mut file(text)).expect("read");
        assert_eq!(of("incomplete: 3 frames; x"), Some("3 frames; x".into()));
        assert_eq!(of("a comment"), None);
        let mut empty = tempfile::tempfile().expect("file");
        assert_eq!(closing_comment(&mut empty).expect("read"), None);
    }

    /// Limit on the length of an answer in bytes.
    const MOST: u64 = 100;

    /// Fetches from a sensor that answers one request with these bytes and closes the connection.
    fn fetched(answer: &'static str) -> Result<FetchedAnswer, SensorFetchError> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let sensor = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                let mut piece = [0; 1024];
                let len = stream.read(&mut piece).expect("a request");
                request.extend_from_slice(&piece[..len]);
            }
            stream.write_all(answer.as_bytes()).expect("answered");
        });
        let client = SensorClient::new(&ClientFiles::default()).expect("a client");
        let mut file = tempfile::tempfile().expect("a file");
        let it = client.fetch(&url, &[], &mut file, MOST, &AtomicBool::new(false), |_| ());
        sensor.join().expect("the sensor");
        it
    }

    #[test]
    fn only_an_answer_that_states_it_is_complete() {
        for (head, body, lacks) in [
            ("Wqcap-Complete: true\r\nWqcap-Frames: 5\r\n", "", None),
            ("", "", Some("does not state")),
            ("Wqcap-Complete: true\r\n", "", Some("number of frames")),
            ("Wqcap-Complete: false\r\n", "", Some("without a reason")),
            (
                "Wqcap-Complete: false\r\nWqcap-Lacks: a file\r\n",
                "",
                Some("a file"),
            ),
            // A proxy removed the trailers.
            (
                "Wqcap-Complete: trailer\r\nTransfer-Encoding: chunked\r\n",
                "0\r\n\r\n",
                Some("without its trailers"),
            ),
            (
                "Wqcap-Complete: trailer\r\nTrailer: Wqcap-Complete\r\nTransfer-Encoding: chunked\r\n",
                "0\r\nWqcap-Complete: true\r\nWqcap-Frames: 5\r\n\r\n",
                None,
            ),
        ] {
            let answer = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{head}\r\n{body}");
            let it = fetched(answer.leak()).expect("an answer");
            match lacks {
                None => assert_eq!((it.lacks, it.frames), (None, Some(5)), "{head}"),
                Some(part) => assert!(it.lacks.is_some_and(|it| it.contains(part)), "{head}"),
            }
        }
    }

    #[test]
    fn a_busy_sensor_does_not_refuse_the_request() {
        for (status, is_refusal) in [("400", true), ("401", true), ("429", false), ("503", false)] {
            let body = r#"{"error":"x","detail":"why","remedy":"wait"}"#;
            let head = format!("Content-Length: {}\r\n", body.len());
            let answer = format!("HTTP/1.1 {status} x\r\n{head}\r\n{body}");
            let e = fetched(answer.leak()).expect_err("no answer");
            assert!(e.to_string().ends_with("why; wait"), "{e}");
            let refused = matches!(e, SensorFetchError::Refused { .. });
            assert_eq!(refused, is_refusal, "{status}");
        }
    }

    #[test]
    fn a_number_of_frames_that_cannot_be_read_is_not_absent() {
        for (value, stated) in [("5", 5), ("-1", u64::MAX), ("x", u64::MAX)] {
            let mut headers = HeaderMap::new();
            headers.insert(FRAMES, value.parse().expect("a value"));
            assert_eq!(frames_stated(&headers), Some(stated));
        }
        assert_eq!(frames_stated(&HeaderMap::new()), None);
    }

    #[test]
    fn the_length_of_an_answer_is_limited() {
        for (len, is_ok) in [(MOST, true), (MOST + 1, false)] {
            let head = format!("Wqcap-Complete: true\r\nContent-Length: {len}\r\n");
            let body = "7".repeat(usize::try_from(len).expect("short"));
            let answer = format!("HTTP/1.1 200 OK\r\n{head}\r\n{body}");
            match fetched(answer.leak()) {
                Ok(it) => assert!(is_ok && it.bytes == len),
                Err(e) => assert!(
                    !is_ok && matches!(e, SensorFetchError::TooLong { .. }),
                    "{e}"
                ),
            }
        }
    }

    #[test]
    fn an_answer_that_breaks_off_is_an_error() {
        for head in [
            "Content-Length: 90\r\n\r\n0123",
            "Transfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n",
        ] {
            let answer = format!("HTTP/1.1 200 OK\r\nWqcap-Complete: true\r\n{head}");
            let lost = fetched(answer.leak()).expect_err("broken off");
            let text = lost.to_string();
            assert!(
                text.contains("ended before it was complete, after 4 bytes"),
                "{text}"
            );
        }
    }
}
