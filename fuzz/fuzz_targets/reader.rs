//! Fuzz target: capture files, compressed or not. Reading terminates, and each returned packet is
//! complete. Options are encoded again.
#![cfg_attr(fuzzing, no_main)]

use wqcap_files::{
    format::pcapng::recode_options,
    read::{Decompressor, PacketReader},
};

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let Ok(source) = Decompressor::new(input) else {
        return;
    };
    let Ok(mut reader) = PacketReader::new(source) else {
        return;
    };
    let mut end = 0;
    while let Ok(Some(packet)) = reader.next() {
        assert!(packet.bytes.len() <= packet.len as usize && packet.offset >= end);
        end = packet.offset + packet.bytes.len() as u64;
        let mut options = Vec::new();
        recode_options(&mut options, packet.options, packet.order, |_| true);
        assert!(options.len() <= packet.options.len() + 4 && options.len().is_multiple_of(4));
    }
    assert!(reader.sound_end() <= reader.offset() || reader.packet().is_some());
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
