//! Columns of the flows table: names, Parquet types and values. `docs/flows.md` explains them.

use super::{
    record::FlowRecord,
    row::{Column, ParquetRow, Values, columns},
};
use std::net::IpAddr;
use wqcap_frame::{FiveTuple, FlowKey, protocol};

/// Version of the columns of flow record files, stored in their metadata. A file without a version
/// has version 1, with unsigned numbers and timestamps in nanoseconds.
pub(super) const SCHEMA_VERSION: &str = "4";

impl ParquetRow for FlowRecord {
    const TABLE: &'static str = "flows";
    const SCHEMA_VERSION: &'static str = SCHEMA_VERSION;
    const DOCS: &'static str = "/usr/share/doc/wqcap/docs/flows.md";
    const COLUMNS: &'static [Column<Self>] = COLUMNS;

    fn ns(&self) -> u64 {
        self.first_ns()
    }
}

columns! { FlowRecord;
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
    tls_sni: Name(|it| it.names.as_ref()?.tls_sni.clone());
    tls_alpn: Text(|it| it.names.as_ref()?.tls_alpn.clone());
    tls_version: Text(|it| it.names.as_ref()?.tls_version.map(version));
    ja4: Name(|it| it.names.as_ref()?.ja4.clone());
    http_method: Text(|it| it.names.as_ref()?.http_method.clone());
    http_host: Name(|it| it.names.as_ref()?.http_host.clone());
    http_status: Int(|it| it.names.as_ref()?.http_status);
    ssh_fwd: Text(|it| it.names.as_ref()?.ssh[0].clone());
    ssh_rev: Text(|it| it.names.as_ref()?.ssh[1].clone());
    port_fwd: Text(|it| it.ports[0].as_deref().map(str::to_owned));
    port_rev: Text(|it| it.ports[1].as_deref().map(str::to_owned));
}

/// Returns `ns`, a time of the flow's reverse direction, or `None` if no frame went in that
/// direction.
fn back(record: &FlowRecord, ns: u64) -> Option<u64> {
    (record.ways[1].frames > 0).then_some(ns)
}

fn ip(tuple: &FiveTuple) -> bool {
    tuple.version != 0
}

/// Formats the source address of `tuple`: an IP address, or a MAC address if the flow has no IP.
pub(super) fn address(tuple: &FiveTuple) -> String {
    let [a, b, c, d, e, f, ..] = tuple.src_bytes();
    match tuple.src() {
        Some(IpAddr::V4(ip)) => ip.to_string(),
        Some(IpAddr::V6(ip)) => ip.to_string(),
        None => mac([a, b, c, d, e, f]),
    }
}

pub(super) fn mac([a, b, c, d, e, f]: [u8; 6]) -> String {
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

pub(super) fn port(tuple: &FiveTuple) -> Option<u16> {
    let has = ip(tuple)
        && matches!(
            tuple.protocol,
            protocol::TCP | protocol::UDP | protocol::SCTP
        );
    has.then_some(tuple.src_port)
}

/// Formats a TLS version number of the protocol as text, such as `1.3`.
fn version(number: u16) -> String {
    match number {
        0x0300 => "SSL 3.0".into(),
        0x0301..=0x0304 => format!("1.{}", number - 0x0301),
        _ => format!("{number:#06x}"),
    }
}

pub(super) fn vlan(id: u16) -> Option<u16> {
    (id != FlowKey::UNTAGGED).then_some(id)
}
