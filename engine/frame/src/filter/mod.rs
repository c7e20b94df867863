//! Packet filters: pcap-filter(7) expressions, compiled by libpcap and run by the interpreter of
//! this crate.
//!
//! libpcap parses and optimises, so an expression has exactly the meaning that it has for tcpdump
//! reading a file: `vlan` tests the tags in the frame and shifts the offsets after it, and `len` is
//! the length on the wire. Expressions that test properties outside the frame (`ifindex`) are
//! rejected. A [`Filter`] is for Ethernet frames, a [`FileFilter`] for frames of all link types.
//!
//! Invariants: a [`Program`] is verified, so it terminates and cannot read outside the frame.
//! Running a program takes no lock and does not allocate. A filter is replaced as a whole, between
//! two batches ([`FilterCell`]).

mod cell;
mod compiler;
mod constraints;
mod error;
mod expression;
mod files;
mod libpcap;
mod program;
mod sync;

pub use cell::{FilterCell, FilterReader};
pub use compiler::FilterCompiler;
pub use constraints::{Bits, Constraints, OffsetOrigin};
pub use error::{DEEPEST_NESTING, FilterError, LONGEST_COMPILATION, LONGEST_EXPRESSION};
pub use expression::{Filter, quoted_expression};
pub use files::FileFilter;
pub use program::{Instruction, Program, ProgramError};
