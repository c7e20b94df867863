//! Address to listen on, with an IP address or a host name: `127.0.0.1:9464`, `[::1]:9464`,
//! `sensor7:9464`.
//!
//! Host names are resolved when the endpoint starts, not when the configuration is read.

use super::ConfigValueError;
use serde::{Deserialize, Serialize};
use std::{
    fmt, io,
    net::{SocketAddr, ToSocketAddrs},
};

/// Host and port of a TCP endpoint to listen on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Listen {
    host: String,
    /// TCP port number to listen on; 0: any free port.
    pub port: u16,
}

impl Listen {
    /// Resolves the host to listen on to its socket addresses.
    ///
    /// # Errors
    /// The host cannot be resolved, or has no address.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let addresses: Vec<_> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        if addresses.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("the host {} has no IP address", self.host),
            ));
        }
        Ok(addresses)
    }
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: address.ip().to_string(),
            port: address.port(),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> Self {
        listen.to_string()
    }
}

impl TryFrom<String> for Listen {
    type Error = ConfigValueError;

    fn try_from(text: String) -> Result<Self, ConfigValueError> {
        let read = || {
            if let Ok(address) = text.parse::<SocketAddr>() {
                return Some(address.into());
            }
            let (host, port) = text.rsplit_once(':')?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            let named = !host.is_empty() && host.chars().all(is_name);
            Some(Self {
                host: named.then(|| host.to_owned())?,
                port: port.parse().ok()?,
            })
        };
        read().ok_or(ConfigValueError::NotAnEndpoint(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(text: &str) -> Result<Listen, ConfigValueError> {
        text.to_owned().try_into()
    }

    #[test]
    fn addresses_and_names_read_and_print() {
        for text in [
            "127.0.0.1:9464",
            "[::1]:0",
            "localhost:9464",
            "sensor-7.lan:80",
        ] {
            assert_eq!(listen(text).expect(text).to_string(), text);
        }
        for text in ["9464", ":9464", "a:b", "a b:1", "a:65536", "::1:80x", ""] {
            assert!(listen(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_is_looked_up() {
        let here = listen("localhost:7")
            .expect("parses")
            .resolve()
            .expect("localhost resolves");
        assert!(
            here.iter()
                .all(|it| it.ip().is_loopback() && it.port() == 7),
            "{here:?}"
        );
        let literal = listen("[::1]:7")
            .expect("parses")
            .resolve()
            .expect("a literal address resolves");
        assert_eq!(literal, ["[::1]:7".parse().expect("an address")]);
    }
}
