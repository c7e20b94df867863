//! Content of a capture file, sealed (encrypted) or plain.

use super::{
    chunks::{CHUNK, Chunks, HEADER, TAG, is_sealed},
    key::SecretKey,
};
use crate::folder::{held::HeldFolder, open::open_regular};
use std::{
    fs::File,
    io::{self, ErrorKind, Read, Seek, SeekFrom},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

/// Number of bytes of a full chunk in a sealed (encrypted) file, with its authentication tag.
const STEP: u64 = (CHUNK + TAG) as u64;

/// Reader of a capture file's content, sealed (encrypted) or plain, that can seek.
pub struct Content(ContentSource);

enum ContentSource {
    Plain(File),
    Sealed(Box<SealedFile>),
}

impl Content {
    /// Opens a file of a capture folder for reading. `key` decrypts a sealed file.
    ///
    /// # Errors
    /// System error; the file is not regular; or it is sealed and `key` does not open it, with an
    /// [`UnsealError`](super::UnsealError) as the source.
    pub fn open(path: &Path, key: Option<&SecretKey>) -> io::Result<Self> {
        Self::from_file(open_regular(path)?, key)
    }

    /// Opens a file that was found below the folder `dir`, as [`Content::open`] does. No folder below
    /// `dir` may be a link.
    ///
    /// # Errors
    /// As [`Content::open`], and as [`HeldFolder::of`].
    pub fn open_below(dir: &Path, path: &Path, key: Option<&SecretKey>) -> io::Result<Self> {
        let held = HeldFolder::of(dir, path)?;
        let file = held.open_regular(path.file_name().unwrap_or_default())?;
        Self::from_file(file, key)
    }

    /// Opens a file that the user named for reading: it may be a pipe, or a link. `key` decrypts a
    /// sealed file.
    ///
    /// # Errors
    /// System error; or the file is sealed and `key` does not open it.
    pub fn open_named(path: &Path, key: Option<&SecretKey>) -> io::Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "the user named the path")]
        let file = File::open(path)?;
        Self::from_file(file, key)
    }

    fn from_file(file: File, key: Option<&SecretKey>) -> io::Result<Self> {
        let metadata = file.metadata()?;
        // The content of a pipe cannot be read in advance.
        let header = match metadata.is_file() {
            true => sealed_header(&file)?,
            false => None,
        };
        let Some(header) = header else {
            return Ok(Self(ContentSource::Plain(file)));
        };
        let chunks = Chunks::from_header(header, key)
            .map_err(|e| io::Error::new(ErrorKind::PermissionDenied, e))?;
        Ok(Self(ContentSource::Sealed(Box::new(SealedFile::new(
            file,
            chunks,
            metadata.len(),
        )))))
    }

    /// Returns the length of the file's content in bytes, without encryption overhead.
    ///
    /// # Errors
    /// System error of fstat(2).
    pub(crate) fn len(&self) -> io::Result<u64> {
        match &self.0 {
            ContentSource::Plain(file) => Ok(file.metadata()?.len()),
            ContentSource::Sealed(file) => Ok(file.len),
        }
    }

    /// Returns the device and the inode of the open file.
    ///
    /// # Errors
    /// System error of fstat(2).
    pub(crate) fn device_and_inode(&self) -> io::Result<(u64, u64)> {
        let metadata = match &self.0 {
            ContentSource::Plain(file) => file.metadata(),
            ContentSource::Sealed(sealed) => sealed.file.metadata(),
        }?;
        Ok((metadata.dev(), metadata.ino()))
    }
}

/// Returns the header of a sealed file. Returns `None` if the file is not sealed (encrypted).
fn sealed_header(file: &File) -> io::Result<Option<[u8; HEADER]>> {
    let mut header = [0; HEADER];
    match file.read_exact_at(&mut header, 0) {
        Ok(()) => Ok(is_sealed(&header).then_some(header)),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

impl Read for Content {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            ContentSource::Plain(file) => file.read(into),
            ContentSource::Sealed(file) => file.read(into),
        }
    }
}

impl Seek for Content {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match &mut self.0 {
            ContentSource::Plain(file) => file.seek(to),
            ContentSource::Sealed(file) => file.seek(to),
        }
    }
}

/// Open sealed (encrypted) file, with its length at the time of opening.
struct SealedFile {
    file: File,
    chunks: Chunks,
    /// Number of bytes after the sealed file's header, with authentication tags.
    body: u64,
    /// Length of the sealed file's decrypted content in bytes.
    len: u64,
    /// Offset of the next read in the sealed file's decrypted content.
    at: u64,
    /// Number of the chunk of the sealed file that was decrypted last; `None`: no chunk yet.
    held: Option<u64>,
    chunk: Vec<u8>,
}

impl SealedFile {
    fn new(file: File, chunks: Chunks, file_len: u64) -> Self {
        let body = file_len.saturating_sub(HEADER as u64);
        let (whole, rest) = (body / STEP, body % STEP);
        // A torn last chunk counts at least one byte, so that it is read and found to be torn.
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

    fn decrypt_chunk(&mut self, number: u64) -> io::Result<()> {
        if self.held == Some(number) {
            return Ok(());
        }
        self.held = None;
        let begin = number * STEP;
        let len = STEP.min(self.body.saturating_sub(begin));
        // At most the length of a chunk with its tag.
        self.chunk.resize(len as usize, 0);
        let at = HEADER as u64 + begin;
        self.file.read_exact_at(&mut self.chunk, at)?;
        let last = begin + len == self.body;
        if !self.chunks.open(number, last, &mut self.chunk) {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!(
                    "the encrypted chunk at byte {at} was changed, or the file was truncated after it"
                ),
            ));
        }
        self.held = Some(number);
        Ok(())
    }
}

impl Read for SealedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // A file without content has one empty chunk, which is marked as the last.
        if into.is_empty() || self.at >= self.len && self.len > 0 {
            return Ok(0);
        }
        self.decrypt_chunk(self.at / CHUNK as u64)?;
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
    use super::*;
    use crate::sealed::{UnsealError, seal};
    use proptest::prelude::*;
    use std::{fs, path::PathBuf};

    fn key() -> SecretKey {
        SecretKey::new(b"a key of 32 bytes, for the tests")
    }

    /// Writes a sealed file with `len` bytes of content; returns its path and the content.
    fn sample(dir: &Path, len: usize) -> (PathBuf, Vec<u8>) {
        let content: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let plain = dir.join("wqcap-q00-5.pcap");
        fs::write(&plain, &content).expect("written");
        let sealed = seal(dir, &plain, &key(), || true)
            .expect("seals")
            .expect("not stopped");
        assert!(!plain.exists());
        (sealed.path, content)
    }

    fn content(path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        Content::open(path, Some(&key()))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn sealed_content_is_read_back_and_not_in_the_file() {
        for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 77] {
            let dir = tempfile::tempdir().expect("dir");
            let (path, want) = sample(dir.path(), len);
            assert_eq!(path, dir.path().join("wqcap-q00-5.pcap.enc"));
            assert!(content(&path).expect("reads") == want, "{len}");
            assert_eq!(
                Content::open(&path, Some(&key()))
                    .expect("opens")
                    .len()
                    .expect("known"),
                len as u64
            );
            let file = fs::read(&path).expect("there");
            if let Some(piece) = want.get(..len.min(32)).filter(|it| it.len() >= 16) {
                assert!(!file.windows(piece.len()).any(|it| it == piece), "{len}");
            }
        }
    }

    #[test]
    fn two_files_of_one_key_differ() {
        let files = [(); 2].map(|()| {
            let dir = tempfile::tempdir().expect("dir");
            fs::read(sample(dir.path(), 100).0).expect("there")
        });
        assert_ne!(files[0][16..48], files[1][16..48]);
        assert_ne!(files[0][64..], files[1][64..]);
    }

    #[test]
    fn only_its_own_key_opens_a_file() {
        let dir = tempfile::tempdir().expect("dir");
        let (path, _) = sample(dir.path(), 100);
        let reason = |key: Option<&SecretKey>| -> UnsealError {
            let error = Content::open(&path, key).err().expect("refused");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            let source = error.get_ref().and_then(|it| it.downcast_ref());
            *source.expect("the reason")
        };
        assert_eq!(reason(None), UnsealError::NoKey);
        let other = SecretKey::new(&[7; 32]);
        assert_eq!(reason(Some(&other)), UnsealError::OtherKey);
    }

    #[test]
    fn a_changed_file_is_an_error() {
        let dir = tempfile::tempdir().expect("dir");
        let (path, want) = sample(dir.path(), 2 * CHUNK + 10);
        let whole = fs::read(&path).expect("there");
        let reads_back = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("written");
            content(&path)
                .map(|it| it == want)
                .map_err(|e| e.to_string())
        };
        assert_eq!(reads_back(&whole), Ok(true));
        for at in [8, 9, 10, 20, 50, HEADER, HEADER + CHUNK, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            let error = reads_back(&changed).expect_err("changed");
            let part = match at {
                8 | 9 => "in form",
                20 | 50 => "another key",
                _ => "was changed",
            };
            assert!(error.contains(part), "byte {at}: {error}");
        }
        // Truncated at the end of a chunk, in its content and in its tag; then two chunks swapped.
        let step = CHUNK + TAG;
        for cut in [
            HEADER + step,
            HEADER + 2 * step,
            HEADER + step + 100,
            HEADER + step + 7,
        ] {
            assert!(reads_back(&whole[..cut]).is_err(), "{cut}");
        }
        let (header, body) = whole.split_at(HEADER);
        let swapped = [
            header,
            &body[step..2 * step],
            &body[..step],
            &body[2 * step..],
        ]
        .concat();
        assert!(reads_back(&swapped).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_part_is_read_alone(from in 0..200_000_u64, len in 0..200_000_usize) {
            let dir = tempfile::tempdir().expect("dir");
            let (path, want) = sample(dir.path(), 150_000);
            let mut source = Content::open(&path, Some(&key())).expect("opens");
            source.seek(SeekFrom::Start(from)).expect("goes");
            let mut bytes = Vec::new();
            source.take(len as u64).read_to_end(&mut bytes).expect("reads");
            let from = want.len().min(from as usize);
            let end = want.len().min(from + len);
            prop_assert!(bytes == want[from..end]);
        }
    }
}
