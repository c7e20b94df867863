//! Parser of DNS messages: RFC 1035 section 4. Only header and questions are parsed, so a malformed
//! or truncated record does not hide a name.

use crate::PayloadError;
use domain::base::Message;

/// Maximum number of questions that are parsed per DNS message. Servers answer only one.
const MOST_QUESTIONS: usize = 16;

/// Parsed DNS query or answer.
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

/// Question of a DNS message.
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

    /// Parses the DNS messages of a TCP segment, each preceded by its length.
    ///
    /// # Errors
    /// A message is truncated or unreadable; the messages before it are returned.
    pub fn read_all(mut bytes: &[u8]) -> (Vec<Self>, Result<(), PayloadError>) {
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            let Some((message, rest)) = split_first_message(bytes) else {
                return (messages, Err(PayloadError));
            };
            match Self::read(message) {
                Ok(message) => messages.push(message),
                Err(unreadable) => return (messages, Err(unreadable)),
            }
            bytes = rest;
        }
        (messages, Ok(()))
    }
}

/// Splits a stream of DNS over TCP into its first message and the bytes after it.
fn split_first_message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a message of header and questions.
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
}
