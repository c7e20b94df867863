//! Whether a file is a capture of wqcap's, or what was made of captures, by what it says of itself: for files whose names do
//! not tell.
//!
//! May import: [`crate::format`], and the decompressor.
//!
//! Invariant: a file without such a statement is never recognised. A pcap file makes it by a mark in its header, which files of
//! earlier versions do not have.

use crate::{
    format::{
        pcap::is_marked_as_capture,
        pcapng::{EMPTY_BLOCK_LEN, Options, SECTION_HEADER, code::SHB_USERAPPL, section_order},
    },
    read::Decompressor,
};
use std::io::Read;

/// The program that captures, as its section headers name it.
pub const PROGRAM: &str = concat!("wqcap ", env!("CARGO_PKG_VERSION"));
/// What merges captures, or extracts from them, as the section headers of what it writes name it.
pub const MERGE_PROGRAM: &str = concat!("wqcap ", env!("CARGO_PKG_VERSION"), " merge");
/// Bytes that are read for it: a section header of a capture is shorter.
const HEAD: u64 = 64 << 10;

/// Whether a file begins with the section header of a capture, of whichever version, or with the marked pcap header of one.
/// The file may be compressed.
pub fn is_capture(file: impl Read) -> bool {
    let mut head = Vec::new();
    let Ok(content) = Decompressor::new(file) else {
        return false;
    };
    // A torn file has what stands before the tear.
    let _ = content.take(HEAD).read_to_end(&mut head);
    is_capture_section(&head) || is_marked_as_capture(&head)
}

/// Whether the content of a file begins with the section header of a capture. Unlike a pcap header, it differs from queue to
/// queue and from run to run.
pub fn is_capture_section(head: &[u8]) -> bool {
    program(head).is_some_and(is_version)
}

/// Whether a file begins with the section header of what `wqcap merge` or `extract` writes, of whichever version. No more
/// is read than that.
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

/// `wqcap 1.2.3` and no more.
fn is_version(program: &[u8]) -> bool {
    let version = program.strip_prefix(b"wqcap ".as_slice());
    version.is_some_and(|it| !it.is_empty() && !it.contains(&b' '))
}

/// The program that a section header names.
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

    fn of(program: &str) -> Vec<u8> {
        let mut file = Vec::new();
        section_header(&mut file, |out| {
            option(out, SHB_USERAPPL, program.as_bytes());
        });
        file
    }

    #[test]
    fn captures_say_what_they_are() {
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
            assert_eq!(is_capture(&of(program)[..]), ours, "{program}");
            assert_eq!(is_merged(&of(program)[..]), merged, "{program}");
        }
        let whole = of(MERGE_PROGRAM);
        for cut in 0..whole.len() {
            assert!(!is_merged(&whole[..cut]), "{cut}");
        }
        let whole = of(PROGRAM);
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
