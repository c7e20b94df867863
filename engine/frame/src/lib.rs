//! Ethernet frames as borrowed bytes: what headers there are, where they lie, to which flow a frame belongs, and whether
//! a filter keeps it.
//!
//! ```
//! use wqcap_frame::{FlowKey, Headers, filter::Filter};
//!
//! // 10.0.0.1:4660 > 10.0.0.2:53, UDP.
//! let mut frame = vec![0; 42];
//! frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17]);
//! frame[26..38].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 53]);
//! frame[39] = 8;
//!
//! let headers = Headers::parse(&frame);
//! assert_eq!(headers.tuple.dst_port, 53);
//! assert_eq!((headers.l3(), headers.l4(), headers.payload()), (Some(14), Some(34), Some(42)));
//! assert_eq!(FlowKey::of(&frame, &headers).ends, headers.tuple);
//!
//! let dns = Filter::compile("udp port 53")?;
//! assert!(dns.accepts(&frame, 42));
//! # Ok::<(), wqcap_frame::filter::FilterError>(())
//! ```
//!
//! `examples/flows.rs` counts the frames of each flow of a capture file.
//!
//! [`Headers`] is the way through a frame for the hot path: the 5-tuple, tags, fragment flags and offsets in one pass,
//! as a plain value. It rests on views with accessors, one file per protocol or family, each in the same order: layout
//! with its source, checks, accessors, tests. What only a reader of single packets wants (ARP operations, ICMP messages,
//! TCP options) is for crates such as `etherparse`. [`filter`] compiles and runs pcap-filter(7) expressions.
//!
//! # Invariants
//!
//! Parsers see `&[u8]`, never a buffer, a ring or a device; nothing of this crate calls foreign code but libpcap's
//! compiler. No input panics and nothing allocates. The work is bounded: a frame is followed through at most
//! [`MOST_LAYERS`] headers. A frame that breaks off or contradicts itself is no error: it is classified as
//! [`Malformed`], and what came before the fault stands. The tests hold all of it to a second way through a frame, which
//! takes every header in turn, to `etherparse`, to tshark and to tcpdump; `fuzz/` at the top holds it to any bytes.

mod field;
pub mod filter;
mod flow;
mod headers;
mod ip;
mod link;
mod malformed;
mod next;
mod numbers;
mod reduce;
mod transport;
mod tunnel;

pub use flow::{FlowKey, community_id};
pub use headers::{FiveTuple, Fragment, Headers, MOST_LAYERS, Tags};
pub use ip::{Ah, Esp, Extension, Icmp, Ipv4, Ipv6, Ipv6Fragment};
pub use link::{Arp, Ethernet, FCS_LEN, Llc, Mpls, Ppp, Pppoe, Vlan};
pub use malformed::{Malformed, MalformedCounts};
pub use next::Next;
pub use numbers::{ethertype, protocol};
pub use reduce::{Slice, dedup};
pub use transport::{Sctp, Tcp, Udp};
pub use tunnel::{Erspan, Geneve, Gre, Gtp, Vxlan};
