//! The columns of the files: names, Parquet types, and what each takes from a record. `docs/flows.md` explains them.

use super::flow::FlowRecord;
use crate::frame::{FiveTuple, FlowKey, protocol};
use std::net::IpAddr;

/// How a column's values are made.
#[derive(Clone, Copy)]
pub(super) enum Values {
    /// A number that fits 32 bits.
    Int(fn(&FlowRecord) -> Option<u32>),
    /// A number.
    Long(fn(&FlowRecord) -> Option<u64>),
    /// A text.
    Text(fn(&FlowRecord) -> Option<String>),
}

/// A column.
pub(super) struct Column {
    pub(super) name: &'static str,
    /// The logical type, as Parquet's message types write it.
    pub(super) logical: &'static str,
    pub(super) values: Values,
}

/// Each column's name, type, and how its values are made.
macro_rules! columns {
    ($($name:ident: $logical:ident, $values:ident($of:expr);)+) => {
        /// All of them, in their order.
        pub(super) const COLUMNS: &[Column] = &[$(Column {
            name: stringify!($name),
            logical: $logical,
            values: Values::$values($of),
        },)+];
    };
}

const U8: &str = "INTEGER(8,false)";
const U16: &str = "INTEGER(16,false)";
const U32: &str = "INTEGER(32,false)";
const U64: &str = "INTEGER(64,false)";
const TIME: &str = "TIMESTAMP(NANOS,true)";
const TEXT: &str = "STRING";

columns! {
    first_fwd: TIME, Long(|it| Some(it.ways[0].first_ns));
    last_fwd: TIME, Long(|it| Some(it.ways[0].last_ns));
    first_rev: TIME, Long(|it| time(it, it.ways[1].first_ns));
    last_rev: TIME, Long(|it| time(it, it.ways[1].last_ns));
    ip_version: U8, Int(|it| ip(&it.tuple).then(|| it.tuple.version.into()));
    src: TEXT, Text(|it| Some(address(&it.tuple)));
    dst: TEXT, Text(|it| Some(address(&it.tuple.reversed())));
    src_port: U16, Int(|it| port(&it.tuple));
    dst_port: U16, Int(|it| port(&it.tuple.reversed()));
    protocol: U8, Int(|it| ip(&it.tuple).then(|| it.tuple.protocol.into()));
    ethertype: U16, Int(|it| Some(it.ethertype.into()));
    vlan: U16, Int(|it| vlan(it.vlans[0]));
    vlan2: U16, Int(|it| vlan(it.vlans[1]));
    vni: U32, Int(|it| it.network);
    outer_src: TEXT, Text(|it| it.outer.as_ref().map(address));
    outer_dst: TEXT, Text(|it| it.outer.map(|outer| address(&outer.reversed())));
    outer_protocol: U8, Int(|it| it.outer.map(|o| o.protocol.into()));
    outer_src_port: U16, Int(|it| it.outer.as_ref().and_then(port));
    outer_dst_port: U16, Int(|it| it.outer.and_then(|o| port(&o.reversed())));
    frames_fwd: U64, Long(|it| Some(it.ways[0].frames));
    frames_rev: U64, Long(|it| Some(it.ways[1].frames));
    bytes_fwd: U64, Long(|it| Some(it.ways[0].bytes));
    bytes_rev: U64, Long(|it| Some(it.ways[1].bytes));
    tcp_flags_fwd: U8, Int(|it| it.tcp_flags.map(|f| f[0].into()));
    tcp_flags_rev: U8, Int(|it| it.tcp_flags.map(|f| f[1].into()));
    queue: U16, Int(|it| Some(it.queue.into()));
    ended_by: TEXT, Text(|it| Some(it.end.to_string()));
    community_id: TEXT, Text(|it| it.tuple.community_id(it.icmp));
}

/// A time of the way back, which not every flow has.
fn time(record: &FlowRecord, ns: u64) -> Option<u64> {
    (record.ways[1].frames > 0).then_some(ns)
}

fn ip(tuple: &FiveTuple) -> bool {
    tuple.version != 0
}

/// The source; without IP it is a MAC address.
fn address(tuple: &FiveTuple) -> String {
    let [a, b, c, d, e, f, ..] = tuple.src_bytes();
    match tuple.src() {
        Some(IpAddr::V4(ip)) => ip.to_string(),
        Some(IpAddr::V6(ip)) => ip.to_string(),
        None => format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
    }
}

fn port(tuple: &FiveTuple) -> Option<u32> {
    let has = ip(tuple)
        && matches!(
            tuple.protocol,
            protocol::TCP | protocol::UDP | protocol::SCTP
        );
    has.then(|| tuple.src_port.into())
}

fn vlan(id: u16) -> Option<u32> {
    (id != FlowKey::UNTAGGED).then(|| id.into())
}
