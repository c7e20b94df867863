//! Secret key of sealed (encrypted) files, and the file or command that it is read from.

use hmac::{Hmac, KeyInit, Mac};
use serde::Serialize;
use sha2::Sha256;
use std::{
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::Arc,
};
use zeroize::Zeroizing;

/// Length of a secret key in bytes.
const LEN: usize = 32;
/// Length of the longest key file in bytes: a key in hex with a line ending.
const LONGEST: usize = 2 * LEN + 2;

/// Source of a secret key: a file or a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeySource {
    /// File that holds the secret key.
    File(PathBuf),
    /// Shell command whose output is the secret key.
    Command(String),
}

impl KeySource {
    /// Reads the secret key from the file or runs the command. The command may prompt for input on
    /// the terminal.
    ///
    /// # Errors
    /// The source has no valid key. Messages contain nothing of what was read.
    pub fn read(&self) -> Result<SecretKey, SealKeyError> {
        match self {
            Self::File(path) => SecretKey::read(path),
            Self::Command(command) => printed(command),
        }
    }

    /// Returns the name of the configuration key that sets this kind of key source.
    #[must_use]
    pub fn config_key(&self) -> &'static str {
        match self {
            Self::File(_) => "output.encrypt_key",
            Self::Command(_) => "output.encrypt_key_command",
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{path:?}"),
            Self::Command(command) => write!(f, "{command:?}"),
        }
    }
}

fn printed(command: &str) -> Result<SecretKey, SealKeyError> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(SealKeyError::Command)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST + 1));
    let read = child
        .stdout
        .take()
        .map(|it| it.take(LONGEST as u64 + 1).read_to_end(&mut bytes));
    if bytes.len() > LONGEST {
        // The output need not end.
        let _ = child.kill();
    }
    let status = child.wait().map_err(SealKeyError::Command)?;
    read.transpose().map_err(SealKeyError::Command)?;
    if bytes.len() <= LONGEST && !status.success() {
        return Err(SealKeyError::CommandFailed(status));
    }
    SecretKey::parse(&bytes).map_err(|e| SealKeyError::CommandOutput(Box::new(e)))
}

/// Secret key of 32 bytes, for encryption or anonymization. Clones share its memory, which is
/// zeroised when the last one is dropped.
#[derive(Clone)]
pub struct SecretKey(Arc<Zeroizing<[u8; LEN]>>);

/// Reason why a source (file or command) has no valid secret key. The messages contain nothing of
/// what was read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealKeyError {
    /// The key file cannot be opened or read: system error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The mode of the key file gives access to users outside the owner's group.
    #[error(
        "mode {0:04o} of the key file gives every user access; run `chmod o-rwx` and generate a new key"
    )]
    Public(u32),
    /// The key has a length that is neither that of a binary key nor that of a hex key.
    #[error(
        "the encryption key has {}; it must have 32 bytes, or 64 hex digits; `openssl rand -out FILE 32` generates one",
        length(*.0)
    )]
    Length(usize),
    /// The key file has the length of a hex key, but characters that are not hex digits.
    #[error(
        "the 64 characters of the encryption key are not all hex digits; a key must have 32 bytes, or 64 hex digits"
    )]
    Hex,
    /// The key command cannot be started: system error.
    #[error("cannot run the key command: {0}")]
    Command(#[source] io::Error),
    /// The key command failed with this exit status.
    #[error("the key command failed: {0}")]
    CommandFailed(ExitStatus),
    /// The output of the key command is not a key, for the reason in this error.
    #[error("the key command did not print a valid key: {0}")]
    CommandOutput(#[source] Box<Self>),
}

/// Returns the HMAC-SHA-256 of a message in parts.
pub(super) fn mac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mac = Hmac::<Sha256>::new_from_slice(key);
    let mut mac = mac.unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// Formats the length of a rejected key for its error. A key file is read only up to a limit.
fn length(bytes: usize) -> String {
    match bytes {
        1 => "1 byte".into(),
        n if n > LONGEST => format!("more than {LONGEST} bytes"),
        n => format!("{n} bytes"),
    }
}

impl SecretKey {
    /// Creates a secret key from its 32 bytes.
    #[must_use]
    pub fn new(bytes: &[u8; LEN]) -> Self {
        Self(Arc::new(Zeroizing::new(*bytes)))
    }

    /// Reads a key file: 32 bytes, or 64 hex digits.
    ///
    /// # Errors
    /// The file cannot be read, gives access to users outside its group, or holds no key.
    pub fn read(path: &Path) -> Result<Self, SealKeyError> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the user named the path; it may be a pipe"
        )]
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let mode = metadata.mode() & 0o777;
        // A pipe has no stored content to protect.
        if metadata.is_file() && mode & 0o007 != 0 {
            return Err(SealKeyError::Public(mode));
        }
        // The capacity holds everything that is read: growing would leave a copy of the key in
        // freed memory.
        let mut bytes = Zeroizing::new(Vec::with_capacity(2 * LONGEST));
        file.take(LONGEST as u64 + 1).read_to_end(&mut bytes)?;
        Self::parse(&bytes)
    }

    /// Parses the content of a key file: 32 bytes, or 64 hex digits.
    ///
    /// # Errors
    /// The content is not a key.
    pub fn parse(bytes: &[u8]) -> Result<Self, SealKeyError> {
        if let Ok(raw) = <&[u8; LEN]>::try_from(bytes) {
            return Ok(Self::new(raw));
        }
        let digits = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
        let (pairs, rest) = digits.as_chunks::<2>();
        if pairs.len() != LEN || !rest.is_empty() {
            return Err(SealKeyError::Length(bytes.len()));
        }
        let mut key = Zeroizing::new([0; LEN]);
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|it| it as u8);
        for ([high, low], to) in pairs.iter().zip(key.iter_mut()) {
            let (high, low) = digit(*high).zip(digit(*low)).ok_or(SealKeyError::Hex)?;
            *to = high << 4 | low;
        }
        Ok(Self(Arc::new(key)))
    }

    pub(super) fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }

    /// Returns 64 hex digits that identify the secret key together with its use `purpose`. The key
    /// cannot be computed from them.
    pub(crate) fn fingerprint(&self, purpose: &str) -> String {
        let mac = mac(self.bytes(), &[b"wqcap fingerprint: ", purpose.as_bytes()]);
        mac.iter().map(|it| format!("{it:02x}")).collect()
    }

    /// Returns the two halves of the secret key: the first for a cipher, the second for its
    /// padding.
    pub(crate) fn halves(&self) -> (&[u8; LEN / 2], &[u8; LEN / 2]) {
        let (halves, _) = self.0.as_chunks();
        (&halves[0], &halves[1])
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    #[test]
    fn key_files_are_checked_for_mode_and_length() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("key");
        let read = |bytes: &[u8], mode: u32| {
            fs::write(&path, bytes).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("own");
            SecretKey::read(&path)
        };
        let raw: [u8; 32] = std::array::from_fn(|i| i as u8 * 7);
        let hex: String = raw.iter().map(|b| format!("{b:02x}")).collect();
        for bytes in [
            raw.to_vec(),
            hex.clone().into_bytes(),
            hex.to_uppercase().into_bytes(),
            format!("{hex}\n").into_bytes(),
            format!("{hex}\r\n").into_bytes(),
        ] {
            let key = read(&bytes, 0o640).expect("a key");
            assert_eq!(*key.bytes(), raw);
            assert_eq!(format!("{key:?}"), "SecretKey(..)");
        }
        for (bytes, mode, part) in [
            (&raw[..], 0o644, "0644"),
            (&[], 0o600, "0 bytes"),
            (&raw[..1], 0o600, "has 1 byte;"),
            (&raw[..31], 0o600, "31 bytes"),
            (&[7; 33], 0o600, "33 bytes"),
            (&hex.as_bytes()[..63], 0o600, "63 bytes"),
            (format!("{hex}00").as_bytes(), 0o600, "66 bytes"),
            (&[7; 5000], 0o600, "more than 66 bytes"),
            (&[b'g'; 64], 0o600, "hex digits"),
        ] {
            let problem = read(bytes, mode).expect_err(part).to_string();
            assert!(problem.contains(part), "{problem}");
            assert!(!problem.contains(&hex[..8]), "an error never shows a key");
        }
        for (command, problem) in [
            (format!("echo {hex}"), None),
            ("echo 1".into(), Some("2 bytes")),
            (format!("echo {hex}; exit 3"), Some("exit status: 3")),
        ] {
            let read = KeySource::Command(command).read();
            match problem {
                None => assert_eq!(*read.expect("a key").bytes(), raw),
                Some(part) => {
                    let problem = read.expect_err(part).to_string();
                    assert!(
                        problem.contains(part) && !problem.contains(&hex[..8]),
                        "{problem}"
                    );
                }
            }
        }
        let missing = SecretKey::read(&dir.path().join("none")).expect_err("missing");
        assert!(missing.to_string().contains("No such file"));
    }
}
