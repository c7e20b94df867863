//! How a client over RDMA, for which no kernel vouches, proves that it has a key, and the service that it has it too.
//!
//! The service sends a random challenge; the client answers with random bytes of its own and an HMAC-SHA256 over both,
//! the access it asks for, and the numbers of both QPs; the service answers with its own HMAC over the same. A proof is
//! good for one challenge and one connection: repeated on another, or with another access, it proves nothing.
//! What follows is neither encrypted nor signed: the fabric must be trusted as far as that.

use super::message::Access;
use crate::Error;
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::Sha256;
use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

/// Bytes of a nonce.
const NONCE: usize = 32;
/// Bytes of the shortest key.
const SHORTEST: usize = 16;

/// Who speaks: one side's proof is never the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Who connected.
    Client,
    /// Who was connected to.
    Service,
}

/// What both sides of a connection know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bond {
    /// The service's nonce, in hex.
    pub challenge: String,
    /// The client's, in hex.
    pub answer: String,
    /// The access asked for.
    pub access: Access,
    /// The service's QP.
    pub service_qp: u32,
    /// The client's.
    pub client_qp: u32,
}

/// The keys of a key file.
#[derive(Clone, Default)]
pub struct Keys {
    read_only: Option<Vec<u8>>,
    read_write: Option<Vec<u8>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    read_only: Option<String>,
    read_write: Option<String>,
}

impl Keys {
    /// Reads a key file: TOML, `read_only` and `read_write`, each in hex and at least 16 bytes.
    ///
    /// # Errors
    /// It cannot be read, others may read it, or it is none.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::File {
            what: "control.key_file",
            path: path.display().to_string(),
            source,
        };
        let refused = |problem: String| failed(io::Error::new(io::ErrorKind::InvalidData, problem));
        let mode = fs::metadata(path).map_err(failed)?.mode();
        if mode & 0o007 != 0 {
            return Err(refused(format!(
                "mode {:04o} lets everybody at it; `chmod o-rwx` it, and make new keys",
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
                "a key is at least {SHORTEST} bytes in hex; `openssl rand -hex 32` makes one"
            ))),
        };
        let keys = Self {
            read_only: key(file.read_only)?,
            read_write: key(file.read_write)?,
        };
        if keys.read_only.is_none() && keys.read_write.is_none() {
            return Err(refused("it has no key".into()));
        }
        if keys.read_only == keys.read_write {
            return Err(refused(
                "both keys are the same: anyone who may look may change".into(),
            ));
        }
        Ok(keys)
    }

    /// The most that whoever has these keys may do.
    #[must_use]
    pub fn access(&self) -> Access {
        match self.read_write {
            Some(_) => Access::ReadWrite,
            None => Access::ReadOnly,
        }
    }

    /// This side's proof, in hex; `None` without the key.
    #[must_use]
    pub fn prove(&self, side: Side, bond: &Bond) -> Option<String> {
        Some(hex(&self.mac(side, bond)?.finalize().into_bytes()))
    }

    /// Whether `proof` is the proof of that side. Takes as long whatever is wrong with it.
    #[must_use]
    pub fn verify(&self, side: Side, bond: &Bond, proof: &str) -> bool {
        match (self.mac(side, bond), unhex(proof)) {
            (Some(mac), Some(proof)) => mac.verify_slice(&proof).is_ok(),
            _ => false,
        }
    }

    fn mac(&self, side: Side, bond: &Bond) -> Option<Hmac<Sha256>> {
        let key = match bond.access {
            Access::ReadOnly => self.read_only.as_ref(),
            Access::ReadWrite => self.read_write.as_ref(),
        }?;
        let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
        // Every field has a fixed form, and a line to itself: no two bonds read the same.
        let text = format!(
            "wqcap control 1\n{side:?}\n{:?}\n{:08x} {:08x}\n{}\n{}\n",
            bond.access, bond.service_qp, bond.client_qp, bond.challenge, bond.answer
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
/// The system has none.
pub fn nonce() -> Result<String, Error> {
    let mut bytes = [0; NONCE];
    getrandom::fill(&mut bytes).map_err(|e| Error::System {
        what: "random bytes".into(),
        source: io::Error::other(e.to_string()),
    })?;
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

    fn bond() -> Bond {
        Bond {
            challenge: nonce().unwrap(),
            answer: nonce().unwrap(),
            access: Access::ReadWrite,
            service_qp: 17,
            client_qp: 18,
        }
    }

    #[test]
    fn a_proof_is_good_for_its_own_bond_alone() {
        let (keys, bond) = (keys(), bond());
        let proof = keys.prove(Side::Client, &bond).unwrap();
        assert!(keys.verify(Side::Client, &bond, &proof));
        assert!(!keys.verify(Side::Service, &bond, &proof));
        let others = [
            Bond {
                challenge: nonce().unwrap(),
                ..bond.clone()
            },
            Bond {
                answer: nonce().unwrap(),
                ..bond.clone()
            },
            Bond {
                access: Access::ReadOnly,
                ..bond.clone()
            },
            Bond {
                service_qp: 19,
                ..bond.clone()
            },
            Bond {
                client_qp: 19,
                ..bond.clone()
            },
        ];
        for other in others {
            assert!(!keys.verify(Side::Client, &other, &proof), "{other:?}");
        }
        for wrong in ["", "00", "zz", &proof[..62], &"0".repeat(64)] {
            assert!(!keys.verify(Side::Client, &bond, wrong), "{wrong}");
        }
        let without = Keys {
            read_write: None,
            ..keys
        };
        assert!(!without.verify(Side::Client, &bond, &proof));
        assert_eq!(without.prove(Side::Client, &bond), None);
    }

    /// HMAC-SHA256 as RFC 4231, test case 2, has it: the library is what we take it for.
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
        assert_eq!(keys.access(), Access::ReadWrite);
        assert_eq!(
            read(&format!("read_only = \"{one}\""), 0o600)
                .unwrap()
                .access(),
            Access::ReadOnly
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
                "the same",
            ),
        ] {
            let problem = read(&text, mode).unwrap_err();
            assert!(problem.contains(part), "{problem}");
            assert!(!problem.contains(&other), "a key is never told");
        }
    }
}
