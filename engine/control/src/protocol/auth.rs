//! Mutual authentication of client and service over RDMA, where no kernel identifies the peer: each
//! side proves that it has the key.
//!
//! The service sends a random challenge. The client answers with a nonce and an HMAC-SHA256 over
//! the challenge, the nonce, the requested access, the numbers of both QPs, the addresses of both
//! sides and the service's identity. The service answers with its HMAC over the same transcript. A
//! proof is valid for one challenge of one service on one connection and for one access: it cannot
//! be passed on to another service with the same key. The messages that follow are neither
//! encrypted nor signed: the fabric must be trusted.

use super::{
    handshake::{AccessLevel, Challenge, HANDSHAKE_VERSION},
    secret::Secret,
};
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::Sha256;
use std::{
    fs::{self, File},
    io::{self, Read},
    net::{IpAddr, SocketAddr},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};
use zeroize::Zeroizing;

/// Length in bytes of a nonce, the random number of an authentication.
const NONCE: usize = 32;
/// Minimum length in bytes of an authentication key in a key file.
const SHORTEST: usize = 16;
/// Maximum length in bytes of a file of authentication keys.
const LONGEST: usize = 64 << 10;

/// Side of an RDMA connection that proves its key: the proof of one side is not valid for the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The client, which connects to the service.
    Client,
    /// The service, which accepts the connection.
    Service,
}

/// Transcript of the RDMA handshake, over which both sides compute their proofs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript {
    /// Challenge of the service: its identity and its nonce.
    pub challenge: Challenge,
    /// Nonce of the client: 32 random bytes, in hex.
    pub answer: String,
    /// Access level that the client requests from the service.
    pub access: AccessLevel,
    /// QP number of the service's side of the connection.
    pub service_qp: u32,
    /// QP number of the client's side of the connection.
    pub client_qp: u32,
    /// Address of the service, to which the client connects.
    pub service: SocketAddr,
    /// IP address of the client.
    pub client: IpAddr,
}

/// Authentication keys of a key file. They are zeroised when the last clone is dropped.
#[derive(Clone, Default)]
pub struct Keys {
    read_only: Option<Arc<Secret>>,
    read_write: Option<Arc<Secret>>,
}

/// Error from reading a file of authentication keys.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", path.display(), self.problem())]
pub struct KeyFileError {
    path: PathBuf,
    source: io::Error,
}

impl KeyFileError {
    /// Returns the reason why the key file cannot be used, without the file's path.
    #[must_use]
    pub fn problem(&self) -> String {
        let text = self.source.to_string();
        let words = text.split_once(" (os error").map(|(words, _)| words);
        words.unwrap_or(&text).to_owned()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    read_only: Option<Zeroizing<String>>,
    read_write: Option<Zeroizing<String>>,
}

impl Keys {
    /// Reads a file of authentication keys: TOML with `read_only` and `read_write`, each in hex and
    /// at least 16 bytes long.
    ///
    /// # Errors
    /// The key file cannot be read, is accessible to every user, or is malformed.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let failed = |source| KeyFileError {
            path: path.into(),
            source,
        };
        let refused = |problem: String| failed(io::Error::new(io::ErrorKind::InvalidData, problem));
        let mode = fs::metadata(path).map_err(failed)?.mode();
        if mode & 0o007 != 0 {
            return Err(refused(format!(
                "mode {:04o} of the key file gives every user access; run `chmod o-rwx` and generate new keys",
                mode & 0o777
            )));
        }
        let mut text = Zeroizing::new(String::with_capacity(LONGEST));
        let file = File::open(path).map_err(failed)?;
        let read = file.take(LONGEST as u64 + 1).read_to_string(&mut text);
        if read.map_err(failed)? > LONGEST {
            return Err(refused(format!(
                "the file has more than {LONGEST} bytes; a key file has two keys"
            )));
        }
        // The parser's message would quote the key.
        let file: KeyFile = toml::from_str(&text).map_err(|_| {
            refused("not a key file; write read_only = \"HEX\" and read_write = \"HEX\"".into())
        })?;
        let key = |text: Option<Zeroizing<String>>| {
            let Some(text) = text else { return Ok(None) };
            let (len, mut is_hex) = (text.len() / 2, false);
            let secret = Secret::new(len, |bytes| is_hex = unhex_into(&text, bytes));
            let secret = secret.map_err(failed)?;
            if !is_hex || len < SHORTEST {
                return Err(refused(format!(
                    "a key of the file is not in hex or too short: it must have at least {SHORTEST} bytes; \
                     `openssl rand -hex 32` generates one"
                )));
            }
            Ok(Some(Arc::new(secret)))
        };
        let keys = Self {
            read_only: key(file.read_only)?,
            read_write: key(file.read_write)?,
        };
        if keys.read_only.is_none() && keys.read_write.is_none() {
            return Err(refused(
                "the file contains no key; `openssl rand -hex 32` generates one".into(),
            ));
        }
        if keys.read_only.as_deref().map(Secret::bytes)
            == keys.read_write.as_deref().map(Secret::bytes)
        {
            return Err(refused(
                "both keys of the file are the same: read-only clients would have read-write access".into(),
            ));
        }
        Ok(keys)
    }

    /// Returns the highest access level that these authentication keys give.
    #[must_use]
    pub fn access(&self) -> AccessLevel {
        match self.read_write {
            Some(_) => AccessLevel::ReadWrite,
            None => AccessLevel::ReadOnly,
        }
    }

    /// Returns the proof of the side `role` for the handshake transcript, in hex; `None`: no key is
    /// for the transcript's access level.
    #[must_use]
    pub fn prove(&self, role: Role, transcript: &Transcript) -> Option<String> {
        Some(hex(&self.mac(role, transcript)?.finalize().into_bytes()))
    }

    /// Returns `true` if `proof` is the proof of the side `role` for the handshake transcript.
    /// Compares in constant time.
    #[must_use]
    pub fn verify(&self, role: Role, transcript: &Transcript, proof: &str) -> bool {
        match (self.mac(role, transcript), unhex(proof)) {
            (Some(mac), Some(proof)) => mac.verify_slice(&proof).is_ok(),
            _ => false,
        }
    }

    fn mac(&self, role: Role, transcript: &Transcript) -> Option<Hmac<Sha256>> {
        let key = match transcript.access {
            AccessLevel::ReadOnly => self.read_only.as_ref(),
            AccessLevel::ReadWrite => self.read_write.as_ref(),
        }?;
        let mut mac = Hmac::<Sha256>::new_from_slice(key.bytes()).ok()?;
        // Every field has a fixed form and its own line, so no two transcripts give the same text.
        // Both sides write IPv4 addresses in the IPv4 form, and omit the zone of an IPv6 address,
        // which differs between the sides.
        let text = format!(
            "wqcap control {HANDSHAKE_VERSION}\n{role:?}\n{:?}\n{:08x} {:08x}\n{}\n{}\n{} {}\n{}\n{}\n",
            transcript.access,
            transcript.service_qp,
            transcript.client_qp,
            transcript.challenge.nonce,
            transcript.answer,
            transcript.service.ip().to_canonical(),
            transcript.service.port(),
            transcript.client.to_canonical(),
            hex(transcript.challenge.service.as_bytes()),
        );
        mac.update(text.as_bytes());
        Some(mac)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// Returns a new nonce for an authentication: 32 random bytes, in hex.
///
/// # Errors
/// The system provides no random bytes.
pub fn nonce() -> io::Result<String> {
    let mut bytes = [0; NONCE];
    getrandom::fill(&mut bytes).map_err(|e| {
        io::Error::other(format!(
            "the system provides no random bytes for an authentication nonce: {e}"
        ))
    })?;
    Ok(hex(&bytes))
}

/// Returns `true` if `text` is an authentication nonce in hex.
#[must_use]
pub fn is_nonce(text: &str) -> bool {
    unhex(text).is_some_and(|it| it.len() == NONCE)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let mut bytes = vec![0; text.len() / 2];
    unhex_into(text, &mut bytes).then_some(bytes)
}

/// Decodes hexadecimal `text` into `bytes`; returns `true` if it is in hex and as long as `bytes`.
fn unhex_into(text: &str, bytes: &mut [u8]) -> bool {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|it| it as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    rest.is_empty()
        && pairs.len() == bytes.len()
        && pairs.iter().zip(bytes).all(|([high, low], to)| {
            let byte = digit(*high).zip(digit(*low));
            byte.inspect(|(high, low)| *to = high << 4 | low).is_some()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn keys() -> Keys {
        let key = |byte| Some(Arc::new(Secret::new(16, |it| it.fill(byte)).unwrap()));
        Keys {
            read_only: key(1),
            read_write: key(2),
        }
    }

    fn challenge(service: &str) -> Challenge {
        Challenge {
            version: HANDSHAKE_VERSION,
            service: service.into(),
            nonce: nonce().unwrap(),
        }
    }

    fn transcript() -> Transcript {
        Transcript {
            challenge: challenge("sensor"),
            answer: nonce().unwrap(),
            access: AccessLevel::ReadWrite,
            service_qp: 17,
            client_qp: 18,
            service: "10.0.0.1:7471".parse().unwrap(),
            client: "10.0.0.2".parse().unwrap(),
        }
    }

    #[test]
    fn a_proof_is_valid_for_its_transcript_only() {
        let (keys, transcript) = (keys(), transcript());
        let proof = keys.prove(Role::Client, &transcript).unwrap();
        assert!(keys.verify(Role::Client, &transcript, &proof));
        assert!(!keys.verify(Role::Service, &transcript, &proof));
        let others = [
            Transcript {
                challenge: challenge("sensor"),
                ..transcript.clone()
            },
            Transcript {
                challenge: Challenge {
                    service: "another".into(),
                    ..transcript.challenge.clone()
                },
                ..transcript.clone()
            },
            Transcript {
                service: "10.0.0.3:7471".parse().unwrap(),
                ..transcript.clone()
            },
            Transcript {
                service: "10.0.0.1:7472".parse().unwrap(),
                ..transcript.clone()
            },
            Transcript {
                client: "10.0.0.3".parse().unwrap(),
                ..transcript.clone()
            },
            Transcript {
                answer: nonce().unwrap(),
                ..transcript.clone()
            },
            Transcript {
                access: AccessLevel::ReadOnly,
                ..transcript.clone()
            },
            Transcript {
                service_qp: 19,
                ..transcript.clone()
            },
            Transcript {
                client_qp: 19,
                ..transcript.clone()
            },
        ];
        for other in others {
            assert!(!keys.verify(Role::Client, &other, &proof), "{other:?}");
        }
        let mapped = Transcript {
            service: "[::ffff:10.0.0.1]:7471".parse().unwrap(),
            client: "::ffff:10.0.0.2".parse().unwrap(),
            ..transcript.clone()
        };
        assert!(keys.verify(Role::Client, &mapped, &proof));
        for wrong in ["", "00", "zz", &proof[..62], &"0".repeat(64)] {
            assert!(!keys.verify(Role::Client, &transcript, wrong), "{wrong}");
        }
        let without = Keys {
            read_write: None,
            ..keys
        };
        assert!(!without.verify(Role::Client, &transcript, &proof));
        assert_eq!(without.prove(Role::Client, &transcript), None);
    }

    /// Checks HMAC-SHA256 with test case 2 of RFC 4231.
    #[test]
    fn the_mac_matches_the_published_one() {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        assert_eq!(
            hex(&mac.finalize().into_bytes()),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn a_key_file_must_be_private_and_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let read = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Keys::read(&path).map_err(|e| e.to_string())
        };
        let (one, other) = ("01".repeat(16), "02".repeat(16));
        let keys = read(
            &format!("read_only = \"{one}\"\nread_write = \"{other}\""),
            0o640,
        )
        .unwrap();
        assert_eq!(keys.access(), AccessLevel::ReadWrite);
        assert_eq!(
            read(&format!("read_only = \"{one}\""), 0o600)
                .unwrap()
                .access(),
            AccessLevel::ReadOnly
        );
        for (text, mode, part) in [
            (format!("read_only = \"{one}\""), 0o644, "0644"),
            (
                format!("read_only = \"{}\"", &one[..30]),
                0o600,
                "at least 16",
            ),
            ("read_only = \"x\"".into(), 0o600, "hex"),
            (format!("secret = \"{other}\""), 0o600, "read_write"),
            (String::new(), 0o600, "no key"),
            (
                format!("read_only = \"{one}\"\nread_write = \"{one}\""),
                0o600,
                "are the same",
            ),
        ] {
            let problem = read(&text, mode).unwrap_err();
            assert!(problem.contains(part), "{problem}");
            assert!(!problem.contains(&other), "an error never shows a key");
        }
    }
}
