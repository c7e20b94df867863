//! Comparison of the parsers with other implementations, on every frame of the test captures.
//!
//! | module | comparison |
//! |---|---|
//! | [`community`] | Community IDs with those of tshark |
//! | [`encapsulated`] | generated frames behind headers of fabrics and in tunnels, with their packets |
//! | [`oracle`] | `Headers` with the layer iterator, on captures and on mutated frames |
//! | [`peers`] | `Headers` with crate `etherparse` |
//! | [`tshark`] | the layer iterator with tshark, with a table of all differences and their reasons |
//!
//! The captures are those of the integration tests' kit: `../shared/pcaps`, or generated ones if it
//! is absent.

mod community;
mod encapsulated;
mod filter;
mod layers;
mod oracle;
mod peers;
mod tshark;

use std::{fs, path::Path};
use wqcap_testkit::{
    captures::Captures,
    files,
    frames::encapsulated::{encapsulated, not_encapsulated},
};

/// Frame of a test capture.
pub struct Sample {
    /// Capture file and frame number, such as `capture.pcap #7`.
    pub name: String,
    /// Captured bytes of the frame.
    pub bytes: Vec<u8>,
    /// Length of the frame on the wire.
    pub len: u32,
}

/// Returns every frame of every test capture, and generated frames with headers that the captures
/// do not have.
pub fn samples() -> Vec<Sample> {
    let captures = Captures::find();
    let mut samples = Vec::new();
    for file in &captures.files {
        let name = file
            .file_name()
            .expect("captures have file names")
            .display()
            .to_string();
        for (i, record) in files::read_as_it_stands(file).into_iter().enumerate() {
            samples.push(Sample {
                name: format!("{name} #{}", i + 1),
                bytes: record.bytes,
                len: record.len,
            });
        }
    }
    let generated = encapsulated().into_iter().map(|it| (it.name, it.frame));
    for (name, bytes) in generated.chain(not_encapsulated()) {
        samples.push(Sample {
            name: name.to_owned(),
            len: u32::try_from(bytes.len()).expect("frames are short"),
            bytes,
        });
    }
    samples
}

/// Writes the frames into one pcap file with timestamps one second apart.
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
