//! The content of a file, sealed or not.

use super::{
    KEY,
    chunks::{CHUNK, Chunks, HEADER, TAG, is_sealed},
};
use crate::open::open_regular;
use std::{
    fs::File,
    io::{self, ErrorKind, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
};

/// Bytes of a whole chunk in the file.
const STEP: u64 = (CHUNK + TAG) as u64;

/// Reads a file's content from any place of it.
pub struct Content(Kind);

enum Kind {
    Plain(File),
    Sealed(Box<SealedFile>),
}

impl Content {
    /// Opens a file that was found in a folder.
    ///
    /// # Errors
    /// The system; it is not a regular file; or the file is sealed and cannot be opened with the process's key.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::from_file(open_regular(path)?)
    }

    /// Opens a file that the user has named: it may be a pipe, or a link.
    ///
    /// # Errors
    /// The system, or the file is sealed and cannot be opened with the process's key.
    pub fn open_named(path: &Path) -> io::Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "the user has named it")]
        let file = File::open(path)?;
        Self::from_file(file)
    }

    fn from_file(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let mut header = [0; HEADER];
        // What comes through a pipe cannot be looked at beforehand.
        if !metadata.is_file() || file.read_at(&mut header, 0)? < HEADER || !is_sealed(&header) {
            return Ok(Self(Kind::Plain(file)));
        }
        let refused = |why: String| io::Error::new(ErrorKind::PermissionDenied, why);
        let Some(key) = KEY.get() else {
            return Err(refused(
                "is encrypted: name the key, as by --key FILE or --key-command COMMAND".into(),
            ));
        };
        let chunks = Chunks::of(header, key).map_err(refused)?;
        Ok(Self(Kind::Sealed(Box::new(SealedFile::new(
            file,
            chunks,
            metadata.len(),
        )))))
    }

    /// Bytes of the content.
    ///
    /// # Errors
    /// The system.
    pub(crate) fn len(&self) -> io::Result<u64> {
        match &self.0 {
            Kind::Plain(file) => Ok(file.metadata()?.len()),
            Kind::Sealed(file) => Ok(file.len),
        }
    }
}

impl Read for Content {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Kind::Plain(file) => file.read(into),
            Kind::Sealed(file) => file.read(into),
        }
    }
}

impl Seek for Content {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match &mut self.0 {
            Kind::Plain(file) => file.seek(to),
            Kind::Sealed(file) => file.seek(to),
        }
    }
}

/// A sealed file as it was when it was opened.
struct SealedFile {
    file: File,
    chunks: Chunks,
    /// Bytes behind the header.
    body: u64,
    /// Bytes of the content.
    len: u64,
    /// Where in the content the next read begins.
    at: u64,
    /// Number and content of the chunk that was opened last.
    held: Option<u64>,
    chunk: Vec<u8>,
}

impl SealedFile {
    fn new(file: File, chunks: Chunks, file_len: u64) -> Self {
        let body = file_len.saturating_sub(HEADER as u64);
        let (whole, rest) = (body / STEP, body % STEP);
        // A torn last chunk has a byte at least, so that it is asked for and found to be torn.
        let rest = match rest.saturating_sub(TAG as u64) {
            0 if whole > 0 => rest.min(1),
            content => content,
        };
        Self {
            file,
            chunks,
            body,
            len: whole * CHUNK as u64 + rest,
            at: 0,
            held: None,
            chunk: Vec::with_capacity(CHUNK + TAG),
        }
    }

    fn hold(&mut self, number: u64) -> io::Result<()> {
        if self.held == Some(number) {
            return Ok(());
        }
        self.held = None;
        let begin = number * STEP;
        let len = STEP.min(self.body.saturating_sub(begin));
        // It is at most a chunk and its tag.
        self.chunk.resize(len as usize, 0);
        let at = HEADER as u64 + begin;
        self.file.read_exact_at(&mut self.chunk, at)?;
        let last = begin + len == self.body;
        if !self.chunks.open(number, last, &mut self.chunk) {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!(
                    "the encrypted part at byte {at} was changed, or the file was cut behind it"
                ),
            ));
        }
        self.held = Some(number);
        Ok(())
    }
}

impl Read for SealedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // A file without content has one chunk, which says so.
        if into.is_empty() || self.at >= self.len && self.len > 0 {
            return Ok(0);
        }
        self.hold(self.at / CHUNK as u64)?;
        let from = (self.at % CHUNK as u64) as usize;
        let n = self.chunk.get(from..).unwrap_or_default().read(into)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Seek for SealedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::SecretKey, *};
    use crate::sealed::seal;
    use proptest::prelude::*;
    use std::{fs, path::PathBuf};

    fn key() -> SecretKey {
        let key = SecretKey::new(b"a key of 32 bytes, for the tests");
        crate::sealed::open_with(key.clone());
        key
    }

    /// A sealed file of so many bytes, and its content.
    fn sample(dir: &Path, len: usize) -> (PathBuf, Vec<u8>) {
        let content: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let plain = dir.join("wqcap-q00-5.pcap");
        fs::write(&plain, &content).expect("written");
        let sealed = seal(&plain, &key(), || true)
            .expect("seals")
            .expect("went on");
        assert!(!plain.exists());
        (sealed.path, content)
    }

    fn content(path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        Content::open(path)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn what_was_sealed_is_read_and_is_not_in_the_file() {
        for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 77] {
            let dir = tempfile::tempdir().expect("dir");
            let (path, want) = sample(dir.path(), len);
            assert_eq!(path, dir.path().join("wqcap-q00-5.pcap.enc"));
            assert!(content(&path).expect("reads") == want, "{len}");
            assert_eq!(
                Content::open(&path).expect("opens").len().expect("known"),
                len as u64
            );
            let file = fs::read(&path).expect("there");
            if let Some(piece) = want.get(..len.min(32)).filter(|it| it.len() >= 16) {
                assert!(!file.windows(piece.len()).any(|it| it == piece), "{len}");
            }
        }
    }

    #[test]
    fn no_two_files_are_alike() {
        let files = [(); 2].map(|()| {
            let dir = tempfile::tempdir().expect("dir");
            fs::read(sample(dir.path(), 100).0).expect("there")
        });
        assert_ne!(files[0][16..48], files[1][16..48]);
        assert_ne!(files[0][64..], files[1][64..]);
    }

    #[test]
    fn a_changed_file_is_an_error() {
        let dir = tempfile::tempdir().expect("dir");
        let (path, want) = sample(dir.path(), 2 * CHUNK + 10);
        let whole = fs::read(&path).expect("there");
        let tells = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("written");
            content(&path)
                .map(|it| it == want)
                .map_err(|e| e.to_string())
        };
        assert_eq!(tells(&whole), Ok(true));
        for at in [8, 9, 10, 20, 50, HEADER, HEADER + CHUNK, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            let error = tells(&changed).expect_err("told");
            let part = match at {
                8 | 9 => "in form",
                20 | 50 => "another key",
                _ => "was changed",
            };
            assert!(error.contains(part), "byte {at}: {error}");
        }
        // Cut at a chunk's end, in its content, in its tag; and two chunks swapped.
        let step = CHUNK + TAG;
        for cut in [
            HEADER + step,
            HEADER + 2 * step,
            HEADER + step + 100,
            HEADER + step + 7,
        ] {
            assert!(tells(&whole[..cut]).is_err(), "{cut}");
        }
        let (header, body) = whole.split_at(HEADER);
        let swapped = [
            header,
            &body[step..2 * step],
            &body[..step],
            &body[2 * step..],
        ]
        .concat();
        assert!(tells(&swapped).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_part_is_read_alone(from in 0..200_000_u64, len in 0..200_000_usize) {
            let dir = tempfile::tempdir().expect("dir");
            let (path, want) = sample(dir.path(), 150_000);
            let mut source = Content::open(&path).expect("opens");
            source.seek(SeekFrom::Start(from)).expect("goes");
            let mut bytes = Vec::new();
            source.take(len as u64).read_to_end(&mut bytes).expect("reads");
            let from = want.len().min(from as usize);
            let end = want.len().min(from + len);
            prop_assert!(bytes == want[from..end]);
        }
    }
}
