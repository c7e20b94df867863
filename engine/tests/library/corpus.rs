//! Replays the corpus of the fuzz targets for the engine and its crates.

#[path = "../../../fuzz/fuzz_targets/anonymize.rs"]
mod anonymize;
#[path = "../../../fuzz/fuzz_targets/config.rs"]
mod config;
#[path = "../../../fuzz/fuzz_targets/control.rs"]
mod control;
#[path = "../../../fuzz/fuzz_targets/filter.rs"]
mod filter;
#[path = "../../../fuzz/fuzz_targets/headers.rs"]
mod headers;
#[path = "../../../fuzz/fuzz_targets/index.rs"]
mod index;
#[path = "../../../fuzz/fuzz_targets/innermost.rs"]
mod innermost;
#[path = "../../../fuzz/fuzz_targets/keylog.rs"]
mod keylog;
#[path = "../../../fuzz/fuzz_targets/layers.rs"]
mod layers;
#[cfg(feature = "flows")]
#[path = "../../../fuzz/fuzz_targets/names.rs"]
mod names;
#[path = "../../../fuzz/fuzz_targets/pins.rs"]
mod pins;
#[path = "../../../fuzz/fuzz_targets/reader.rs"]
mod reader;
#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../fuzz/fuzz_targets/sealed.rs"]
mod sealed;
#[path = "../../../fuzz/fuzz_targets/views.rs"]
mod views;

use replay::replay;

#[test]
fn capture_files() {
    replay("reader", reader::run);
}

#[test]
fn indexes() {
    replay("index", index::run);
}

#[test]
fn sealed_files() {
    replay("sealed", sealed::run);
}

#[test]
fn logs_of_secrets() {
    replay("keylog", keylog::run);
}

#[test]
fn pins_of_a_folder() {
    replay("pins", pins::run);
}

#[test]
fn control_messages() {
    replay("control", control::run);
}

#[test]
fn configurations() {
    replay("config", config::run);
}

#[cfg(feature = "flows")]
#[test]
fn payloads() {
    replay("names", names::run);
}

#[test]
fn frames() {
    for target in [
        anonymize::run,
        filter::run,
        headers::run,
        innermost::run,
        layers::run,
        views::run,
    ] {
        replay("headers", target);
    }
}
