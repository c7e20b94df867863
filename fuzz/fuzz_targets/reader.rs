//! Fuzz target: capture files of all versions, compressed or not. Reading terminates, and each
//! returned packet is complete. Options are encoded again, and packets of other link types are
//! converted to Ethernet frames.
#![cfg_attr(fuzzing, no_main)]

use wqcap_files::{
    format::pcapng::recode_options,
    link::EthernetFrames,
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
    let (mut end, mut ethernet) = (0, EthernetFrames::default());
    while let Ok(true) = reader.advance() {
        let packet = reader.packet().expect("a packet");
        let interface = &reader.interfaces()[packet.interface];
        let (bytes, len) = packet.without_fcs(interface.fcs_len);
        assert!(bytes.len() <= len as usize && len <= packet.len);
        let _ = ethernet.convert(interface.link_type, bytes, len);
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
