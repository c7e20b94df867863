//! Object stores that speak S3. They share no code, and judge differently:
//!
//! | server | keeps objects | checks |
//! |---|---|---|
//! | moto's, from PyPI | in memory | little: no signature |
//! | that of crate `s3s-fs` ([`binaries::s3_server`]) | as files, where other programs read them | signatures, and that what has come is what was signed |
//!
//! Of an upload that is over, `s3s-fs` says 403, where S3 and moto say 404.

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

/// What is installed; a newer one is taken on purpose, not by chance.
const VERSION: &str = "5.2.5";
/// The only bucket.
pub const BUCKET: &str = "captures";
/// Who may write and read it.
pub const KEY: &str = "somebody";
/// The secret of that.
pub const SECRET: &str = "secret";

/// A signature, which moto does not check.
const SIGNED: &str = "AWS4-HMAC-SHA256 Credential=somebody/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

/// A server, with a bucket.
pub struct S3 {
    _run: Running,
    address: String,
    /// Where its objects are files.
    files: Option<Dir>,
}

impl S3 {
    /// Installs moto beside the binaries, once, and starts it.
    ///
    /// # Errors
    /// There is no pip, or no way to PyPI: a reason to skip.
    ///
    /// # Panics
    /// What has been installed cannot be put in its place, or does not start.
    pub fn moto() -> Result<Self, String> {
        static PACKAGES: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let packages = PACKAGES
            .get_or_init(|| pypi::installed("moto", "[s3,server]", VERSION))
            .clone()?;
        // It does not tell which port it has been given: one that is free now.
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
    /// It does not start.
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

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The bucket as a folder.
    ///
    /// # Panics
    /// It is none: moto's is in memory.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        let files = self.files.as_ref();
        files.expect("a server that keeps files").join(BUCKET)
    }

    /// All objects below a prefix, a folder of keys, by what follows it in their keys.
    ///
    /// # Panics
    /// It does not answer.
    #[must_use]
    pub fn objects(&self, prefix: &str) -> BTreeMap<String, Vec<u8>> {
        if self.files.is_some() {
            return tree(&self.folder().join(prefix));
        }
        let keys = self.keys(prefix).into_iter();
        keys.map(|key| (key[prefix.len()..].to_owned(), self.object(&key).body))
            .collect()
    }

    /// Of each object below a prefix: its bytes, and the SHA-256 that its metadata tells, in hexadecimal.
    ///
    /// # Panics
    /// It does not answer, or an object has no such metadata.
    #[must_use]
    pub fn digests(&self, prefix: &str) -> Vec<(Vec<u8>, String)> {
        let told = |key: &String| {
            let Answer { head, body, .. } = self.object(key);
            let mut named = head.lines().filter_map(|it| it.split_once(": "));
            let told = named.find(|(name, _)| name.eq_ignore_ascii_case("x-amz-meta-sha256"));
            let (_, digest) = told.unwrap_or_else(|| panic!("{key} has {head}"));
            (body, digest.to_owned())
        };
        self.keys(prefix).iter().map(told).collect()
    }

    fn keys(&self, prefix: &str) -> Vec<String> {
        let page = self.page(&format!("/{BUCKET}?list-type=2&prefix={prefix}"));
        let keys = page.split("<Key>").skip(1);
        let keys = keys.filter_map(|rest| rest.split("</Key>").next());
        keys.map(str::to_owned).collect()
    }

    /// Uploads that are neither completed nor given up.
    ///
    /// # Panics
    /// It does not answer.
    #[must_use]
    pub fn uploads(&self) -> usize {
        let Some(files) = &self.files else {
            let page = self.page(&format!("/{BUCKET}?uploads"));
            return page.matches("<Upload>").count();
        };
        let entries = fs::read_dir(files.path()).expect("lists").flatten();
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
        let answer = ask(&self.address, "GET", target).expect("an answer");
        assert_eq!(answer.status, 200, "{target}");
        answer
    }
}

/// What a server answers.
struct Answer {
    status: u16,
    /// Its headers, a line each.
    head: String,
    body: Vec<u8>,
}

/// `None`: nobody listens.
fn ask(host: &str, method: &str, target: &str) -> Option<Answer> {
    let mut server = TcpStream::connect(host).ok()?;
    // Somebody's: objects are nobody else's to read.
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
