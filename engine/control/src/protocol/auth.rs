//! Mutual authentication of client and service over RDMA, where no kernel identifies the peer: each proves that it has
//! the key.
//!
//! The service sends a random challenge. The client answers with a nonce of its own and an HMAC-SHA256 over both, the
//! access it asks for, and the numbers of both QPs. The service answers with its own HMAC over the same transcript. A
//! proof is valid for one challenge on one connection and for one access. The messages that follow are neither encrypted
//! nor signed: the fabric must be trusted.

use super::handshake::AccessLevel;
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::Sha256;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Bytes of a nonce.
const NONCE: usize = 32;
/// Bytes of the shortest key.
const SHORTEST: usize = 16;

/// Who signs: the proof of one side is not valid for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that connects.
    Client,
    /// The side that accepts.
    Service,
}

/// What both sides sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript {
    /// The service's nonce, in hex.
    pub challenge: String,
    /// The client's nonce, in hex.
    pub answer: String,
    /// The access asked for.
    pub access: AccessLevel,
    /// Number of the service's QP.
    pub service_qp: u32,
    /// Number of the client's QP.
    pub client_qp: u32,
}

/// The keys of a key file.
#[derive(Clone, Default)]
pub struct Keys {
    read_only: Option<Vec<u8>>,
    read_write: Option<Vec<u8>>,
}

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("control.key_file {}: {source}", path.display())]
pub struct KeyFileError {
    path: PathBuf,
    source: io::Error,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    read_only: Option<String>,
    read_write: Option<String>,
}

impl Keys {
    /// Reads a key file: TOML with `read_only` and `read_write`, each in hex and at least 16 bytes.
    ///
    /// # Errors
    /// The file cannot be read, is accessible to others, or is not a key file.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let failed = |source| KeyFileError {
            path: path.into(),
            source,
        };
        let refused = |problem: String| failed(io::Error::new(io::ErrorKind::InvalidData, problem));
        let mode = fs::metadata(path).map_err(failed)?.mode();
        if mode & 0o007 != 0 {
            return Err(refused(format!(
                "mode {:04o} gives every user access; run `chmod o-rwx` and generate new keys",
                mode & 0o777
            )));
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        // The parser's message would quote the key.
        let file: KeyFile = toml::from_str(&text)
            .map_err(|_| refused("write read_only = \"HEX\" and read_write = \"HEX\"".into()))?;
        let key = |text: Option<String>| match text.as_deref().map(unhex) {
            None => Ok(None),
            Some(Some(key)) if key.len() >= SHORTEST => Ok(Some(key)),
            Some(_) => Err(refused(format!(
                "a key has at least {SHORTEST} bytes in hex; `openssl rand -hex 32` generates one"
            ))),
        };
        let keys = Self {
            read_only: key(file.read_only)?,
            read_write: key(file.read_write)?,
        };
        if keys.read_only.is_none() && keys.read_write.is_none() {
            return Err(refused("the file contains no key".into()));
        }
        if keys.read_only == keys.read_write {
            return Err(refused(
                "both keys are the same: read-only clients would have read-write access".into(),
            ));
        }
        Ok(keys)
    }

    /// The highest access these keys give.
    #[must_use]
    pub fn access(&self) -> AccessLevel {
        match self.read_write {
            Some(_) => AccessLevel::ReadWrite,
            None => AccessLevel::ReadOnly,
        }
    }

    /// The proof of `role`, in hex; `None` without the key.
    #[must_use]
    pub fn prove(&self, role: Role, transcript: &Transcript) -> Option<String> {
        Some(hex(&self.mac(role, transcript)?.finalize().into_bytes()))
    }

    /// Whether `proof` is the proof of `role`. Compares in constant time.
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
        let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
        // Every field has a fixed form and its own line, so no two transcripts give the same text.
        let text = format!(
            "wqcap control 1\n{role:?}\n{:?}\n{:08x} {:08x}\n{}\n{}\n",
            transcript.access,
            transcript.service_qp,
            transcript.client_qp,
            transcript.challenge,
            transcript.answer
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

/// Fresh random bytes, in hex.
///
/// # Errors
/// The system provides none.
pub fn nonce() -> io::Result<String> {
    let mut bytes = [0; NONCE];
    getrandom::fill(&mut bytes).map_err(|e| io::Error::other(format!("random bytes: {e}")))?;
    Ok(hex(&bytes))
}

/// Whether a text is a nonce.
#[must_use]
pub fn is_nonce(text: &str) -> bool {
    unhex(text).is_some_and(|it| it.len() == NONCE)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .chars()
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty()
        .then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn keys() -> Keys {
        Keys {
            read_only: Some(vec![1; 16]),
            read_write: Some(vec![2; 16]),
        }
    }

    fn transcript() -> Transcript {
        Transcript {
            challenge: nonce().unwrap(),
            answer: nonce().unwrap(),
            access: AccessLevel::ReadWrite,
            service_qp: 17,
            client_qp: 18,
        }
    }

    #[test]
    fn a_proof_is_valid_for_its_own_transcript_alone() {
        let (keys, transcript) = (keys(), transcript());
        let proof = keys.prove(Role::Client, &transcript).unwrap();
        assert!(keys.verify(Role::Client, &transcript, &proof));
        assert!(!keys.verify(Role::Service, &transcript, &proof));
        let others = [
            Transcript {
                challenge: nonce().unwrap(),
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

    /// HMAC-SHA256 as in RFC 4231, test case 2.
    #[test]
    fn the_mac_is_the_published_one() {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        assert_eq!(
            hex(&mac.finalize().into_bytes()),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn a_key_file_is_private_and_whole() {
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
