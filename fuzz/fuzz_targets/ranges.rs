//! Lists of ranges, as a query has printed them: CSV, or Parquet, of which the decoders' panics are caught; a fuzzer takes
//! these for its own.
#![cfg_attr(fuzzing, no_main)]

use wqcap_ship::query::RangeList;

/// The target.
pub fn run(input: &[u8]) {
    if !cfg!(fuzzing) || !input.starts_with(b"PAR1") {
        let _ = RangeList::read(input.to_vec());
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
