//! Commands, one module for each kind of object.

use super::file::UverbsFile;
use super::request::UverbsRequest;

pub mod ah;
pub mod context;
pub mod counters;
pub mod cq;
pub mod flow;
pub mod matcher;
pub mod memory;
pub mod modify_qp;
pub mod qp;
pub mod query;
mod raw_qp;
mod rss_qp;
pub mod srq;
pub mod wq;
