//! Replays the fuzz corpus of objects read from stores, and of range lists for queries.

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
