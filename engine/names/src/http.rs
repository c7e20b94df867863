//! Parser of the start line and header fields of HTTP/1 messages: RFC 9112.
//!
//! Servers accept heads that break the grammar, and a strict parser would discard such a head as a
//! whole. This one reads line by line: a line that it cannot use does not hide the others.

use crate::text::text;
use std::borrow::Cow;

/// Maximum length in bytes of an HTTP method; the longest registered one has 17.
pub(crate) const MOST_METHOD: usize = 23;
/// Number of bytes from the start of an HTTP response that certainly contain the status.
const MOST_STATUS: usize = 32;

/// Names that the start line and header fields of an HTTP message contain.
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
    if bytes.starts_with(b"HTTP") {
        let status = status(bytes)?;
        return Some(HttpHead::Response { status });
    }
    let request = RequestHead::parse(bytes)?;
    Some(HttpHead::Request {
        method: text(request.method),
        host: request.host.map(|it| text(&it)),
    })
}

/// Returns `true` if an HTTP request is truncated in its first line, or before its host. Called on
/// the hot path; the function first checks if the request is complete, as most are.
pub(crate) fn is_host_pending(bytes: &[u8]) -> bool {
    !bytes.ends_with(b"\r\n\r\n")
        && match RequestHead::parse(bytes) {
            Some(request) => request.is_pending,
            None => is_request(bytes).is_none(),
        }
}

/// Returns `true` if an HTTP response is truncated before the end of its status.
pub(crate) fn is_status_pending(bytes: &[u8]) -> bool {
    bytes.len() < MOST_STATUS && !bytes.contains(&b'\n')
}

/// Returns `true` if a payload begins with an HTTP request of any method, or `None` if the payload
/// is too short to decide. Other text also begins with a word and a space, so the target and the
/// version are checked too. Empty lines before the request are allowed.
pub(crate) fn is_request(bytes: &[u8]) -> Option<bool> {
    let bytes = bytes.trim_ascii_start();
    let Some((method, rest)) = split_method(bytes) else {
        // A method that continues in the next segment. A word in lower case could be anything.
        let is_begun = (1..=MOST_METHOD).contains(&bytes.len()) && is_capital(bytes);
        return (!is_begun).then_some(false);
    };
    // The preface of HTTP/2 resembles a request: RFC 9113 section 3.4.
    if method == b"PRI" {
        return Some(false);
    }
    if rest.is_empty() && is_capital(method) {
        return None;
    }
    let scheme = &rest[..rest.len().min(4)];
    let is_target = matches!(rest, [b'/' | b'*', ..])
        || !rest.is_empty() && scheme.eq_ignore_ascii_case(&b"http"[..scheme.len()])
        || method.eq_ignore_ascii_case(b"CONNECT");
    match split_line(rest) {
        Some((line, _)) => {
            let has_target = target(line).is_some_and(|it| !it.is_empty());
            Some(has_target && (is_target || is_capital(method)))
        }
        None => (!is_target).then_some(false),
    }
}

/// Returns the status code of an HTTP response; `None` if the bytes do not begin with a status
/// line.
fn status(bytes: &[u8]) -> Option<u16> {
    let rest = bytes.strip_prefix(b"HTTP/")?;
    let version = rest.iter().position(|it| is_blank(*it))?;
    let (digits, rest) = trim_start(&rest[version..]).split_first_chunk::<3>()?;
    let is_number = digits.iter().all(u8::is_ascii_digit);
    if !is_number || rest.first().is_some_and(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parsed start line and header fields of an HTTP request.
struct RequestHead<'a> {
    method: &'a [u8],
    /// Authority of the request's target, or the value of its `Host` field.
    host: Option<Cow<'a, [u8]>>,
    /// `true` if the first line of the request is incomplete, or the host may still follow.
    is_pending: bool,
}

impl<'a> RequestHead<'a> {
    /// Parses an HTTP request, which may be truncated; `None` if its first line is of another
    /// protocol.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (method, rest) = split_method(bytes.trim_ascii_start())?;
        let (host, is_pending) = match split_line(rest) {
            None => (authority(method, rest, true).map(Cow::Borrowed), true),
            // The authority of the target takes precedence over the field: RFC 9112 section 3.2.2.
            Some((line, fields)) => match authority(method, target(line)?, false) {
                Some(authority) => (Some(Cow::Borrowed(authority)), false),
                None => host_field(fields),
            },
        };
        Some(Self {
            method,
            host,
            is_pending,
        })
    }
}

/// Splits an HTTP request into its method and the bytes from its target on; `None` if it does not
/// begin with a method.
fn split_method(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = bytes
        .iter()
        .take(MOST_METHOD + 1)
        .position(|it| !is_token(*it))?;
    let (method, rest) = bytes.split_at(len);
    (len > 0 && is_blank(rest[0])).then(|| (method, trim_start(rest)))
}

/// Returns `true` for a byte of an HTTP method: RFC 9110 section 5.6.2.
pub(crate) const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// Returns the target in `line`, the rest of an HTTP request line after the method, which may
/// contain spaces; `None` if no version follows it.
fn target(line: &[u8]) -> Option<&[u8]> {
    let is_version = |at: &usize| {
        let word = line.get(*at..*at + 5);
        (*at == 0 || is_blank(line[*at - 1]))
            && word.is_some_and(|it| it.eq_ignore_ascii_case(b"HTTP/"))
    };
    let version = (0..line.len()).rev().find(is_version)?;
    Some(trim(&line[..version]))
}

/// Returns the authority in the target of an HTTP request: of a URI, or after `CONNECT`. `is_cut`
/// is `true` if the target may continue after these bytes.
fn authority<'a>(method: &[u8], target: &'a [u8], is_cut: bool) -> Option<&'a [u8]> {
    let is_scheme = |it: &[u8]| {
        it.iter()
            .all(|it| it.is_ascii_alphanumeric() || b"+-.".contains(it))
    };
    let scheme = target.windows(3).position(|it| it == b"://");
    let rest = match scheme.filter(|it| *it > 0 && is_scheme(&target[..*it])) {
        Some(scheme) => &target[scheme + 3..],
        None if method.eq_ignore_ascii_case(b"CONNECT") => target,
        None => return None,
    };
    let end = rest
        .iter()
        .position(|it| b"/?#\\".contains(it) || is_blank(*it));
    let authority = match end {
        Some(end) => &rest[..end],
        None if is_cut => return None,
        None => rest,
    };
    let name = authority.rsplit(|it| *it == b'@').next()?;
    (!name.is_empty()).then_some(name)
}

/// Returns the value of the first `Host` field among the lines of an HTTP head, and `true` if that
/// field may still follow. A line that begins with a blank continues the field before it: RFC 9112
/// section 5.2.
fn host_field(mut rest: &[u8]) -> (Option<Cow<'_, [u8]>>, bool) {
    let mut host: Option<Cow<'_, [u8]>> = None;
    while let Some((line, behind)) = split_line(rest) {
        rest = behind;
        let is_continued = line.first().is_some_and(|it| is_blank(*it));
        let mut parts = line.splitn(2, |it| *it == b':');
        match (&mut host, parts.next(), parts.next()) {
            (Some(host), ..) if is_continued => match (trim(line), host.is_empty()) {
                (b"", _) => {}
                (more, true) => *host = Cow::Borrowed(more),
                (more, false) => host.to_mut().extend([b" ", more].concat()),
            },
            (None, Some(name), Some(value)) => {
                if !is_continued && trim(name).eq_ignore_ascii_case(b"host") {
                    host = Some(Cow::Borrowed(trim(value)));
                }
            }
            (None, ..) if !line.is_empty() => {}
            _ => return (host, false),
        }
    }
    let is_pending = host.as_ref().is_none_or(|it| it.is_empty());
    (host, is_pending)
}

/// Splits the first line of an HTTP head, without its line end, from the bytes after it; `None` if
/// the line is incomplete.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|it| *it == b'\n')?;
    let line = &bytes[..end];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    Some((line, &bytes[end + 1..]))
}

/// Returns `true` for a byte that separates the words of an HTTP request line: RFC 9112 section 3.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c | b'\r')
}

fn trim_start(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().position(|it| !is_blank(*it));
    &bytes[start.unwrap_or(bytes.len())..]
}

fn trim(bytes: &[u8]) -> &[u8] {
    let bytes = trim_start(bytes);
    let end = bytes.iter().rposition(|it| !is_blank(*it));
    &bytes[..end.map_or(0, |it| it + 1)]
}

/// Returns `true` for a word in capital letters, as all registered HTTP methods are.
fn is_capital(word: &[u8]) -> bool {
    let is_other = |it: &u8| it.is_ascii_digit() || b"-_".contains(it);
    word.first().is_some_and(u8::is_ascii_uppercase)
        && word
            .iter()
            .all(|it| it.is_ascii_uppercase() || is_other(it))
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
    fn lines_that_break_the_grammar_do_not_hide_the_host() {
        let named = request(Some("a.example"));
        let many = "X: y\r\n".repeat(300);
        for lines in [
            "GET /a b HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET /a\tb  c HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET\t/\tHTTP/1.1 \r\nHost:a.example \r\n\r\n",
            "GET  /  HTTP/1.1\r\nHost:\ta.example\t\r\n\r\n",
            "GET / HTTP/1.1 x\r\nHost: a.example\r\n\r\n",
            "GET / http/1.1\r\nHost: a.example\r\n\r\n",
            "GET /\x01\u{ff} HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET / HTTP/1.1\nHost: a.example\n\n",
            "\r\n\r\n\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nAccept : x\r\nHOST\t: a.example\r\n\r\n",
            "GET / HTTP/1.1\r\n folded\r\n Host: b\r\nX: a\r\n\tb\r\nHost: a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost:\r\n\ta.example\r\nX: a\r\n\r\n",
            "GET / HTTP/1.1\r\nX@(y): 1\r\n: 2\r\nnothing\r\n\x01\x7f\r\nHost: a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nX: a\x01\x08\0b\r\nY: \u{ff}\rZ\r\nHost: a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\n \r\nHost: b\r\n\r\n",
            &format!("GET / HTTP/1.1\r\n{many}Host: a.example\r\n\r\n"),
        ] {
            assert_eq!(head(lines.as_bytes()), named, "{lines:?}");
            assert!(!is_host_pending(lines.as_bytes()), "{lines:?}");
        }
        let folded = b"GET / HTTP/1.1\r\nHost: a\r\n b\r\nX";
        assert_eq!(head(folded), request(Some("a b")));
        for (lines, host) in [
            ("GET / HTTP/1.0\r\n\r\nHost: body\r\n", None),
            ("GET / HTTP/1.1\r\nHost:\r\n\r\n", Some("")),
            ("GET / HTTP/1.1\r\nHost: x\x01y\r\n\r\n", Some("x\x01y")),
        ] {
            assert_eq!(head(lines.as_bytes()), request(host), "{lines:?}");
        }
        // The value of an empty field may follow in the next segment.
        assert!(is_host_pending(b"GET / HTTP/1.1\r\nHost:\r\n"));
        assert_eq!(head(b"GET /\r\nHost: a\r\n\r\n"), None);
    }

    fn host_of(request: &str) -> Option<String> {
        match head(request.as_bytes()) {
            Some(HttpHead::Request { host, .. }) => host,
            other => panic!("{request}: {other:?}"),
        }
    }

    #[test]
    fn the_authority_of_the_target_is_the_host() {
        for (line, host) in [
            ("GET http://a.example/x HTTP/1.0", "a.example"),
            ("GET http://a.example:81 HTTP/1.0", "a.example:81"),
            ("GET HTTPS://u:p@a.example?x=/ HTTP/1.1", "a.example"),
            (
                "GET ftp://[2001:db8::1]:21/a b HTTP/1.1",
                "[2001:db8::1]:21",
            ),
            ("CONNECT a.example:443 HTTP/1.0", "a.example:443"),
            ("CONNECT http://a.example:443 HTTP/1.0", "a.example:443"),
            // Not an authority: the field is the host.
            ("GET /x?to=http://b.example/ HTTP/1.1", "field"),
            ("GET http:///x HTTP/1.1", "field"),
            ("OPTIONS * HTTP/1.1", "field"),
        ] {
            let found = host_of(&format!("{line}\r\nHost: field\r\n\r\n"));
            assert_eq!(found.as_deref(), Some(host), "{line}");
        }
        // The authority is complete before its line is.
        for cut in ["GET http://a.example/", "CONNECT a.example "] {
            assert_eq!(host_of(cut), Some("a.example".into()), "{cut}");
            assert!(is_host_pending(cut.as_bytes()));
        }
        assert_eq!(host_of("GET http://a.exam"), None);
    }

    #[test]
    fn requests_of_any_method_and_no_other_text() {
        for line in [
            "PROPFIND /x HTTP/1.1\r\n",
            "M-SEARCH * HTTP/1.1\r\n",
            "RPC_IN_DATA /rpc?a b HTTP/1.1\n",
            "NOTIFY http://a/ HTTP/1.1\r\n",
            "get / HTTP/1.1\r\n",
            "connect a:1 HTTP/1.1\r\n",
            "\r\nGET\t/ HTTP/1.0\r\n",
            "x /x HTTP/1.1\r\n",
            "SEARCH x HTTP/1.1\r\n",
        ] {
            assert_eq!(is_request(line.as_bytes()), Some(true), "{line}");
            let request = line.trim_start();
            let method = request.split([' ', '\t']).next().unwrap();
            let found = head(line.as_bytes());
            assert!(
                matches!(&found, Some(HttpHead::Request { method: it, .. }) if it == method),
                "{found:?}"
            );
        }
        for text in [
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "USER anonymous\r\n",
            "MAIL FROM:<a@b>\r\n",
            "REGISTER sip:a SIP/2.0\r\n",
            "DESCRIBE rtsp://a/ RTSP/1.0\r\n",
            "SETUP * RTSP/1.0\r\n",
            "as in HTTP/1.1\r\n",
            "see HTTP/1.1\r\n",
            "var x = 1;",
            "hello",
            "ls\r\n",
            "{\"a\": \"/ HTTP/1.1\"}\n",
            "\r\n",
            "THIS-WORD-IS-LONGER-THAN-ANY-METHOD",
        ] {
            assert_eq!(is_request(text.as_bytes()), Some(false), "{text}");
        }
        for begun in [
            "P",
            "PROPFIND",
            "REPORT ",
            "REPORT /x HT",
            "SEARCH htt",
            "\r\nM-",
        ] {
            assert_eq!(is_request(begun.as_bytes()), None, "{begun}");
        }
        // Commands of four letters, which are recognized before their end.
        assert!(is_host_pending(b"POST") && is_host_pending(b"PATC"));
        assert!(is_status_pending(b"HTTP/1.1 20") && !is_status_pending(b"HTTP/1.1 200\r\n"));
        assert_eq!(
            head(b"HTTP/1.1\t\t200\n"),
            Some(HttpHead::Response { status: 200 })
        );
        assert_eq!(head(b"HTTP/1.1 2000\r\n"), None);
        assert_eq!(head(b"HTTP/1.1 +20\r\n"), None);
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
