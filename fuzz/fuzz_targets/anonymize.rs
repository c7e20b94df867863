//! Fuzz target: anonymization of a frame terminates, adds no bytes, and keeps the header offsets of
//! the bytes that remain.
#![cfg_attr(fuzzing, no_main)]

use wqcap_files::{
    anonymize::{AnonymizeParams, Anonymizer},
    sealed::SecretKey,
};
use wqcap_frame::{Headers, Slice};

/// Runs the target on one input.
pub fn run(frame: &[u8]) {
    let key = SecretKey::new(&[7; 32]);
    for slice in [Slice::Whole, Slice::L3, Slice::L4, Slice::Payload(8)] {
        let key = key.clone();
        let mut anonymizer = Anonymizer::new(&AnonymizeParams { key, slice });
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let out = anonymizer.frame(frame, len);
        assert!(out.len() <= frame.len());
        let (was, is) = (Headers::parse(frame), Headers::parse(out));
        assert!(is.l4().is_none() || (was.l3(), was.l4()) == (is.l3(), is.l4()));
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
