//! Replays the corpus of the fuzz targets for what lies in stores, and what asks for it.

#[path = "../../fuzz/fuzz_targets/ranges.rs"]
mod ranges;
#[path = "../../fuzz/replay.rs"]
mod replay;
#[path = "../../fuzz/fuzz_targets/status.rs"]
mod status;

use replay::replay;

#[test]
fn statuses() {
    replay("status", status::run);
}

#[test]
fn lists_of_ranges() {
    replay("ranges", ranges::run);
}
