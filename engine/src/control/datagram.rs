//! What is said without a connection: queries, their answers, and announcements.
//!
//! No handshake comes before them, so each carries its own proof: an HMAC-SHA256, with one of the keys, over what it
//! is, when it was said, from which QP to which, and its text. Who hears it believes nothing that is not signed, was
//! said more than [`AGE`] ago by its own clock, or was heard before ([`Recent`]).

use super::{
    auth::{self, Keys},
    message::{Access, VERSION},
};
use crate::Error;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

/// How far the clocks of both sides may be apart, the way of the datagram included.
pub const AGE: Duration = Duration::from_secs(30);
/// Datagrams remembered at most: far above what [`super::limits::Limits::rate`] lets in during twice [`AGE`].
const REMEMBERED: usize = 1 << 14;

/// A signed message without a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Datagram {
    /// [`VERSION`].
    pub version: u32,
    /// What it is.
    pub kind: Kind,
    /// Which key it is signed with.
    pub access: Access,
    /// When it was said: milliseconds since 1970.
    pub time_ms: u64,
    /// 32 random bytes, in hex; an answer has those of its query.
    pub nonce: String,
    /// The message, as over a connection: a request or an answer, in JSON. An announcement is an answer that nobody
    /// asked for, with number 0.
    pub text: String,
    /// HMAC-SHA256 over all of the above and the numbers of both QPs, in hex.
    pub mac: String,
}

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// To a service: a request.
    Query,
    /// From a service, to one query.
    Answer,
    /// From a service, to whom it may concern.
    Announcement,
}

/// From which QP to which; an announcement is to number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The sender's.
    pub from: u32,
    /// The receiver's.
    pub to: u32,
}

impl Datagram {
    /// Signs a text with the key that only lets look. `nonce`: of the query it answers; otherwise a fresh one.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn sign(
        keys: &Keys,
        kind: Kind,
        nonce: Option<String>,
        way: Way,
        text: String,
    ) -> Result<Self, Error> {
        let mut datagram = Self {
            version: VERSION,
            kind,
            access: keys.looking(),
            time_ms: now_ms(),
            nonce: nonce.map_or_else(auth::nonce, Ok)?,
            text,
            mac: String::new(),
        };
        let signed = datagram.signed(way);
        datagram.mac = keys.sign(datagram.access, &signed).unwrap_or_default();
        Ok(datagram)
    }

    /// Reads one that came this way, if it is of that kind, whole, signed and of now. Whether it was heard before
    /// [`Recent`] tells.
    #[must_use]
    pub fn read(keys: &Keys, kind: Kind, way: Way, bytes: &[u8]) -> Option<Self> {
        let it: Self = serde_json::from_slice(bytes).ok()?;
        let fits = it.version == VERSION
            && it.kind == kind
            && auth::is_nonce(&it.nonce)
            && is_of_now(it.time_ms, now_ms())
            && keys.is_signed(it.access, &it.signed(way), &it.mac);
        fits.then_some(it)
    }

    /// As bytes to be sent.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        // Strings and integers always print.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What is signed. All but the text has a fixed form and comes before it: no two datagrams read the same.
    fn signed(&self, way: Way) -> String {
        format!(
            "wqcap datagram {}\n{:?}\n{:?}\n{}\n{:08x} {:08x}\n{}\n{}",
            self.version,
            self.kind,
            self.access,
            self.time_ms,
            way.from,
            way.to,
            self.nonce,
            self.text
        )
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn is_of_now(time_ms: u64, now_ms: u64) -> bool {
    u128::from(time_ms.abs_diff(now_ms)) <= AGE.as_millis()
}

/// Signed datagrams that were heard while they could still be believed.
#[derive(Debug, Default)]
pub struct Recent(HashMap<String, u64>);

impl Recent {
    /// Whether this is heard for the first time. When more are to be remembered than there is room for, it is not
    /// believed either.
    pub fn is_new(&mut self, datagram: &Datagram) -> bool {
        self.is_new_at(datagram, now_ms())
    }

    fn is_new_at(&mut self, datagram: &Datagram, now_ms: u64) -> bool {
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, time_ms| is_of_now(*time_ms, now_ms));
        }
        self.0.len() < REMEMBERED
            && self
                .0
                .insert(datagram.nonce.clone(), datagram.time_ms)
                .is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: Way = Way { from: 17, to: 18 };

    fn keys() -> Keys {
        Keys::of(&[1; 16], &[2; 16])
    }

    fn query() -> Datagram {
        Datagram::sign(&keys(), Kind::Query, None, WAY, "{}".into()).unwrap()
    }

    #[test]
    fn a_datagram_is_believed_as_it_was_signed_and_no_other_way() {
        let query = query();
        assert_eq!(query.access, Access::ReadOnly);
        let read = |way, kind, bytes: &[u8]| Datagram::read(&keys(), kind, way, bytes);
        assert_eq!(read(WAY, Kind::Query, &query.bytes()), Some(query.clone()));
        let others = [
            Datagram {
                time_ms: query.time_ms + 1,
                ..query.clone()
            },
            Datagram {
                nonce: "00".repeat(32),
                ..query.clone()
            },
            Datagram {
                access: Access::ReadWrite,
                ..query.clone()
            },
            Datagram {
                text: "[]".into(),
                ..query.clone()
            },
            Datagram {
                mac: "00".repeat(32),
                ..query.clone()
            },
            Datagram {
                version: 2,
                ..query.clone()
            },
        ];
        for other in others {
            assert_eq!(read(WAY, Kind::Query, &other.bytes()), None, "{other:?}");
        }
        assert_eq!(read(WAY, Kind::Answer, &query.bytes()), None);
        for way in [Way { from: 18, to: 17 }, Way { from: 17, to: 0 }] {
            assert_eq!(read(way, Kind::Query, &query.bytes()), None, "{way:?}");
        }
        let stranger = Keys::of(&[3; 16], &[2; 16]);
        assert_eq!(
            Datagram::read(&stranger, Kind::Query, WAY, &query.bytes()),
            None
        );
        for bytes in [&b""[..], b"{}", &query.bytes()[1..]] {
            assert_eq!(read(WAY, Kind::Query, bytes), None);
        }
    }

    #[test]
    fn the_past_and_the_future_are_not_believed() {
        for seconds in [-31, 31] {
            let mut old = query();
            old.time_ms = old.time_ms.saturating_add_signed(seconds * 1000);
            old.mac = keys().sign(old.access, &old.signed(WAY)).unwrap();
            assert_eq!(
                Datagram::read(&keys(), Kind::Query, WAY, &old.bytes()),
                None
            );
        }
    }

    #[test]
    fn a_repetition_is_known_and_nothing_grows_without_end() {
        let mut recent = Recent::default();
        let mut query = query();
        let now = query.time_ms;
        assert!(recent.is_new_at(&query, now));
        assert!(!recent.is_new_at(&query, now));
        for i in 1..REMEMBERED {
            query.nonce = format!("{i:064x}");
            assert!(recent.is_new_at(&query, now), "{i}");
        }
        query.nonce = "f".repeat(64);
        assert!(!recent.is_new_at(&query, now), "no room");
        query.time_ms = now + 61_000;
        assert!(
            recent.is_new_at(&query, now + 61_000),
            "the others are too old by then"
        );
        assert_eq!(recent.0.len(), 1);
    }
}
