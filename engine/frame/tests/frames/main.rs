//! What the parsers say of every frame there is, held to what others say.
//!
//! | module | holds what to what |
//! |---|---|
//! | [`community`] | Community IDs to tshark's |
//! | [`oracle`] | the short way through a frame to the whole one, on captures and on mutated frames |
//! | [`peers`] | both to crate `etherparse` |
//! | [`tshark`] | the whole way to tshark, with a table of every difference and its reason |
//!
//! The captures are those of the integration tests' kit: `../shared/pcaps`, or generated ones where it is absent.

mod community;
mod layers;
mod oracle;
mod peers;
mod tshark;

use std::{fs, path::Path};
use wqcap_tests::{captures::Captures, files};

/// A frame and where it came from.
pub struct Sample {
    /// `capture.pcap #7`
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its length on the wire.
    pub len: u32,
}

/// Every frame of every capture.
pub fn samples() -> Vec<Sample> {
    let captures = Captures::find();
    let mut samples = Vec::new();
    for file in &captures.files {
        let name = file.file_name().expect("a file").display().to_string();
        for (i, record) in files::read_as_it_stands(file).into_iter().enumerate() {
            samples.push(Sample {
                name: format!("{name} #{}", i + 1),
                bytes: record.bytes,
                len: record.len,
            });
        }
    }
    samples
}

/// Writes them into one file, a second apart.
pub fn write(path: &Path, samples: &[Sample]) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 1 << 18, 1] {
        file.extend_from_slice(&u32::to_le_bytes(word));
    }
    for (i, sample) in (0u32..).zip(samples) {
        let caplen = u32::try_from(sample.bytes.len()).expect("frames are short");
        for word in [i, 0, caplen, sample.len.max(caplen)] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&sample.bytes);
    }
    fs::write(path, file).expect("the folder is writable");
}
