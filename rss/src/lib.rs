//! Receive side scaling, as pure arithmetic: which queue a frame lands on, and why.
//!
//! The engine uses this crate to decide which RSS QPs to create and what their tables hold; the
//! software NIC uses it to do what those QPs ask for; `wqcap rss` uses it to predict how the flows of
//! a capture file spread. The frame's way through the crate is the way through the NIC:
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
//! assert_eq!(queue, table.queue_of(hash.expect("of what is not the catch-all")));
//! # Ok::<(), wqcap_rss::TableError>(())
//! ```
//!
//! `examples/queue.rs` does so for the two directions of a connection.
//!
//! **May import** `core`, `alloc`/`std`, `bitflags`, `strum` and `thiserror`; nothing that does I/O, and no other crate
//! of the workspace.
//!
//! **Invariant**: no function here panics on any frame, and none on the way from frame to queue
//! allocates. Because both sides of the verbs boundary rely on this crate, agreement between them
//! proves nothing: [`toeplitz`] is pinned by Microsoft's published vectors and by a bitwise
//! reference instead.

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

/// What the whole pipeline does to one frame (bytes from the destination MAC on, without FCS): the
/// profile whose rule takes it, its Toeplitz hash, and the queue it lands on.
///
/// `table` is the one the hashing profiles share. The hash is `None` exactly for
/// [`Profile::CatchAll`], whose own table ([`IndirectionTable::catch_all`]) has one entry: queue 0.
#[inline]
#[must_use]
pub fn queue_of(
    frame: &[u8],
    depth: HashDepth,
    toeplitz: &Toeplitz,
    table: &IndirectionTable,
) -> (Profile, Option<u32>, u16) {
    let class = FrameClass::of(frame);
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
        // The low seven bits choose among 128 entries, and three queues take them in turn.
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
    fn what_is_not_hashed_is_on_queue_0() {
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
