//! Whether a file is a capture of wqcap's, by what it says of itself: for files whose names do not tell.
//!
//! May import: [`crate::format`], [`crate::read`].
//!
//! Invariant: a file that says nothing of itself is nobody's, so a pcap file is never recognised here, and neither is what
//! another command of wqcap has written.

use crate::{
    format::pcapng::{Options, SECTION_HEADER, code::SHB_USERAPPL, section_order},
    read::Decompressor,
};
use std::io::Read;

/// The program that captures, as its section headers name it.
pub const PROGRAM: &str = concat!("wqcap ", env!("CARGO_PKG_VERSION"));
/// Bytes that are read for it: a section header of a capture is shorter.
const HEAD: u64 = 64 << 10;

/// Whether a file begins with the section header of a capture, of whichever version.
pub fn is_capture(file: impl Read) -> bool {
    let mut head = Vec::new();
    let Ok(content) = Decompressor::new(file) else {
        return false;
    };
    // A torn file has what stands before the tear.
    let _ = content.take(HEAD).read_to_end(&mut head);
    program(&head).is_some_and(|name| {
        let version = name.strip_prefix(b"wqcap ".as_slice());
        version.is_some_and(|it| !it.is_empty() && !it.contains(&b' '))
    })
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
        for (program, ours) in [
            (PROGRAM, true),
            ("wqcap 7.0.1", true),
            ("wqcap 0.1.0 merge", false),
            ("wqcap ", false),
            ("Dumpcap (Wireshark) 4.0", false),
            ("", false),
        ] {
            assert_eq!(is_capture(&of(program)[..]), ours, "{program}");
        }
        let whole = of(PROGRAM);
        for cut in 0..whole.len() {
            assert!(!is_capture(&whole[..cut]), "{cut}");
        }
        let mut packed = vec![0; zstd_safe::compress_bound(whole.len())];
        let len = zstd_safe::compress(&mut packed[..], &whole, 3).expect("packs");
        assert!(is_capture(&packed[..len]));
        let (pcap, _) = written(FileFormat::Pcap, 2);
        assert!(!is_capture(&pcap[..]));
        assert!(!is_capture(&b""[..]));
    }
}
