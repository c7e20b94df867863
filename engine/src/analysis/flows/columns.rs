//! The columns of the files: names, Parquet types, and what each takes from a record. `docs/flows.md` explains them.

use super::flow::FlowRecord;
use crate::frame::{FiveTuple, FlowKey, protocol};
use std::net::IpAddr;

/// Version of these columns, which files tell; a file that tells none has version 1, with unsigned numbers and
/// nanoseconds in timestamps.
pub(super) const SCHEMA_VERSION: &str = "2";

/// How a column's values are made. Their types are those that every engine reads: none is unsigned, none is a timestamp in
/// nanoseconds.
#[derive(Clone, Copy)]
pub(super) enum Values {
    /// A number of 16 bits at most, in a signed one of 32.
    Int(fn(&FlowRecord) -> Option<u16>),
    /// A number in a signed one of 64 bits.
    Long(fn(&FlowRecord) -> Option<u64>),
    /// Nanoseconds since 1970, cut to microseconds.
    Time(fn(&FlowRecord) -> Option<u64>),
    /// A text.
    Text(fn(&FlowRecord) -> Option<String>),
    /// A text by which a few of all rows are looked for.
    Name(fn(&FlowRecord) -> Option<String>),
}

/// A column.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) values: Values,
}

/// Each column's name and how its values are made.
macro_rules! columns {
    ($($name:ident: $values:ident($of:expr);)+) => {
        /// All of them, in their order.
        pub(super) const COLUMNS: &[Column] = &[$(Column {
            name: stringify!($name),
            values: Values::$values($of),
        },)+];
    };
}

/// So many of the first columns are what the rows of a row group are in the order of.
pub(super) const SORTED_BY: usize = 2;

columns! {
    first_fwd: Time(|it| Some(it.first_ns()));
    first_fwd_ns: Long(|it| Some(it.first_ns()));
    last_fwd: Time(|it| Some(it.ways[0].last_ns));
    last_fwd_ns: Long(|it| Some(it.ways[0].last_ns));
    first_rev: Time(|it| back(it, it.ways[1].first_ns));
    first_rev_ns: Long(|it| back(it, it.ways[1].first_ns));
    last_rev: Time(|it| back(it, it.ways[1].last_ns));
    last_rev_ns: Long(|it| back(it, it.ways[1].last_ns));
    ip_version: Int(|it| ip(&it.tuple).then(|| it.tuple.version.into()));
    src: Name(|it| Some(address(&it.tuple)));
    dst: Name(|it| Some(address(&it.tuple.reversed())));
    src_port: Int(|it| port(&it.tuple));
    dst_port: Int(|it| port(&it.tuple.reversed()));
    protocol: Int(|it| ip(&it.tuple).then(|| it.tuple.protocol.into()));
    ethertype: Int(|it| Some(it.ethertype));
    vlan: Int(|it| vlan(it.vlans[0]));
    vlan2: Int(|it| vlan(it.vlans[1]));
    vni: Long(|it| it.network.map(u64::from));
    outer_src: Name(|it| it.outer.as_ref().map(address));
    outer_dst: Name(|it| it.outer.map(|outer| address(&outer.reversed())));
    outer_protocol: Int(|it| it.outer.map(|o| o.protocol.into()));
    outer_src_port: Int(|it| it.outer.as_ref().and_then(port));
    outer_dst_port: Int(|it| it.outer.and_then(|o| port(&o.reversed())));
    frames_fwd: Long(|it| Some(it.ways[0].frames));
    frames_rev: Long(|it| Some(it.ways[1].frames));
    bytes_fwd: Long(|it| Some(it.ways[0].bytes));
    bytes_rev: Long(|it| Some(it.ways[1].bytes));
    tcp_flags_fwd: Int(|it| it.tcp_flags.map(|f| f[0].into()));
    tcp_flags_rev: Int(|it| it.tcp_flags.map(|f| f[1].into()));
    queue: Int(|it| Some(it.queue));
    ended_by: Text(|it| Some(it.end.to_string()));
    community_id: Name(|it| it.tuple.community_id(it.icmp));
}

/// A time of the way back, which not every flow has.
fn back(record: &FlowRecord, ns: u64) -> Option<u64> {
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

fn port(tuple: &FiveTuple) -> Option<u16> {
    let has = ip(tuple)
        && matches!(
            tuple.protocol,
            protocol::TCP | protocol::UDP | protocol::SCTP
        );
    has.then_some(tuple.src_port)
}

fn vlan(id: u16) -> Option<u16> {
    (id != FlowKey::UNTAGGED).then_some(id)
}
