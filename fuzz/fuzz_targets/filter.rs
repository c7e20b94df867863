//! Fuzz target: filters on arbitrary frames, and arbitrary programs. A verified program terminates
//! and reads only the frame.
#![cfg_attr(fuzzing, no_main)]

use std::sync::LazyLock;
use wqcap_frame::filter::{Filter, Program};

/// Filters that are run on each input.
static FILTERS: LazyLock<Vec<Filter>> = LazyLock::new(|| {
    [
        "tcp port 80",
        "vlan and ip6",
        "mpls and host 10.0.0.1",
        "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
        "ip6 protochain 58",
        "len / (ip[8] - 1) % 7 = 3",
    ]
    .map(|expression| Filter::compile(expression).expect(expression))
    .into()
});

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let len = u32::try_from(input.len()).unwrap_or(u32::MAX);
    for filter in FILTERS.iter() {
        _ = filter.accepts(input, len);
    }
    let Some((count, rest)) = input.split_first() else {
        return;
    };
    let (program, frame) = rest.split_at(rest.len().min(usize::from(*count) * 8));
    let instructions: Vec<_> = program
        .as_chunks::<8>()
        .0
        .iter()
        .map(|[a, b, jt, jf, k @ ..]| {
            (
                u16::from_be_bytes([*a, *b]),
                *jt,
                *jf,
                u32::from_be_bytes(*k),
            )
        })
        .collect();
    if let Ok(program) = Program::new(&instructions) {
        _ = program.run(frame, len);
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
