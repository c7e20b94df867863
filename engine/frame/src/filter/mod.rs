//! Filters: pcap-filter(7) expressions, compiled by libpcap, run by an interpreter of our own.
//!
//! libpcap parses and optimises, so an expression means exactly what it means to tcpdump reading a file: `vlan` looks
//! at the tags in place and shifts what follows it, `len` is the length on the wire. What cannot be told from a frame's
//! bytes (`inbound`, `ifindex`) is refused.
//!
//! Invariants: a [`Program`] has been verified, so it ends and cannot read outside the frame; running one takes no lock
//! and allocates nothing. A filter is replaced as a whole, between two batches ([`FilterCell`]).

mod cell;
mod compiler;
mod constraints;
mod expression;
mod program;
mod sync;

pub use cell::{FilterCell, FilterReader};
pub use constraints::{Bits, Constraints, OffsetOrigin};
pub use expression::{
    DEEPEST_NESTING, Filter, FilterError, LONGEST_COMPILATION, LONGEST_EXPRESSION, shown,
};
pub use program::{Instruction, Program, Refused};
