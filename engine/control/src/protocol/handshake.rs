//! Handshake over RDMA, where no kernel identifies the client: both sides prove that they have the
//! key ([`super::auth`]).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version of the RDMA handshake; both sides must use the same one. Since version 2, proofs include
/// the addresses and the service's identity.
pub const HANDSHAKE_VERSION: u32 = 2;

/// Messages of the RDMA handshake, in which client and service authenticate each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Handshake {
    /// Challenge of the service, the first handshake message.
    Challenge(Challenge),
    /// Proof that the client has the key; sent by the client.
    Proof {
        /// Access level that the client requests, which selects the key.
        access: AccessLevel,
        /// Nonce of the client: 32 random bytes, in hex.
        nonce: String,
        /// HMAC of the client over the handshake transcript, in hex.
        mac: String,
    },
    /// Proof that the service has the key, too; sent by the service, which accepts requests from
    /// now on.
    Welcome {
        /// HMAC of the service over the handshake transcript, in hex.
        mac: String,
    },
}

/// Challenge of the service, over which a client must prove its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Challenge {
    /// Version of the RDMA handshake, [`HANDSHAKE_VERSION`].
    pub version: u32,
    /// Identity of the service: machine, device, port, and a random number that is new at each
    /// start.
    #[serde(default)]
    pub service: String,
    /// Nonce of the service: 32 random bytes, in hex.
    pub nonce: String,
}

impl Handshake {
    /// Returns the handshake message as JSON without a line break.
    #[must_use]
    pub fn text(&self) -> String {
        // Strings and integers always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Access level of a client of the control service.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum AccessLevel {
    /// The client may read the state of the capture and of the service.
    ReadOnly,
    /// The client may read and change the state of the capture and of the service.
    ReadWrite,
}
