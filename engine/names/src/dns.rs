//! Parser of DNS messages: RFC 1035 section 4. Only header and questions are parsed, so a malformed
//! or truncated record does not hide a name.

use crate::{MAX_PAYLOAD, PayloadError};
use domain::base::Message;

/// Maximum number of questions that are parsed per DNS message. Servers answer only one.
const MOST_QUESTIONS: usize = 16;

/// Parsed DNS query or answer: identifier, response code and questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsMessage {
    /// DNS identifier that is equal in a query and its answer.
    pub id: u16,
    /// Name of the DNS answer's response code, such as `NXDOMAIN`; `None` for a query.
    pub rcode: Option<String>,
    /// Number of resource records in the answer section of a DNS message.
    pub answers: u16,
    /// Questions of the DNS message, at most 16.
    pub questions: Vec<Question>,
}

/// Question of a DNS message: a name and a record type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Question {
    /// Queried DNS name in the format of zone files, without the final dot; `.` for the root.
    pub name: String,
    /// Queried DNS record type, such as `AAAA`.
    pub kind: String,
}

impl DnsMessage {
    /// Parses one DNS message.
    ///
    /// # Errors
    /// The header or a question is truncated, or a name is invalid.
    pub fn read(bytes: &[u8]) -> Result<Self, PayloadError> {
        let message = Message::from_octets(bytes).map_err(|_| PayloadError)?;
        let mut questions = Vec::new();
        for question in message.question().take(MOST_QUESTIONS) {
            let question = question.map_err(|_| PayloadError)?;
            let name = question.qname();
            questions.push(Question {
                name: if name.is_root() {
                    ".".into()
                } else {
                    name.to_string()
                },
                kind: question.qtype().to_string(),
            });
        }
        let header = message.header();
        Ok(Self {
            id: header.id(),
            rcode: header.qr().then(|| message.opt_rcode().to_string()),
            answers: message.header_counts().ancount(),
            questions,
        })
    }

    /// Parses the DNS messages of a TCP stream, each preceded by its length. The last message may
    /// be truncated after its questions.
    ///
    /// # Errors
    /// A message is truncated or unreadable; the other messages are returned.
    pub fn read_all(mut bytes: &[u8]) -> (Vec<Self>, Result<(), PayloadError>) {
        let (mut messages, mut ended) = (Vec::new(), Ok(()));
        while !bytes.is_empty() {
            let Some((len, rest)) = bytes.split_first_chunk().filter(|_| is_framed(bytes)) else {
                return (messages, Err(PayloadError));
            };
            let len = usize::from(u16::from_be_bytes(*len));
            let (message, rest) = rest.split_at(len.min(rest.len()));
            match Self::read(message) {
                Ok(message) => messages.push(message),
                Err(unreadable) => ended = Err(unreadable),
            }
            bytes = rest;
        }
        (messages, ended)
    }
}

/// Returns `true` if bytes of a stream may be the start of a DNS message, preceded by its length:
/// the message has a header, an assigned operation code (RFC 6895 section 2.2), and fewer than 256
/// questions.
pub(crate) fn is_framed(bytes: &[u8]) -> bool {
    let has_header = matches!(*bytes, [] | [0] | [1..=255, ..] | [0, 12..=255, ..]);
    let has_code = bytes.get(4).is_none_or(|it| it >> 3 & 0xf <= 6);
    let has_few_questions = bytes.get(6).is_none_or(|it| *it == 0);
    has_header && has_code && has_few_questions
}

/// Splits a stream of DNS over TCP into a part that can be parsed and a part that is not needed:
/// see [`crate::PayloadKind::split`].
pub(crate) fn split(stream: &[u8]) -> (usize, usize) {
    let mut at = 0;
    loop {
        let rest = &stream[at..];
        if !is_framed(rest) {
            return (stream.len(), 0);
        }
        let Some((len, message)) = rest.split_first_chunk() else {
            return (at, 0);
        };
        let len = usize::from(u16::from_be_bytes(*len));
        if message.len() >= len {
            at += rest.len() - message.len() + len;
        } else if at == 0 && stream.len() >= MAX_PAYLOAD {
            return (stream.len(), len - message.len());
        } else {
            return (at, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a DNS message of header and questions.
    fn message(flags: [u8; 2], questions: &[(&[u8], u16)], answers: u8) -> Vec<u8> {
        let mut bytes = vec![0x12, 0x34, flags[0], flags[1]];
        let count = u8::try_from(questions.len()).unwrap();
        bytes.extend([0, count, 0, answers, 0, 0, 0, 0]);
        for (name, kind) in questions {
            bytes.extend(*name);
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0, 1]);
        }
        bytes
    }

    fn question(name: &str, kind: &str) -> Question {
        Question {
            name: name.into(),
            kind: kind.into(),
        }
    }

    const NAME: &[u8] = b"\x03www\x07example\0";

    #[test]
    fn queries_and_answers() {
        let query = DnsMessage::read(&message([1, 0], &[(NAME, 28)], 0)).unwrap();
        let expected = DnsMessage {
            id: 0x1234,
            rcode: None,
            answers: 0,
            questions: vec![question("www.example", "AAAA")],
        };
        assert_eq!(query, expected);
        // All records of the answer are missing.
        let answer = DnsMessage::read(&message([0x81, 3], &[(NAME, 28)], 2)).unwrap();
        let expected = DnsMessage {
            rcode: Some("NXDOMAIN".into()),
            answers: 2,
            ..expected
        };
        assert_eq!(answer, expected);
    }

    #[test]
    fn the_upper_bits_of_a_code_are_in_the_options() {
        let mut bytes = message([0x81, 0], &[(NAME, 1)], 0);
        bytes[11] = 1;
        bytes.extend([0, 0, 41, 4, 0, 1, 0, 0, 0, 0, 0]);
        let answer = DnsMessage::read(&bytes).unwrap();
        assert_eq!(answer.rcode.as_deref(), Some("BADVERS"));
    }

    #[test]
    fn names_of_all_kinds() {
        let odd: &[u8] = b"\x04a.b\x01\0";
        let bytes = message(
            [0, 0],
            &[(NAME, 1), (&[0], 2), (odd, 65280), (&[0xc0, 12], 65)],
            0,
        );
        let names = DnsMessage::read(&bytes).unwrap().questions;
        let expected = [
            question("www.example", "A"),
            question(".", "NS"),
            question(r"a\.b\001", "TYPE65280"),
            question("www.example", "HTTPS"),
        ];
        assert_eq!(names, expected);
        let many = vec![(&b"\x01a\0"[..], 1); 40];
        let many = DnsMessage::read(&message([0, 0], &many, 0)).unwrap();
        assert_eq!(many.questions.len(), MOST_QUESTIONS);
    }

    #[test]
    fn invalid_messages_are_unreadable() {
        let whole = message([1, 0], &[(NAME, 28)], 0);
        for len in 0..whole.len() {
            assert_eq!(DnsMessage::read(&whole[..len]), Err(PayloadError), "{len}");
        }
        // A name with a pointer to itself, and a label of an obsolete type.
        for name in [&[0xc0, 12][..], b"\x41a\0"] {
            let bytes = message([1, 0], &[(name, 1)], 0);
            assert_eq!(DnsMessage::read(&bytes), Err(PayloadError));
        }
    }

    #[test]
    fn messages_of_a_stream() {
        let one = message([1, 0], &[(NAME, 28)], 0);
        let len = u16::try_from(one.len()).unwrap().to_be_bytes();
        let framed = [&len[..], &one].concat();
        let two = [&framed[..], &framed].concat();
        let (messages, ended) = DnsMessage::read_all(&two);
        assert_eq!((messages.len(), ended), (2, Ok(())));
        let (messages, ended) = DnsMessage::read_all(&two[..two.len() - 1]);
        assert_eq!((messages.len(), ended), (1, Err(PayloadError)));
    }

    /// Builds a DNS message as in a TCP stream, with further `records` bytes.
    fn framed(records: usize) -> Vec<u8> {
        let mut one = message([1, 0], &[(NAME, 28)], 0);
        one.resize(one.len() + records, 0);
        let len = u16::try_from(one.len()).unwrap().to_be_bytes();
        [&len[..], &one].concat()
    }

    #[test]
    fn a_message_does_not_hide_those_after_it() {
        let mut damaged = framed(0);
        damaged[14] = 0x41;
        let all = [framed(0), damaged, framed(0)].concat();
        let (messages, ended) = DnsMessage::read_all(&all);
        assert_eq!((messages.len(), ended), (2, Err(PayloadError)));
        // The records of a long message are not needed.
        let (messages, ended) = DnsMessage::read_all(&framed(9000)[..MAX_PAYLOAD]);
        assert_eq!((messages.len(), ended), (1, Ok(())));
    }

    #[test]
    fn streams_are_split_after_whole_messages() {
        let one = framed(0);
        let two = [&one[..], &one].concat();
        for len in 0..=two.len() {
            let ready = len / one.len() * one.len();
            assert_eq!(split(&two[..len]), (ready, 0), "{len}");
        }
        let long = framed(9000);
        assert_eq!(split(&long[..MAX_PAYLOAD - 1]), (0, 0));
        let rest = long.len() - MAX_PAYLOAD;
        assert_eq!(split(&long[..MAX_PAYLOAD]), (MAX_PAYLOAD, rest));
        let behind = [&one[..], &long].concat();
        assert_eq!(split(&behind[..MAX_PAYLOAD]), (one.len(), 0));
        // Too short for a header, an unassigned operation code, too many questions.
        for other in [&[0, 11][..], &[0, 99, 0, 0, 0x38], &[0, 99, 0, 0, 0, 0, 1]] {
            assert!(!is_framed(other));
            assert_eq!(split(other), (other.len(), 0));
            let behind = [&one[..], other].concat();
            assert_eq!(split(&behind), (behind.len(), 0));
        }
    }
}
