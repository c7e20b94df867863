//! Handshake over RDMA, where no kernel identifies the client: both sides prove that they have the
//! key ([`super::auth`]).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version of the handshake; both sides must use the same one. Since version 2, proofs include the
/// addresses and the service's identity.
pub const HANDSHAKE_VERSION: u32 = 2;

/// Messages of the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Handshake {
    /// Challenge, the first message; sent by the service.
    Challenge(Challenge),
    /// Proof that the client has the key; sent by the client.
    Proof {
        /// Requested access, which selects the key.
        access: AccessLevel,
        /// 32 random bytes from the client, in hex.
        nonce: String,
        /// The client's HMAC, in hex.
        mac: String,
    },
    /// Proof that the service has the key, too; sent by the service, which accepts requests from
    /// now on.
    Welcome {
        /// The service's HMAC, in hex.
        mac: String,
    },
}

/// Challenge of the service, over which a client must prove its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Challenge {
    /// Version of the handshake, [`HANDSHAKE_VERSION`].
    pub version: u32,
    /// Identity of the service: machine, device, port, and a random number that is new at each
    /// start.
    #[serde(default)]
    pub service: String,
    /// 32 random bytes, in hex.
    pub nonce: String,
}

impl Handshake {
    /// Returns the message as JSON without a line break.
    #[must_use]
    pub fn text(&self) -> String {
        // Strings and integers always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Access level of a client.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum AccessLevel {
    /// The client may read state.
    ReadOnly,
    /// The client may read and change state.
    ReadWrite,
}
