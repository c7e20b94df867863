//! Fuzz target: uverbs commands to the model. The model answers every command.
//! `mlx5-model/src/uapi/fuzz.rs` replays the corpus.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| mlx5_model::uapi::fuzz::run([input])
    .map(drop)
    .unwrap_or(()));
