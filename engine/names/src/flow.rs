//! Names of one flow, collected from its payloads.

use crate::{
    PayloadError, Protocol,
    http::{self, HttpHead},
    quic::HelloPieces,
    ssh,
    tls::{self, Carrier, Hello},
};

/// Names found in the payloads of a flow. For each field the first value is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Names {
    /// Server name (SNI) in the client's hello of TLS or QUIC; `None`: none was found.
    pub tls_sni: Option<String>,
    /// Application protocols (ALPN) offered in the client's hello, separated by commas.
    pub tls_alpn: Option<String>,
    /// TLS version number chosen in the server's hello; only for TLS over TCP.
    pub tls_version: Option<u16>,
    /// JA4 fingerprint of the client's hello.
    pub ja4: Option<String>,
    /// Method of the flow's first HTTP request, such as `GET`.
    pub http_method: Option<String>,
    /// Host name in the flow's first HTTP request.
    pub http_host: Option<String>,
    /// Status code of the flow's first HTTP response.
    pub http_status: Option<u16>,
    /// SSH identification lines of the flow, one per direction.
    pub ssh: [Option<String>; 2],
}

impl Names {
    /// Returns all names of the flow that are texts.
    fn texts(&self) -> impl Iterator<Item = &String> {
        let [there, back] = &self.ssh;
        let all = [
            &self.tls_sni,
            &self.tls_alpn,
            &self.ja4,
            &self.http_method,
            &self.http_host,
            there,
            back,
        ];
        all.into_iter().flatten()
    }
}

/// Progress of parsing the hello of a QUIC client, which may come in several pieces.
#[derive(Default)]
enum Quic {
    /// No piece of the QUIC client's hello has been received yet.
    #[default]
    Unknown,
    /// Some pieces of the QUIC client's hello have been received, in the given direction.
    Begun(Box<HelloPieces>, usize),
    /// The QUIC client's hello is complete, or its parsing was abandoned.
    Over,
}

/// Parser of the names in one flow. Payloads must be passed in their order.
#[derive(Default)]
pub struct FlowNames {
    names: Names,
    quic: Quic,
}

impl FlowNames {
    /// Parses a payload of the flow for names, or as many of its bytes as
    /// [`crate::PayloadKind::wanted`] returns. `way` is the direction, 0 or 1.
    ///
    /// # Errors
    /// The payload is not of the protocol `protocol`, or it is truncated.
    pub fn read(
        &mut self,
        protocol: Protocol,
        way: usize,
        bytes: &[u8],
    ) -> Result<(), PayloadError> {
        match protocol {
            Protocol::Tls => self.record_hello(tls::hello(bytes).ok_or(PayloadError)?),
            Protocol::Quic => self.initial(way, bytes)?,
            Protocol::Http => match http::head(bytes).ok_or(PayloadError)? {
                HttpHead::Request { method, host } => {
                    // The head may be longer than the bytes that are read.
                    let is_cut = host.is_none() && http::is_host_pending(bytes);
                    if self.names.http_method.is_none() {
                        self.names.http_method = Some(method);
                        self.names.http_host = host;
                    }
                    if is_cut {
                        return Err(PayloadError);
                    }
                }
                HttpHead::Response { status } => {
                    self.names.http_status.get_or_insert(status);
                }
            },
            Protocol::Ssh => {
                let banner = ssh::banner(bytes).ok_or(PayloadError)?;
                self.names.ssh[way & 1].get_or_insert(banner);
            }
        }
        Ok(())
    }

    /// Stores the names in a TLS hello of the flow.
    fn record_hello(&mut self, hello: Hello) {
        match hello {
            Hello::Client { sni, alpn, ja4 } => {
                if self.names.ja4.is_none() {
                    self.names.tls_sni = sni;
                    self.names.tls_alpn = alpn;
                    self.names.ja4 = Some(ja4);
                }
            }
            Hello::Server { version } => {
                self.names.tls_version.get_or_insert(version);
            }
        }
    }

    /// Parses a datagram with QUIC Initial packets. Those of the server have other keys and are
    /// ignored.
    fn initial(&mut self, way: usize, datagram: &[u8]) -> Result<(), PayloadError> {
        let mut pieces = match std::mem::replace(&mut self.quic, Quic::Over) {
            Quic::Over => return Ok(()),
            Quic::Begun(pieces, from) if from != way => {
                self.quic = Quic::Begun(pieces, from);
                return Ok(());
            }
            Quic::Begun(mut pieces, _) => match pieces.add(datagram) {
                Some(()) => pieces,
                // After a Retry the client starts again, with keys of another connection ID.
                None => match HelloPieces::begin(datagram) {
                    Some(restarted) => Box::new(restarted),
                    None => {
                        self.quic = Quic::Begun(pieces, way);
                        return Err(PayloadError);
                    }
                },
            },
            Quic::Unknown => match HelloPieces::begin(datagram) {
                Some(pieces) => Box::new(pieces),
                None => {
                    self.quic = Quic::Unknown;
                    return Err(PayloadError);
                }
            },
        };
        match pieces.hello() {
            Some(message) => {
                let hello = tls::message(&message, Carrier::Quic).ok_or(PayloadError)?;
                self.record_hello(hello);
            }
            None => self.quic = Quic::Begun(pieces, way),
        }
        Ok(())
    }

    /// Returns the names found in the flow so far.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the names found in a flow that has ended; `None` if no name was found.
    #[must_use]
    pub fn into_names(self) -> Option<Names> {
        (self.names != Names::default()).then_some(self.names)
    }

    /// Returns the memory in bytes that this names parser of one flow occupies.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let texts: usize = self.names.texts().map(String::capacity).sum();
        let quic = match &self.quic {
            Quic::Begun(pieces, _) => pieces.bytes(),
            Quic::Unknown | Quic::Over => 0,
        };
        size_of::<Self>() + texts + quic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIC: &[u8] = include_bytes!("../../../fuzz/corpus/names/quic-v1");

    #[test]
    fn the_first_value_of_each_field_is_kept() {
        let mut flow = FlowNames::default();
        let mut read = |protocol, way, bytes: &str| flow.read(protocol, way, bytes.as_bytes());
        let http = Protocol::Http;
        assert_eq!(read(http, 0, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(()));
        assert_eq!(read(http, 1, "HTTP/1.1 301 x\r\n\r\n"), Ok(()));
        assert_eq!(read(http, 0, "POST / HTTP/1.1\r\nHost: b\r\n\r\n"), Ok(()));
        assert_eq!(read(http, 1, "HTTP/1.1 200 x\r\n\r\n"), Ok(()));
        assert_eq!(read(http, 1, "HTTP!"), Err(PayloadError));
        assert_eq!(
            read(http, 0, "PUT / HTTP/1.1\r\nA: b\r\n"),
            Err(PayloadError)
        );
        assert_eq!(read(Protocol::Ssh, 1, "SSH-2.0-b\r\n"), Ok(()));
        assert_eq!(read(Protocol::Ssh, 1, "SSH-2.0-c\r\n"), Ok(()));
        assert_eq!(read(Protocol::Tls, 1, "\x16\x03"), Err(PayloadError));
        let expected = Names {
            http_method: Some("GET".into()),
            http_host: Some("a".into()),
            http_status: Some(301),
            ssh: [None, Some("SSH-2.0-b".into())],
            ..Names::default()
        };
        assert_eq!(flow.into_names(), Some(expected));
    }

    #[test]
    fn quic_datagrams_of_both_directions() {
        let mut flow = FlowNames::default();
        let datagram = &QUIC[1..];
        let mut damaged = datagram.to_vec();
        damaged[900] ^= 1;
        let mut read = |way, bytes: &[u8]| flow.read(Protocol::Quic, way, bytes);
        assert_eq!(read(0, &damaged), Err(PayloadError));
        assert_eq!(read(0, datagram), Ok(()));
        // The hello is complete, so datagrams of the server are not parsed.
        assert_eq!(read(1, &damaged), Ok(()));
        let names = flow.into_names().expect("names");
        assert_eq!(names.tls_sni.as_deref(), Some("example.com"));
        assert!(names.ja4.is_some_and(|it| it.starts_with("q13d")));
    }

    #[test]
    fn a_flow_without_names() {
        assert_eq!(FlowNames::default().into_names(), None);
    }
}
