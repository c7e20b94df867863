//! Errors of values of configuration keys: addresses, protocols, names.

use std::net::IpAddr;

/// Text that is not a valid value of a configuration key. It is quoted as given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigValueError {
    /// Configuration value that is not a MAC address.
    #[error("{0:?} is not a MAC address; write \"01:80:c2:00:00:0e\"")]
    NotAMac(String),
    /// Configuration value with more than the six bytes of a MAC address.
    #[error(
        "{0:?} is too long for a MAC address, which has six bytes; write \"01:80:c2:00:00:0e\""
    )]
    MacTooLong(String),
    /// Configuration value that is not an IP address or prefix.
    #[error("{0:?} is not an address; write \"10.0.0.0/8\" or \"2001:db8::/32\"")]
    NotANet(String),
    /// IP network whose prefix is longer than its address.
    #[error("{text:?}: the prefix of an address has at most {most} bits")]
    PrefixTooLong {
        /// Text of the wrong IP network in the configuration: address and prefix.
        text: String,
        /// Number of bits of the IP address, the maximum prefix.
        most: u8,
    },
    /// IP network whose address has bits set behind its prefix.
    #[error("{text:?} has address bits beyond its prefix; write {masked}/{prefix}")]
    BitsBeyondPrefix {
        /// IP address and prefix as given in the configuration.
        text: String,
        /// Address of the wrong IP network, with the bits behind its prefix set to 0.
        masked: IpAddr,
        /// Number of bits of the IP network's prefix.
        prefix: u8,
    },
    /// Configuration value that is not the name of an IP protocol.
    #[error("{text:?} is not a protocol; write one of {}, or a number", known.join(", "))]
    NotAProtocol {
        /// Name of the IP protocol as given in the configuration.
        text: String,
        /// Names of the IP protocols that the configuration accepts.
        known: Vec<&'static str>,
    },
    /// Configuration value that is not an address with a port to listen on.
    #[error("{0:?} is not an address; write ADDRESS:PORT or HOST:PORT, such as \"127.0.0.1:9464\"")]
    NotAnEndpoint(String),
    /// Configuration value that cannot name a sensor (a capture in the object store).
    #[error(
        "{text:?} is not a sensor's name; write at most {most} letters, digits, \"-\", \"_\" or \".\", and no \".\" at the start"
    )]
    NotASensor {
        /// Name of the sensor as given in the configuration.
        text: String,
        /// Maximum length of a sensor's name in bytes.
        most: usize,
    },
    /// Empty value of the configuration key `ship.packets`.
    #[error("is empty; write \"all\", \"none\" or a filter")]
    NoPackets,
}
