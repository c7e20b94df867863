//! Detection of files written by wqcap, captures or merged files, by their content. Used for files
//! whose names do not show their origin.
//!
//! May import: [`crate::format`], and the decompressor.
//!
//! Invariant: a file without a mark of wqcap is never recognised. The mark of a pcap file is in its
//! header; files of earlier versions do not have it.

use crate::{
    format::{
        pcap::is_marked_as_capture,
        pcapng::{EMPTY_BLOCK_LEN, Options, SECTION_HEADER, code::SHB_USERAPPL, section_order},
    },
    read::{Decompressor, is_capture_start},
};
use std::io::Read;

/// Program name that captures of wqcap write into section headers.
pub const PROGRAM: &str = concat!("wqcap ", env!("CARGO_PKG_VERSION"));
/// Program name that `wqcap merge` and `extract` write into section headers.
pub const MERGE_PROGRAM: &str = concat!("wqcap ", env!("CARGO_PKG_VERSION"), " merge");
/// Maximum number of bytes read to detect which program wrote a file; section headers of captures
/// are shorter.
const HEAD: u64 = 64 << 10;

/// Returns `true` if a file was written by a capture of wqcap: it begins with the section header of
/// a capture of any version, or with a pcap header with the capture mark. The file may be
/// compressed.
pub fn is_capture(file: impl Read) -> bool {
    let mut head = Vec::new();
    let Ok(content) = Decompressor::new(file) else {
        return false;
    };
    // A truncated file returns the content before the error.
    let _ = content.take(HEAD).read_to_end(&mut head);
    is_capture_section(&head) || is_marked_as_capture(&head)
}

/// Returns `true` if the content of a file begins with the section header of a capture. Unlike a
/// pcap header, a section header differs between queues and runs.
pub fn is_capture_section(head: &[u8]) -> bool {
    program(head).is_some_and(is_version)
}

/// Kind of a file in a folder of captures, detected by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// File that is a capture of any program, or that cannot be read.
    Capture,
    /// File that was written by `wqcap merge` or `extract`.
    Merged,
    /// File that is not a capture.
    Foreign,
}

/// Returns the kind of a file (capture, merged or foreign), by its first bytes. The file may be
/// compressed.
pub fn kind_of(file: impl Read) -> FileKind {
    let Ok(mut content) = Decompressor::new(file) else {
        return FileKind::Capture;
    };
    let mut head = Vec::new();
    let begun = (&mut content).take(4).read_to_end(&mut head);
    match begun {
        Ok(_) if !is_capture_start(&head) => FileKind::Foreign,
        Ok(_) if is_merged(head.chain(content)) => FileKind::Merged,
        _ => FileKind::Capture,
    }
}

/// Returns `true` if a file begins with the section header of `wqcap merge` or `extract`, of any
/// version. Only the section header is read of a file that is not compressed.
pub fn is_merged(mut file: impl Read) -> bool {
    let mut head = vec![0; EMPTY_BLOCK_LEN];
    let begun = file.read_exact(&mut head).is_ok();
    let Some(order) = section_order(&head).filter(|_| begun) else {
        return false;
    };
    let rest = u64::from(order.u32(&head, 4)).min(HEAD);
    let rest = rest.saturating_sub(head.len() as u64);
    let whole = file.take(rest).read_to_end(&mut head);
    let name = whole.ok().and_then(|_| program(&head));
    name.and_then(|name| name.strip_suffix(b" merge"))
        .is_some_and(is_version)
}

/// Returns `true` for a program name in a section header that is wqcap with a version: `wqcap
/// 1.2.3`.
fn is_version(program: &[u8]) -> bool {
    let version = program.strip_prefix(b"wqcap ".as_slice());
    version.is_some_and(|it| !it.is_empty() && !it.contains(&b' '))
}

/// Returns the name of the program in the section header of a pcapng file; `None`: it has none.
fn program(head: &[u8]) -> Option<&[u8]> {
    if !head.starts_with(&SECTION_HEADER.to_ne_bytes()) {
        return None;
    }
    let order = section_order(head)?;
    let len = usize::try_from(order.u32(head, 4)).ok()?;
    let options = head.get(24..len)?;
    let mut options = Options::new(options, order);
    let (_, name) = options.find(|(code, _)| *code == SHB_USERAPPL)?;
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::written,
        format::{
            FileFormat,
            pcap::{HEADER_LEN, marked_as_capture},
            pcapng::{option, section_header},
        },
    };

    /// Builds a pcapng section header with a program name.
    fn section_of(program: &str) -> Vec<u8> {
        let mut file = Vec::new();
        section_header(&mut file, |out| {
            option(out, SHB_USERAPPL, program.as_bytes());
        });
        file
    }

    #[test]
    fn captures_and_merged_files_are_recognised() {
        for (program, ours, merged) in [
            (PROGRAM, true, false),
            ("wqcap 7.0.1", true, false),
            (MERGE_PROGRAM, false, true),
            ("wqcap 0.1.0 merge", false, true),
            ("wqcap  merge", false, false),
            ("wqcap ", false, false),
            ("Dumpcap (Wireshark) 4.0", false, false),
            ("", false, false),
        ] {
            assert_eq!(is_capture(&section_of(program)[..]), ours, "{program}");
            assert_eq!(is_merged(&section_of(program)[..]), merged, "{program}");
        }
        let whole = section_of(MERGE_PROGRAM);
        for cut in 0..whole.len() {
            assert!(!is_merged(&whole[..cut]), "{cut}");
        }
        assert_eq!(kind_of(&whole[..]), FileKind::Merged);
        for (bytes, kind) in [
            (&section_of(PROGRAM)[..], FileKind::Capture),
            (&whole[..4], FileKind::Capture),
            (&whole[..3], FileKind::Foreign),
            (b"a text", FileKind::Foreign),
            (b"", FileKind::Foreign),
        ] {
            assert_eq!(kind_of(bytes), kind);
        }
        let whole = section_of(PROGRAM);
        for cut in 0..whole.len() {
            assert!(!is_capture(&whole[..cut]), "{cut}");
        }
        let mut packed = vec![0; zstd_safe::compress_bound(whole.len())];
        let len = zstd_safe::compress(&mut packed[..], &whole, 3).expect("packs");
        assert!(is_capture(&packed[..len]));
        let (pcap, _) = written(FileFormat::Pcap, 2);
        assert!(!is_capture(&pcap[..]) && !is_merged(&pcap[..]));
        let header = pcap[..HEADER_LEN].try_into().expect("a header");
        let marked = [&marked_as_capture(header)[..], &pcap[HEADER_LEN..]].concat();
        assert!(is_capture(&marked[..]) && !is_merged(&marked[..]));
        assert!(!is_capture_section(&marked));
        let len = zstd_safe::compress(&mut packed[..], &marked[..HEADER_LEN], 3).expect("packs");
        assert!(is_capture(&packed[..len]));
        assert!(!is_capture(&b""[..]));
    }
}
