//! Heads of HTTP/1 messages: RFC 9112.

use crate::text::text;
use httparse::{EMPTY_HEADER, Request, Response, Status};

/// Header fields of a request that are read, at most; more make it unreadable.
const MOST_HEADERS: usize = 64;

/// What a message's head tells.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Request {
        method: String,
        host: Option<String>,
    },
    Response {
        status: u16,
    },
}

/// Of a message's first bytes, which may break off.
pub(crate) fn head(bytes: &[u8]) -> Option<Head> {
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    if bytes.starts_with(b"HTTP") {
        let mut response = Response::new(&mut headers);
        let _whole = response.parse(bytes).ok()?;
        return response.code.map(|status| Head::Response { status });
    }
    let mut request = Request::new(&mut headers);
    // What breaks off has those fields that are whole.
    let _whole = request.parse(bytes).ok()?;
    let method = text(request.method?.as_bytes());
    let host = host(&request).map(text);
    Some(Head::Request { method, host })
}

fn host<'b>(request: &Request<'_, 'b>) -> Option<&'b [u8]> {
    let mut headers = request.headers.iter();
    let host = headers.find(|it| it.name.eq_ignore_ascii_case("host"));
    host.map(|it| it.value)
}

/// Whether a request breaks off before its host. For the hot path: most requests end with their head.
pub(crate) fn goes_on(bytes: &[u8]) -> bool {
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

    fn request(host: Option<&str>) -> Option<Head> {
        Some(Head::Request {
            method: "GET".into(),
            host: host.map(str::to_owned),
        })
    }

    #[test]
    fn heads_tell_method_host_and_status() {
        let named = request(Some("a.example:80"));
        let whole = b"GET /x HTTP/1.1\r\nAccept: *\r\nhost: a.example:80\r\nA: b\r\n\r\nbody";
        assert_eq!(head(whole), named);
        // Broken off behind the field, within it, and in the first line.
        assert_eq!(head(&whole[..51]), named);
        assert_eq!(head(&whole[..40]), request(None));
        assert_eq!(head(&whole[..10]), request(None));
        let begun: Vec<_> = (4..whole.len())
            .filter(|it| goes_on(&whole[..*it]))
            .collect();
        assert_eq!(begun, (4..48).collect::<Vec<_>>());
        assert!(!goes_on(b"GET sip:x SIP/2.0\r\n") && !goes_on(b"HEAD\0"));
        assert_eq!(head(b"GET sip:x SIP/2.0\r\n"), None);
        let status = |status| Some(Head::Response { status });
        assert_eq!(head(b"HTTP/1.1 404 Not Found\r\nA: b\r\n\r\n"), status(404));
        assert_eq!(head(b"HTTP/1.0 200\r\n"), status(200));
        assert_eq!(head(b"HTTP/1.1 2"), None);
        assert_eq!(head(b"HTTPS?"), None);
    }
}
