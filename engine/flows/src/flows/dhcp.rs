//! DHCP table of the flow records: one row for each DHCP message that was read.

use super::{
    columns::{address, mac, vlan},
    row::{Column, ParquetRow, Values, columns},
};
use wqcap_frame::FiveTuple;
use wqcap_names::DhcpMessage;

/// Row of the DHCP table: one DHCP message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DhcpRow {
    /// Time at which the DHCP message was received, in nanoseconds since 1970.
    pub(super) ns: u64,
    /// Addresses and ports of sender and receiver of the DHCP message.
    pub(super) ends: FiveTuple,
    /// Outermost VLAN identifier of the DHCP message; [`wqcap_frame::FlowKey::UNTAGGED`]: none.
    pub(super) vlan: u16,
    /// Index of the receive queue that received the DHCP message.
    pub(super) queue: u16,
    pub(super) message: DhcpMessage,
}

impl ParquetRow for DhcpRow {
    const TABLE: &'static str = "dhcp";
    const SCHEMA_VERSION: &'static str = "2";
    const DOCS: &'static str = "/usr/share/doc/wqcap/docs/names.md";
    const COLUMNS: &'static [Column<Self>] = COLUMNS;

    fn ns(&self) -> u64 {
        self.ns
    }
}

columns! { DhcpRow;
    time: Time(|it| Some(it.ns));
    time_ns: Long(|it| Some(it.ns));
    src: Name(|it| Some(address(&it.ends)));
    dst: Name(|it| Some(address(&it.ends.reversed())));
    transaction: Long(|it| Some(it.message.transaction.into()));
    type: Text(|it| it.message.kind.clone());
    client: Name(|it| it.message.client.map(mac));
    host: Name(|it| it.message.host.clone());
    address: Name(|it| it.message.address.map(|it| it.to_string()));
    requested: Name(|it| it.message.requested.map(|it| it.to_string()));
    vlan: Int(|it| vlan(it.vlan));
    queue: Int(|it| Some(it.queue));
    duid: Name(|it| it.message.duid.as_deref().map(hex));
}

/// Formats a DHCP unique identifier (DUID) as DHCP servers do in their lease files.
fn hex(bytes: &[u8]) -> String {
    let bytes: Vec<_> = bytes.iter().map(|it| format!("{it:02x}")).collect();
    bytes.join(":")
}
