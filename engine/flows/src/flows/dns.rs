//! DNS table of the flow records: one row for each question of each DNS message that was read.

use super::{
    columns::{address, port},
    row::{Column, ParquetRow, Values, columns},
};
use wqcap_frame::FiveTuple;
use wqcap_names::Question;

/// Row of the DNS table: a question of a DNS message with the message's response code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DnsRow {
    /// Time at which the DNS message was received, in nanoseconds since 1970.
    pub(super) ns: u64,
    /// Addresses and ports of sender and receiver of the DNS message.
    pub(super) ends: FiveTuple,
    /// Index of the receive queue that received the DNS message.
    pub(super) queue: u16,
    /// Identifier in the header of the DNS message.
    pub(super) id: u16,
    /// Question of the DNS message; `None`: the message had none.
    pub(super) question: Option<Question>,
    /// Response code of the DNS message; `None`: the message is a query.
    pub(super) rcode: Option<String>,
    /// Number of answer records in the DNS message.
    pub(super) answers: u16,
}

impl ParquetRow for DnsRow {
    const TABLE: &'static str = "dns";
    const SCHEMA_VERSION: &'static str = "1";
    const DOCS: &'static str = "/usr/share/doc/wqcap/docs/names.md";
    const COLUMNS: &'static [Column<Self>] = COLUMNS;

    fn ns(&self) -> u64 {
        self.ns
    }
}

columns! { DnsRow;
    time: Time(|it| Some(it.ns));
    time_ns: Long(|it| Some(it.ns));
    src: Name(|it| Some(address(&it.ends)));
    dst: Name(|it| Some(address(&it.ends.reversed())));
    src_port: Int(|it| port(&it.ends));
    dst_port: Int(|it| port(&it.ends.reversed()));
    protocol: Int(|it| Some(it.ends.protocol.into()));
    id: Int(|it| Some(it.id));
    name: Name(|it| Some(it.question.as_ref()?.name.clone()));
    type: Text(|it| Some(it.question.as_ref()?.kind.clone()));
    rcode: Text(|it| it.rcode.clone());
    answers: Int(|it| it.rcode.is_some().then_some(it.answers));
    queue: Int(|it| Some(it.queue));
    community_id: Name(|it| it.ends.community_id(None));
}
