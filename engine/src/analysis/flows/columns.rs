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

const fn int(
    name: &'static str,
    logical: &'static str,
    of: fn(&FlowRecord) -> Option<u32>,
) -> Column {
    let values = Values::Int(of);
    Column {
        name,
        logical,
        values,
    }
}

const fn long(
    name: &'static str,
    logical: &'static str,
    of: fn(&FlowRecord) -> Option<u64>,
) -> Column {
    let values = Values::Long(of);
    Column {
        name,
        logical,
        values,
    }
}

const fn text(name: &'static str, of: fn(&FlowRecord) -> Option<String>) -> Column {
    Column {
        name,
        logical: "STRING",
        values: Values::Text(of),
    }
}

const U8: &str = "INTEGER(8,false)";
const U16: &str = "INTEGER(16,false)";
const U32: &str = "INTEGER(32,false)";
const U64: &str = "INTEGER(64,false)";
const TIME: &str = "TIMESTAMP(NANOS,true)";

/// All of them, in their order.
pub(super) const COLUMNS: [Column; 27] = [
    long("first_fwd", TIME, |it| Some(it.ways[0].first_ns)),
    long("last_fwd", TIME, |it| Some(it.ways[0].last_ns)),
    long("first_rev", TIME, |it| time(it, it.ways[1].first_ns)),
    long("last_rev", TIME, |it| time(it, it.ways[1].last_ns)),
    int("ip_version", U8, |it| {
        ip(&it.tuple).then(|| it.tuple.version.into())
    }),
    text("src", |it| Some(address(&it.tuple))),
    text("dst", |it| Some(address(&it.tuple.reversed()))),
    int("src_port", U16, |it| port(&it.tuple)),
    int("dst_port", U16, |it| port(&it.tuple.reversed())),
    int("protocol", U8, |it| {
        ip(&it.tuple).then(|| it.tuple.protocol.into())
    }),
    int("ethertype", U16, |it| Some(it.ethertype.into())),
    int("vlan", U16, |it| vlan(it.vlans[0])),
    int("vlan2", U16, |it| vlan(it.vlans[1])),
    int("vni", U32, |it| it.network),
    text("outer_src", |it| it.outer.as_ref().map(address)),
    text("outer_dst", |it| {
        it.outer.map(|outer| address(&outer.reversed()))
    }),
    int("outer_protocol", U8, |it| {
        it.outer.map(|o| o.protocol.into())
    }),
    int("outer_src_port", U16, |it| it.outer.as_ref().and_then(port)),
    int("outer_dst_port", U16, |it| {
        it.outer.and_then(|o| port(&o.reversed()))
    }),
    long("frames_fwd", U64, |it| Some(it.ways[0].frames)),
    long("frames_rev", U64, |it| Some(it.ways[1].frames)),
    long("bytes_fwd", U64, |it| Some(it.ways[0].bytes)),
    long("bytes_rev", U64, |it| Some(it.ways[1].bytes)),
    int("tcp_flags_fwd", U8, |it| it.tcp_flags.map(|f| f[0].into())),
    int("tcp_flags_rev", U8, |it| it.tcp_flags.map(|f| f[1].into())),
    int("queue", U16, |it| Some(it.queue.into())),
    text("ended_by", |it| Some(it.end.name().to_owned())),
];

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
