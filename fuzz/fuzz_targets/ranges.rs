//! Fuzz target: lists of ranges as a query prints them, CSV or Parquet. The program catches panics
//! of the Parquet decoders. A fuzzer would report them as failures, so Parquet is only replayed.
#![cfg_attr(fuzzing, no_main)]

use wqcap_ship::query::RangeList;

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    if !cfg!(fuzzing) || !input.starts_with(b"PAR1") {
        let _ = RangeList::read(input.to_vec());
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
