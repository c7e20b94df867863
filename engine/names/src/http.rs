//! Parser of the start line and header fields of HTTP/1 messages: RFC 9112.

use crate::text::text;
use httparse::{EMPTY_HEADER, Request, Response, Status};

/// Maximum number of header fields of an HTTP request; a request with more is unreadable.
const MOST_HEADERS: usize = 64;

/// Names in the start line and header fields of an HTTP message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HttpHead {
    Request {
        method: String,
        host: Option<String>,
    },
    Response {
        status: u16,
    },
}

/// Parses the start line and header fields of an HTTP message, which may be truncated.
pub(crate) fn head(bytes: &[u8]) -> Option<HttpHead> {
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    if bytes.starts_with(b"HTTP") {
        let mut response = Response::new(&mut headers);
        let _whole = response.parse(bytes).ok()?;
        return response.code.map(|status| HttpHead::Response { status });
    }
    let mut request = Request::new(&mut headers);
    // A truncated head has the fields that are complete.
    let _whole = request.parse(bytes).ok()?;
    let method = text(request.method?.as_bytes());
    let host = host(&request).map(text);
    Some(HttpHead::Request { method, host })
}

/// Returns the value of the `Host` field of an HTTP request.
fn host<'b>(request: &Request<'_, 'b>) -> Option<&'b [u8]> {
    let mut headers = request.headers.iter();
    let host = headers.find(|it| it.name.eq_ignore_ascii_case("host"));
    host.map(|it| it.value)
}

/// Returns `true` if an HTTP request is truncated before its `Host` field. Used on the hot path;
/// most requests are complete, which is checked first.
pub(crate) fn is_host_pending(bytes: &[u8]) -> bool {
    if bytes.ends_with(b"\r\n\r\n") {
        return false;
    }
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    let mut request = Request::new(&mut headers);
    matches!(request.parse(bytes), Ok(Status::Partial)) && host(&request).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: Option<&str>) -> Option<HttpHead> {
        Some(HttpHead::Request {
            method: "GET".into(),
            host: host.map(str::to_owned),
        })
    }

    #[test]
    fn heads_contain_method_host_and_status() {
        let named = request(Some("a.example:80"));
        let whole = b"GET /x HTTP/1.1\r\nAccept: *\r\nhost: a.example:80\r\nA: b\r\n\r\nbody";
        assert_eq!(head(whole), named);
        // Truncated after the Host field, within it, and in the first line.
        assert_eq!(head(&whole[..51]), named);
        assert_eq!(head(&whole[..40]), request(None));
        assert_eq!(head(&whole[..10]), request(None));
        let begun: Vec<_> = (4..whole.len())
            .filter(|it| is_host_pending(&whole[..*it]))
            .collect();
        assert_eq!(begun, (4..48).collect::<Vec<_>>());
        assert!(!is_host_pending(b"GET sip:x SIP/2.0\r\n") && !is_host_pending(b"HEAD\0"));
        assert_eq!(head(b"GET sip:x SIP/2.0\r\n"), None);
        let status = |status| Some(HttpHead::Response { status });
        assert_eq!(head(b"HTTP/1.1 404 Not Found\r\nA: b\r\n\r\n"), status(404));
        assert_eq!(head(b"HTTP/1.0 200\r\n"), status(200));
        assert_eq!(head(b"HTTP/1.1 2"), None);
        assert_eq!(head(b"HTTPS?"), None);
    }
}
