//! Errors of values of configuration keys: addresses, protocols, names.

use std::net::IpAddr;

/// Text that is not a valid value of a configuration key. It is quoted as given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigValueError {
    /// Text that is not a MAC address.
    #[error("{0:?} is not a MAC address; write \"01:80:c2:00:00:0e\"")]
    NotAMac(String),
    /// MAC address with more than six bytes.
    #[error("{0:?} is too long for a MAC address")]
    MacTooLong(String),
    /// Text that is not an IP address or prefix.
    #[error("{0:?} is not an address; write \"10.0.0.0/8\" or \"2001:db8::/32\"")]
    NotANet(String),
    /// Prefix that is longer than its address.
    #[error("{text:?}: the prefix of an address has at most {most} bits")]
    PrefixTooLong {
        /// Address and prefix as given.
        text: String,
        /// Number of bits of the address.
        most: u8,
    },
    /// Address with bits set behind its prefix.
    #[error("{text:?} has address bits beyond its prefix; write {masked}/{prefix}")]
    BitsBeyondPrefix {
        /// Address and prefix as given.
        text: String,
        /// Address without the bits behind its prefix.
        masked: IpAddr,
        /// Number of bits of the prefix.
        prefix: u8,
    },
    /// Text that is not the name of an IP protocol.
    #[error("{text:?} is not a protocol; write one of {}, or a number", known.join(", "))]
    NotAProtocol {
        /// Name of the protocol as given.
        text: String,
        /// Names of the known protocols.
        known: Vec<&'static str>,
    },
    /// Text that is not an address with a port to listen on.
    #[error("{0:?} is not an address; write ADDRESS:PORT or HOST:PORT, such as \"127.0.0.1:9464\"")]
    NotAnEndpoint(String),
    /// Text that cannot name a sensor.
    #[error(
        "{text:?} is not a sensor's name; write at most {most} letters, digits, \"-\", \"_\" or \".\", and no \".\" at the start"
    )]
    NotASensor {
        /// Name of the sensor as given.
        text: String,
        /// Maximum length of a sensor's name in bytes.
        most: usize,
    },
    /// Empty value of `ship.packets`.
    #[error("is empty; write \"all\", \"none\" or a filter")]
    NoPackets,
}
