//! Trace of commands on standard error (the setting `debug`).
//!
//! Reads the same bytes as the command's own code, and changes nothing.

use std::fmt::Arguments;

use crate::abi::*;
use crate::process::{Errno, print_line};

use super::file::UverbsFile;
use super::request::UverbsRequest;

/// Prints a verbs command and its result on standard error.
pub fn print(file: &UverbsFile, command: Arguments<'_>, result: Result<(), Errno>) {
    let result = match result {
        Ok(()) => "ok".to_owned(),
        Err(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
    };
    print_line(format_args!(
        "{} context {}: {command} -> {result}",
        file.settings().name,
        file.context(),
    ));
}

/// Returns the sizes of the object that a verbs command creates, as ` key=value`; `None` if the
/// command creates no object with a size.
pub fn sizes(extended: bool, number: u32, request: &UverbsRequest<'_>) -> Option<String> {
    Some(match (extended, number) {
        (false, IB_USER_VERBS_CMD_REG_MR) => {
            let command: ib_uverbs_reg_mr = request.core().ok()?;
            format!(" bytes={}", command.length)
        }
        (false, IB_USER_VERBS_CMD_CREATE_CQ) => {
            let command: ib_uverbs_create_cq = request.core().ok()?;
            format!(" cqes={}", command.cqe)
        }
        (true, IB_USER_VERBS_EX_CMD_CREATE_WQ) => {
            let command: ib_uverbs_ex_create_wq = request.core().ok()?;
            format!(
                " wrs={} sges={} flags={:#x}",
                command.max_wr, command.max_sge, command.create_flags
            )
        }
        (true, IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL) => {
            let (command, _) = request
                .core_and_rest::<ib_uverbs_ex_create_rwq_ind_table>()
                .ok()?;
            format!(" entries={}", 1u64 << command.log_ind_tbl_size.min(63))
        }
        (true, IB_USER_VERBS_EX_CMD_CREATE_QP) => {
            let driver: mlx5_ib_create_qp_rss = request.driver(0).ok()?;
            format!(" fields={:#x}", driver.rx_hash_fields_mask)
        }
        (true, IB_USER_VERBS_EX_CMD_CREATE_FLOW) => {
            let (command, _) = request.core_and_rest::<ib_uverbs_create_flow>().ok()?;
            let attr = command.flow_attr;
            format!(
                " type={} priority={} specs={}",
                attr.type_, attr.priority, attr.num_of_specs
            )
        }
        _ => return None,
    })
}
