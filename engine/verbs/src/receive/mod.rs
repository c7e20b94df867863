//! Reception of raw frames: work queues, indirection tables over them, QPs that hash, QPs with
//! their own receive queue, and flow rules that steer frames to QPs.

mod flow;
mod qp;
mod raw_qp;
mod rss_qp;
mod rwq_table;
mod wq;

pub use flow::{Flow, FlowKind, FlowRule, FlowSpec, Inner, Masked};
pub use raw_qp::{RawQp, RawQpAttr, RawQpHandle};
pub use rss_qp::RssQp;
pub use rwq_table::RwqTable;
pub use wq::{
    CVLAN_STRIPPING, DELAY_DROP, PCI_WRITE_END_PADDING, SCATTER_FCS, Striding, Wq, WqAttr,
    WqHandle, WqState,
};
