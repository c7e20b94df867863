//! Object stores with the S3 API. They share no code, and check requests differently:
//!
//! | server | storage of objects | checks |
//! |---|---|---|
//! | moto from PyPI | memory | few, no signature |
//! | crate `s3s-fs` ([`binaries::s3_server`]) | readable files | signatures, also that of the content |
//!
//! For an upload that has ended, `s3s-fs` answers 403, while S3 and moto answer 404.

use super::pypi;
use crate::{Dir, Program, Running, binaries, machine::dir::tree};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::OnceLock,
};

/// Pinned version of moto.
const VERSION: &str = "5.2.5";
/// Name of the only bucket.
pub const BUCKET: &str = "captures";
/// Access key ID with read and write access to the bucket.
pub const KEY: &str = "somebody";
/// Secret access key for [`KEY`].
pub const SECRET: &str = "secret";

/// `Authorization` header of the helper's requests. moto does not check the signature.
const SIGNED: &str = "AWS4-HMAC-SHA256 Credential=somebody/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

/// Running S3 server with one bucket.
pub struct S3 {
    _run: Running,
    address: String,
    /// Folder of the objects; `None` for moto, which stores them in memory.
    files: Option<Dir>,
}

impl S3 {
    /// Installs moto in the folder of the binaries, unless it is installed, and starts its server.
    ///
    /// # Errors
    /// Returns a reason to skip if pip is missing or PyPI cannot be reached.
    ///
    /// # Panics
    /// Panics if the installed package cannot be moved to its folder, or the server does not start.
    pub fn moto() -> Result<Self, String> {
        static PACKAGES: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let packages = PACKAGES
            .get_or_init(|| pypi::installed("moto", "[s3,server]", VERSION))
            .clone()?;
        // The server does not print its port, so the test chooses a port that is free now.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
        let free = free.expect("a port");
        let mut run = Program::new("python3")
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p"])
            .arg(free.port().to_string())
            .env("PYTHONPATH", &packages)
            .start();
        let address = free.to_string();
        run.until("moto's server answers", |_| {
            ask(&address, "PUT", &format!("/{BUCKET}")).is_some()
        });
        Ok(Self {
            _run: run,
            address,
            files: None,
        })
    }

    /// Starts the server of crate `s3s-fs`.
    ///
    /// # Panics
    /// Panics if the server does not start.
    #[must_use]
    pub fn s3s() -> Self {
        let files = Dir::new();
        files.folder(BUCKET);
        let mut run = Program::new(binaries::s3_server())
            .arg(files.path())
            .start();
        run.until("the server's address", |it| it.stdout().ends_with('\n'));
        Self {
            address: run.stdout().trim().to_owned(),
            _run: run,
            files: Some(files),
        }
    }

    /// Returns the listening address, `HOST:PORT`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the folder that holds the objects of the bucket.
    ///
    /// # Panics
    /// Panics for moto, which stores objects in memory.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        let files = self.files.as_ref();
        files.expect("the server stores files").join(BUCKET)
    }

    /// Returns the content of all objects whose keys begin with `prefix`, by the rest of the key.
    ///
    /// # Panics
    /// Panics if the server does not answer.
    #[must_use]
    pub fn objects(&self, prefix: &str) -> BTreeMap<String, Vec<u8>> {
        if self.files.is_some() {
            return tree(&self.folder().join(prefix));
        }
        let keys = self.keys(prefix).into_iter();
        keys.map(|key| (key[prefix.len()..].to_owned(), self.object(&key).body))
            .collect()
    }

    /// Returns, for each object whose key begins with `prefix`, its content and the SHA-256 in its
    /// metadata, in hexadecimal.
    ///
    /// # Panics
    /// Panics if the server does not answer, or an object has no such metadata.
    #[must_use]
    pub fn digests(&self, prefix: &str) -> Vec<(Vec<u8>, String)> {
        let content_and_digest = |key: &String| {
            let Answer { head, body, .. } = self.object(key);
            let mut named = head.lines().filter_map(|it| it.split_once(": "));
            let found = named.find(|(name, _)| name.eq_ignore_ascii_case("x-amz-meta-sha256"));
            let (_, digest) = found.unwrap_or_else(|| panic!("{key} has {head}"));
            (body, digest.to_owned())
        };
        self.keys(prefix).iter().map(content_and_digest).collect()
    }

    fn keys(&self, prefix: &str) -> Vec<String> {
        let page = self.page(&format!("/{BUCKET}?list-type=2&prefix={prefix}"));
        let keys = page.split("<Key>").skip(1);
        let keys = keys.filter_map(|rest| rest.split("</Key>").next());
        keys.map(str::to_owned).collect()
    }

    /// Returns the number of multipart uploads that are neither completed nor aborted.
    ///
    /// # Panics
    /// Panics if the server does not answer.
    #[must_use]
    pub fn uploads(&self) -> usize {
        let Some(files) = &self.files else {
            let page = self.page(&format!("/{BUCKET}?uploads"));
            return page.matches("<Upload>").count();
        };
        let entries = fs::read_dir(files.path())
            .expect("the folder can be listed")
            .flatten();
        let names = entries.map(|it| it.file_name().into_encoded_bytes());
        names.filter(|it| it.starts_with(b".upload-")).count()
    }

    fn object(&self, key: &str) -> Answer {
        self.get(&format!("/{BUCKET}/{key}"))
    }

    fn page(&self, target: &str) -> String {
        String::from_utf8(self.get(target).body).expect("XML")
    }

    fn get(&self, target: &str) -> Answer {
        let answer = ask(&self.address, "GET", target).expect("the server answers");
        assert_eq!(answer.status, 200, "{target}");
        answer
    }
}

/// HTTP answer of a server.
struct Answer {
    status: u16,
    /// Header lines.
    head: String,
    body: Vec<u8>,
}

/// Sends a request without a body and returns the answer; `None` if the connection fails.
fn ask(host: &str, method: &str, target: &str) -> Option<Answer> {
    let mut server = TcpStream::connect(host).ok()?;
    // With a signature, because only the owner may read the objects.
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {SIGNED}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    server.write_all(request.as_bytes()).ok()?;
    let mut answer = BufReader::new(server);
    let mut line = String::new();
    answer.read_line(&mut line).ok()?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        answer.read_line(&mut head).ok().filter(|n| *n > 0)?;
    }
    let mut body = Vec::new();
    answer.read_to_end(&mut body).ok()?;
    Some(Answer { status, head, body })
}
