//! Opens files for reading, and decompresses those that are compressed.

use super::{
    cursor::ReadError,
    decompress::{Decompressor, FrameEnds, is_compressed},
    reader::{FileReader, PacketReader},
    window,
};
use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    path::Path,
};

/// Opens a file; `-` is standard input.
///
/// # Errors
/// The system, or it is not a capture file.
pub fn open(path: &Path) -> Result<FileReader, ReadError> {
    open_with_window(path, window::WHOLE_FILE)
}

/// Opens a file of which only the beginning is wanted.
///
/// # Errors
/// As [`open`].
pub fn peek(path: &Path) -> Result<FileReader, ReadError> {
    open_with_window(path, window::BEGINNING)
}

/// Opens a file that may be compressed; if it is, [`FrameEnds`] tells where its compressed frames end.
///
/// # Errors
/// As [`open`].
pub fn open_with_frame_ends(path: &Path) -> Result<(FileReader, Option<FrameEnds>), ReadError> {
    let ends = FrameEnds::default();
    let (source, compressed) = decompressed_noting(File::open(path)?, Some(&ends))?;
    let reader = PacketReader::new(source)?;
    Ok((reader, compressed.then_some(ends)))
}

pub(super) fn open_with_window(path: &Path, window: usize) -> Result<FileReader, ReadError> {
    let source: Box<dyn Read + Send> = if path.as_os_str() == "-" {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path)?)
    };
    PacketReader::with_window(decompressed(source)?, window)
}

/// What is in a source, whether it is compressed or not.
///
/// # Errors
/// The source fails.
pub fn decompressed<R: Read + Send + 'static>(source: R) -> io::Result<Box<dyn Read + Send>> {
    decompressed_noting(source, None).map(|(source, _)| source)
}

/// The same, and whether it is compressed.
fn decompressed_noting<R: Read + Send + 'static>(
    mut source: R,
    ends: Option<&FrameEnds>,
) -> io::Result<(Box<dyn Read + Send>, bool)> {
    let mut start = Vec::new();
    (&mut source).take(4).read_to_end(&mut start)?;
    let compressed = is_compressed(&start);
    let whole = io::Cursor::new(start).chain(source);
    if !compressed {
        return Ok((Box::new(whole), false));
    }
    let mut decompressor = Decompressor::new(whole).ok_or(ErrorKind::OutOfMemory)?;
    if let Some(ends) = ends {
        decompressor = decompressor.noting(ends.clone());
    }
    Ok((Box::new(decompressor), true))
}
