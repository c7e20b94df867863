//! Parser of Ethernet frames over borrowed bytes: headers and their offsets, flow keys, and
//! packet filters.
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
//! assert_eq!(FlowKey::from_headers(&frame, &headers).ends, headers.tuple);
//!
//! let dns = Filter::compile("udp port 53")?;
//! assert!(dns.accepts(&frame, 42));
//! # Ok::<(), wqcap_frame::filter::FilterError>(())
//! ```
//!
//! `examples/flows.rs` counts the frames of each flow of a capture file.
//!
//! [`Headers`] is the parser for the hot path. It reads the 5-tuple, VLAN tags, fragment flags and
//! header offsets in one pass and returns them as a plain value. It is built on views with
//! accessors, one file per protocol or family. Each file has the same order: layout with its
//! source, checks, accessors, tests. Fields that only packet analysers need (ARP operations, ICMP
//! messages, TCP options) are left to crates such as `etherparse`. [`filter`] compiles and runs
//! pcap-filter(7) expressions.
//!
//! # Invariants
//!
//! - Parsers take `&[u8]`, never a buffer, a ring or a device. The only foreign code that this
//!   crate calls is libpcap's compiler.
//! - No input causes a panic, and parsing does not allocate.
//! - The work per frame is bounded: at most [`MAX_HEADERS`] headers are parsed.
//! - A truncated or inconsistent frame is not an error. It is classified as [`Malformed`], and the
//!   fields parsed before the fault remain valid.
//!
//! The tests compare the results with a second parser that reads header by header, with
//! `etherparse`, with tshark and with tcpdump. The targets in `fuzz/` run the parsers on arbitrary
//! bytes.

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

pub use flow::{FlowKey, NoCommunityId, check_community_id, community_id};
pub use headers::{FiveTuple, Fragment, Headers, MAX_HEADERS, Tags};
pub use ip::{Ah, Esp, ExtensionHeader, Icmp, Ipv4, Ipv6, Ipv6Fragment};
pub use link::{Arp, Ethernet, FabricTag, Llc, Mpls, Nsh, Ppp, Pppoe, Vlan, Wlan};
pub use malformed::{Malformed, MalformedCounts};
pub use next::Next;
pub use numbers::{ethertype, protocol};
pub use reduce::{Slice, SliceError, dedup};
pub use transport::{Sctp, Tcp, Udp};
pub use tunnel::{Capwap, Erspan, EtherIp, Geneve, Gre, Gtp, L2tp, Teredo, Tzsp, Vxlan};
