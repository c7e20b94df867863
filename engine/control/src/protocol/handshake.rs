//! The handshake over RDMA, where no kernel identifies the client: both sides prove that they have the key ([`super::auth`]).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The version of the handshake; both sides need the same. Since version 2 proofs bind addresses and the service's
/// identity.
pub const HANDSHAKE_VERSION: u32 = 2;

/// The messages of the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Handshake {
    /// From the service, before anything else.
    Challenge(Challenge),
    /// From the client: the proof that it has the key.
    Proof {
        /// The access it asks for, which selects the key.
        access: AccessLevel,
        /// 32 random bytes of its own, in hex.
        nonce: String,
        /// The client's HMAC, in hex.
        mac: String,
    },
    /// From the service: the proof that it has the key too. It accepts requests from now on.
    Welcome {
        /// The service's HMAC, in hex.
        mac: String,
    },
}

/// What the service asks a client to prove its key over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Challenge {
    /// The version of the handshake, [`HANDSHAKE_VERSION`].
    pub version: u32,
    /// The service's identity: machine, device, port, and a number of its own for each start.
    #[serde(default)]
    pub service: String,
    /// 32 random bytes, in hex.
    pub nonce: String,
}

impl Handshake {
    /// JSON without a line break.
    #[must_use]
    pub fn text(&self) -> String {
        // Strings and integers always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// What a client may do.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum AccessLevel {
    /// Read state.
    ReadOnly,
    /// Read state and change it.
    ReadWrite,
}
