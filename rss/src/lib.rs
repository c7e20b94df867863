//! Receive side scaling as pure arithmetic: computes the queue that a NIC selects for a frame.
//!
//! The engine uses this crate to choose the RSS QPs to create and the contents of their tables. The
//! software NIC uses it to steer frames as those QPs specify. `wqcap rss` uses it to predict how
//! the flows of a capture file spread over queues. The modules follow the steps in the NIC:
//!
//! ```text
//! frame -> input::FrameClass -> profile::Profile (which QP, which fields)
//!       -> toeplitz::Toeplitz -> table::IndirectionTable -> queue
//! ```
//!
//! ```
//! use wqcap_rss::{HashDepth, IndirectionTable, Profile, RssKey, Toeplitz, queue_of};
//!
//! // 10.0.0.1:1 > 10.0.0.2:2, TCP.
//! let mut frame = vec![0; 54];
//! frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6]);
//! frame[26..38].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2]);
//! let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
//! let table = IndirectionTable::new(512, 4, &[])?;
//! let (profile, hash, queue) = queue_of(&frame, HashDepth::L4, &toeplitz, &table);
//! assert_eq!(profile, Profile::Ipv4Tcp);
//! assert_eq!(queue, table.queue_of(hash.expect("only the catch-all has no hash")));
//! # Ok::<(), wqcap_rss::TableError>(())
//! ```
//!
//! `examples/queue.rs` computes the queues of the two directions of a TCP connection.
//!
//! **May import** `core`, `alloc`/`std`, `bitflags`, `strum` and `thiserror`; nothing that does
//! I/O, and no other crate of the workspace.
//!
//! **Invariant**: no function of this crate panics on any frame, and no function between frame and
//! queue allocates. Both sides of the verbs boundary use this crate, so their agreement is not
//! evidence of correctness: tests compare [`toeplitz`] with Microsoft's published vectors and with
//! a bitwise reference instead.

#![forbid(unsafe_code)]

pub mod input;
pub mod key;
pub mod profile;
pub mod selection;
pub mod table;
pub mod toeplitz;

pub use input::{FrameClass, L3, L4};
pub use key::{KeyError, RssKey};
pub use profile::{HashDepth, HashFields, Profile};
pub use selection::Selection;
pub use table::{IndirectionTable, TableError};
pub use toeplitz::Toeplitz;

/// Returns the RSS profile, the Toeplitz hash and the receive queue of one frame (bytes from the
/// destination MAC, without FCS).
///
/// `table` is the table shared by the hashing profiles. The hash is `None` only for
/// [`Profile::CatchAll`], whose own table ([`IndirectionTable::catch_all`]) has one entry: queue 0.
#[inline]
#[must_use]
pub fn queue_of(
    frame: &[u8],
    depth: HashDepth,
    toeplitz: &Toeplitz,
    table: &IndirectionTable,
) -> (Profile, Option<u32>, u16) {
    let class = FrameClass::from_frame(frame);
    let profile = class.profile(depth);
    let hash = class.hash(frame, profile.hash_fields(), toeplitz);
    (profile, hash, hash.map_or(0, |hash| table.queue_of(hash)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::tests::{any_frame, ethernet, ipv4, ports_and};
    use proptest::prelude::*;

    fn table() -> IndirectionTable {
        IndirectionTable::new(128, 3, &[]).unwrap()
    }

    #[test]
    fn a_published_flow_takes_the_queue_of_its_hash() {
        let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
        let (src, dst) = ([66, 9, 149, 187], [161, 142, 100, 80]);
        let frame = ethernet(
            &[],
            0x0800,
            &ipv4(src, dst, 6, 0, 0, &ports_and(2794, 1766, 16)),
        );
        // The low seven bits of the hash select one of 128 entries, which cycle through three
        // queues.
        let table = table();
        assert_eq!(
            queue_of(&frame, HashDepth::L4, &toeplitz, &table),
            (Profile::Ipv4Tcp, Some(0x51cc_c178), (0x78 % 3) as u16)
        );
        assert_eq!(
            queue_of(&frame, HashDepth::L3, &toeplitz, &table),
            (Profile::Ipv4, Some(0x323e_8fc2), (0x42 % 3) as u16)
        );
    }

    #[test]
    fn frames_without_a_hash_go_to_queue_0() {
        let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
        for frame in [&[][..], &[0xff; 13], &[0xff; 60]] {
            for depth in [HashDepth::L3, HashDepth::L4] {
                let taken = queue_of(frame, depth, &toeplitz, &table());
                assert_eq!(taken, (Profile::CatchAll, None, 0));
            }
        }
    }

    proptest! {
        #[test]
        fn every_frame_is_taken_by_an_installed_profile(frame in any_frame()) {
            let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
            for depth in [HashDepth::L3, HashDepth::L4] {
                let (profile, hash, queue) = queue_of(&frame, depth, &toeplitz, &table());
                prop_assert!(Profile::to_install(depth).contains(&profile));
                prop_assert_eq!(hash.is_none(), profile == Profile::CatchAll);
                prop_assert_eq!(queue, hash.map_or(0, |hash| table().queue_of(hash)));
            }
        }
    }
}
