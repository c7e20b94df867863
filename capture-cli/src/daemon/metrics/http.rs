//! HTTP server for scrapes: one request for each connection, bounded in size and time.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

/// Maximum length of a metrics client's HTTP request in bytes.
const LONGEST: usize = 8 << 10;
/// Maximum number of header lines in an HTTP request for metrics.
const HEADERS: usize = 64;
/// Time-out for receiving an HTTP request for metrics, and for sending its response.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause of the metrics endpoint after an error of accepting a connection that persists, such as a
/// lack of descriptors.
pub const PAUSE: Duration = Duration::from_millis(50);

/// HTTP content type of metrics in the OpenMetrics format.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// HTTP content type of metrics in the older Prometheus text format.
const OLDER: &str = "text/plain; version=0.0.4; charset=utf-8";
/// HTTP content type of the endpoint's error texts.
const PLAIN: &str = "text/plain; charset=utf-8";

/// Parsed HTTP request of a metrics client.
#[derive(Debug, PartialEq, Eq)]
enum MetricsRequest {
    /// HTTP request for the metrics. With `head`, only the response headers are requested; with
    /// `older`, the older text format.
    Metrics { head: bool, older: bool },
    /// HTTP request for another path than `/metrics`.
    Other,
    /// HTTP request with another method than GET and HEAD.
    Method,
}

/// Answers the one HTTP request of a metrics connection. `metrics` returns the text, in the older
/// format if its argument is `true`, else in that of OpenMetrics. A malformed request gets an error
/// status; one that stalls gets no response.
pub fn answer(mut stream: TcpStream, metrics: impl FnOnce(bool) -> String) {
    let outcome = read_request(&mut stream).and_then(|asked| {
        let (status, text) = match asked {
            Some(MetricsRequest::Metrics { head, older }) => {
                let kind = if older { OLDER } else { OPENMETRICS };
                return reply(&mut stream, "200 OK", kind, &metrics(older), head);
            }
            Some(MetricsRequest::Other) => ("404 Not Found", "metrics are at /metrics\n"),
            Some(MetricsRequest::Method) => {
                ("405 Method Not Allowed", "only GET and HEAD are allowed\n")
            }
            None => (
                "400 Bad Request",
                "the request is not valid HTTP, or longer than 8 KiB\n",
            ),
        };
        reply(&mut stream, status, PLAIN, text, false)
    });
    if let Err(e) = outcome {
        tracing::debug!("metrics: cannot answer a client: {e}");
    }
}

/// Refuses a metrics client with status 503, because too many requests are in progress.
pub fn refuse(mut stream: TcpStream) {
    // The capture does not depend on whether the client receives the response.
    let _ = stream.set_nonblocking(true);
    let text = "too many metrics requests at once; try again\n";
    let _ = reply(&mut stream, "503 Service Unavailable", PLAIN, text, false);
}

/// Reads the head of a metrics client's HTTP request. Returns `None` if it is not a valid request.
fn read_request(stream: &mut TcpStream) -> io::Result<Option<MetricsRequest>> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let deadline = Instant::now() + PATIENCE;
    let mut head = Vec::with_capacity(1024);
    let mut chunk = [0; 1024];
    while head.len() < LONGEST {
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(rest))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => head.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        match parse(&head) {
            Ok(None) => {}
            Ok(asked) => return Ok(asked),
            Err(_) => return Ok(None),
        }
    }
    Ok(None)
}

/// Parses the head of a metrics client's HTTP request. Returns `None` while it is incomplete.
fn parse(head: &[u8]) -> Result<Option<MetricsRequest>, httparse::Error> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    if request.parse(head)?.is_partial() {
        return Ok(None);
    }
    let path = request.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let accepts = request
        .headers
        .iter()
        .filter(|it| it.name.eq_ignore_ascii_case("accept"))
        .any(|it| String::from_utf8_lossy(it.value).contains("application/openmetrics-text"));
    Ok(Some(match (request.method.unwrap_or_default(), path) {
        (method @ ("GET" | "HEAD"), "/metrics") => MetricsRequest::Metrics {
            head: method == "HEAD",
            older: !accepts,
        },
        ("GET" | "HEAD", _) => MetricsRequest::Other,
        _ => MetricsRequest::Method,
    }))
}

/// Writes the HTTP response to a metrics client, and closes the connection for writing.
fn reply(
    stream: &mut TcpStream,
    status: &str,
    kind: &str,
    text: &str,
    head: bool,
) -> io::Result<()> {
    let length = text.len();
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    if !head {
        answer.push_str(text);
    }
    stream.write_all(answer.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_distinguished() {
        let asked = |text: &str| parse(text.as_bytes()).unwrap();
        let metrics = |head, older| Some(MetricsRequest::Metrics { head, older });
        assert_eq!(asked("GET /metrics HTTP/1.1\r\nHost: a\r\n"), None);
        assert_eq!(
            asked("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"),
            metrics(false, true)
        );
        assert_eq!(
            asked("HEAD /metrics?a=b HTTP/1.0\r\n\r\n"),
            metrics(true, true)
        );
        let accept = "aCCEPT: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        assert_eq!(
            asked(&format!("GET /metrics HTTP/1.1\r\n{accept}\r\n\r\n")),
            metrics(false, false)
        );
        assert_eq!(asked("GET / HTTP/1.1\r\n\r\n"), Some(MetricsRequest::Other));
        assert_eq!(
            asked("POST /metrics HTTP/1.1\r\n\r\n"),
            Some(MetricsRequest::Method)
        );
        assert!(parse(b"\x16\x03\x01\x02\x00").is_err());
    }
}
