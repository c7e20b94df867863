//! Fuzz target: messages of the control service, as one text, and as fragments that are each
//! preceded by a length byte.
#![cfg_attr(fuzzing, no_main)]

use wqcap_control::protocol::{Answer, Handshake, Request, fragment::Reassembler};

/// Maximum length of a reassembled message in bytes.
const LIMIT: usize = 4096;

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    message(input);
    let mut reassembler = Reassembler::new(LIMIT);
    let mut rest = input;
    while let Some((len, behind)) = rest.split_first() {
        let (fragment, behind) = behind.split_at(behind.len().min(usize::from(*len)));
        if let Ok(Some(text)) = reassembler.push(fragment) {
            assert!(text.len() <= LIMIT);
            message(&text);
        }
        rest = behind;
    }
}

/// Parses a text as each kind of message; parsed messages must survive a round trip.
fn message(text: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(text) {
        let again = serde_json::to_string(&request).expect("serialises");
        serde_json::from_str::<Request>(&again).expect("a parsed request parses again");
    }
    if let Ok(handshake) = serde_json::from_slice::<Handshake>(text) {
        let again = serde_json::from_str(&handshake.text());
        assert_eq!(again.ok(), Some(handshake));
    }
    let _ = serde_json::from_slice::<Answer>(text);
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
