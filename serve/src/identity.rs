//! Callers of the service: tokens, client certificates, and the roles that they give.
//!
//! A token is 32 random bytes in hexadecimal. The file of tokens has a line for each one: a name, a
//! role, and `sha256:` with the SHA-256 of the token's text in hexadecimal. Random tokens need no slow
//! hash: there are too many of them to try.

use serde::Serialize;
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    fs::{self, Permissions},
    io::{self, Write as _},
    net::SocketAddr,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};
use utoipa::ToSchema;
use wqcap_files::folder::open::{open_for_append, read_regular};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Maximum length in bytes of the file of access tokens.
const MOST_BYTES: u64 = 1 << 20;
/// Maximum length in bytes of the name of an access token.
const LONGEST_NAME: usize = 64;

/// Role of a caller: the requests that it may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CallerRole {
    /// The caller may read packets, flow records and states.
    Read,
    /// The caller may also set marks and pins.
    Mark,
}

impl CallerRole {
    /// Parses the name of a caller's role in the file of tokens.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "read" => Some(Self::Read),
            "mark" => Some(Self::Mark),
            _ => None,
        }
    }

    /// Returns the name of the caller's role in the file of tokens.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Mark => "mark",
        }
    }
}

/// Caller of one request to the service.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Name of the token or of the certificate; `None`: the service does not authenticate callers.
    pub name: Option<String>,
    /// Role of the caller, which limits the requests that it may send.
    pub role: CallerRole,
    /// Network address of the caller.
    pub address: SocketAddr,
}

impl Caller {
    /// Returns the caller's name for log lines; `anonymous` if it has no name.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.name.as_deref().unwrap_or("anonymous")
    }
}

/// Reason why a file of access tokens cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file of tokens cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line of the file does not have the form of a token.
    #[error(
        "line {0}: write a name, a role (read or mark), and sha256: with 64 hexadecimal digits"
    )]
    Line(usize),
    /// Two lines of the file of tokens have the same name.
    #[error("line {0}: another line has the same name")]
    Twice(usize),
    /// Other users can read or change the file of tokens.
    #[error("the mode {0:04o} lets other users read or change the file; set 0640 or less")]
    Mode(u32),
    /// The name of a new token has forbidden characters, or is too short or long.
    #[error(
        "the name {0:?} of a token must have 1 to {LONGEST_NAME} letters, digits and the characters . _ - @"
    )]
    Name(String),
    /// The file already has a token of this name.
    #[error("the file has a token of the name {0:?} already; remove its line first")]
    Known(String),
    /// The system provides no random bytes for a new token.
    #[error("the system provides no random bytes for a token: {0}")]
    Random(String),
}

/// Access tokens of a file: their names, roles and hashes.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Vec<Token>);

#[derive(Clone, Debug)]
struct Token {
    name: String,
    role: CallerRole,
    hash: [u8; 32],
}

impl Tokens {
    /// Reads a file of access tokens.
    ///
    /// # Errors
    /// The file cannot be read, other users can read or change it, or a line is malformed.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let mode = fs::metadata(path)?.mode() & 0o7777;
        if mode & 0o027 != 0 {
            return Err(TokenError::Mode(mode));
        }
        Self::parse(&String::from_utf8_lossy(&read_regular(path, MOST_BYTES)?))
    }

    fn parse(text: &str) -> Result<Self, TokenError> {
        let mut tokens: Vec<Token> = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let token = Token::parse(line).ok_or(TokenError::Line(i + 1))?;
            if tokens.iter().any(|it| it.name == token.name) {
                return Err(TokenError::Twice(i + 1));
            }
            tokens.push(token);
        }
        Ok(Self(tokens))
    }

    /// Returns name and role of the access token with the text `text`; `None`: the file does not
    /// have it.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<(&str, CallerRole)> {
        let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        let found = self.0.iter().find(|it| it.hash == hash)?;
        Some((&found.name, found.role))
    }
}

impl Token {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let (name, role) = (fields.next()?, CallerRole::parse(fields.next()?)?);
        let hex = fields.next()?.strip_prefix("sha256:")?;
        if !is_name(name) || fields.next().is_some() || hex.len() != 64 || !hex.is_ascii() {
            return None;
        }
        let mut hash = [0; 32];
        for (i, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self {
            name: name.to_owned(),
            role,
            hash,
        })
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |it: u8| it.is_ascii_alphanumeric() || b"._-@".contains(&it);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(allowed)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Makes a random access token, and appends its line to the file of tokens, which is created if it
/// is missing. Returns the token's text, which is stored nowhere.
///
/// # Errors
/// The name of the token cannot be used or is in the file already, or the file cannot be read or
/// written.
pub fn add_token(path: &Path, name: &str, role: CallerRole) -> Result<String, TokenError> {
    if !is_name(name) {
        return Err(TokenError::Name(name.to_owned()));
    }
    let is_new = match Tokens::read(path) {
        Ok(known) if known.0.iter().any(|it| it.name == name) => {
            return Err(TokenError::Known(name.to_owned()));
        }
        Ok(_) => false,
        Err(TokenError::Io(e)) if e.kind() == io::ErrorKind::NotFound => true,
        Err(e) => return Err(e),
    };
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|e| TokenError::Random(e.to_string()))?;
    let text = hex(&random);
    let hash = hex(&Sha256::digest(text.as_bytes()));
    let mut file = open_for_append(path)?;
    if is_new {
        file.set_permissions(Permissions::from_mode(0o640))?;
    }
    // A file that was written by hand may lack its last line feed.
    let begin = match read_regular(path, MOST_BYTES)?.last() {
        None | Some(b'\n') => "",
        Some(_) => "\n",
    };
    file.write_all(format!("{begin}{name} {} sha256:{hash}\n", role.name()).as_bytes())?;
    file.sync_all()?;
    Ok(text)
}

/// Returns the name by which a client certificate identifies its caller: its first common name,
/// otherwise the SHA-256 of the certificate.
pub(crate) fn certificate_name(der: &[u8]) -> String {
    let parsed = X509Certificate::from_der(der).ok();
    let name = parsed.and_then(|(_, it)| {
        let mut names = it.subject().iter_common_name();
        names.next()?.as_str().ok().map(str::to_owned)
    });
    match name {
        Some(name) if !name.is_empty() => name.chars().take(LONGEST_NAME).collect(),
        _ => format!("sha256:{}", hex(&Sha256::digest(der))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_token_is_found_by_its_text_only() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("tokens");
        let alice = add_token(&path, "alice", CallerRole::Read).expect("made");
        let ops = add_token(&path, "ops", CallerRole::Mark).expect("made");
        let tokens = Tokens::read(&path).expect("read");
        assert_eq!(tokens.find(&alice), Some(("alice", CallerRole::Read)));
        assert_eq!(tokens.find(&ops), Some(("ops", CallerRole::Mark)));
        for wrong in ["", "alice", &alice[1..], &alice.to_uppercase()] {
            assert_eq!(tokens.find(wrong), None, "{wrong:?}");
        }
        let text = fs::read_to_string(&path).expect("text");
        assert!(
            !text.contains(&alice) && text.lines().count() == 2,
            "{text}"
        );
        assert!(matches!(
            add_token(&path, "ops", CallerRole::Read),
            Err(TokenError::Known(_))
        ));
        assert!(matches!(
            add_token(&path, "a b", CallerRole::Read),
            Err(TokenError::Name(_))
        ));
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("mode");
        assert!(matches!(Tokens::read(&path), Err(TokenError::Mode(0o644))));
    }

    #[test]
    fn a_malformed_line_is_named() {
        let hash = "0".repeat(64);
        let sound = format!("# tokens\n\na read sha256:{hash}\n");
        assert!(Tokens::parse(&sound).is_ok());
        for line in [
            "a".to_owned(),
            "a read".into(),
            format!("a write sha256:{hash}"),
            format!("a read sha1:{hash}"),
            format!("a read sha256:{}", &hash[1..]),
            format!("a read sha256:{}é", &hash[2..]),
            format!("b read sha256:{hash} more"),
        ] {
            let text = format!("{sound}{line}");
            let found = Tokens::parse(&text);
            assert!(
                matches!(found, Err(TokenError::Line(4))),
                "{line}: {found:?}"
            );
        }
        let twice = format!("{sound}a mark sha256:{hash}");
        assert!(matches!(Tokens::parse(&twice), Err(TokenError::Twice(4))));
    }
}
