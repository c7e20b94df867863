//! Handler of `write(2)` on a device: one command per call.

use std::mem::offset_of;

use crate::abi::*;
use crate::process::{Errno, refuse_if};
use crate::settings;

use super::commands::{ah, context, cq, flow, memory, modify_qp, qp, query, srq, wq};
use super::file::UverbsFile;
use super::request::{Framing, UverbsRequest, frame_extended, frame_legacy};
use super::trace;

/// A write() command: its number, its framing, and the function that executes it.
struct UverbsCommand {
    name: &'static str,
    number: u32,
    framing: Framing,
    run: fn(&UverbsFile, &UverbsRequest<'_>) -> Result<(), Errno>,
}

impl UverbsCommand {
    /// Returns `true` if the write() command destroys an object. A dead device still allows that,
    /// so that its file can be closed.
    fn destroys(&self) -> bool {
        ["_DESTROY_", "_DEALLOC_", "_DEREG_", "_CLOSE_", "_DETACH_"]
            .iter()
            .any(|word| self.name.contains(word))
    }
}

macro_rules! command {
    // Legacy command: size of the struct, size of the response, and whether driver data may follow.
    ($number:ident, $request:ty => $response:expr, $driver:expr, $run:path) => {
        command!(@ $number, size_of::<$request>(), $response, $driver, $run)
    };
    // Extended command: the struct is required up to a field, the rest is optional.
    (ex $number:ident, $request:ident.$field:ident + $len:expr => $response:expr, $run:path) => {
        command!(@ $number, offset_of!($request, $field) + $len, $response, true, $run)
    };
    (@ $number:ident, $request:expr, $response:expr, $driver:expr, $run:path) => {
        UverbsCommand {
            name: stringify!($number),
            number: $number as u32,
            framing: Framing {
                request: $request,
                response: $response,
                driver: $driver,
            },
            run: $run,
        }
    };
}

/// Table of the write() commands in legacy framing, with the sizes of Linux 6.1's
/// `uverbs_def_write_intf`.
static LEGACY: &[UverbsCommand] = &[
    command!(IB_USER_VERBS_CMD_GET_CONTEXT, ib_uverbs_get_context => size_of::<ib_uverbs_get_context_resp>(), true, context::get),
    command!(IB_USER_VERBS_CMD_QUERY_DEVICE, ib_uverbs_query_device => size_of::<ib_uverbs_query_device_resp>(), true, query::device),
    command!(IB_USER_VERBS_CMD_QUERY_PORT, ib_uverbs_query_port => size_of::<ib_uverbs_query_port_resp>(), true, query::port),
    command!(IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, ib_uverbs_create_comp_channel => size_of::<ib_uverbs_create_comp_channel_resp>(), true, context::create_comp_channel),
    command!(IB_USER_VERBS_CMD_ALLOC_PD, ib_uverbs_alloc_pd => size_of::<ib_uverbs_alloc_pd_resp>(), true, memory::alloc_pd),
    command!(IB_USER_VERBS_CMD_DEALLOC_PD, ib_uverbs_dealloc_pd => 0, false, memory::dealloc_pd),
    command!(IB_USER_VERBS_CMD_REG_MR, ib_uverbs_reg_mr => size_of::<ib_uverbs_reg_mr_resp>(), true, memory::reg_mr),
    command!(IB_USER_VERBS_CMD_REREG_MR, ib_uverbs_rereg_mr => size_of::<ib_uverbs_rereg_mr_resp>(), true, memory::rereg_mr),
    command!(IB_USER_VERBS_CMD_DEREG_MR, ib_uverbs_dereg_mr => 0, false, memory::dereg_mr),
    command!(IB_USER_VERBS_CMD_ALLOC_MW, ib_uverbs_alloc_mw => size_of::<ib_uverbs_alloc_mw_resp>(), true, memory::alloc_mw),
    command!(IB_USER_VERBS_CMD_DEALLOC_MW, ib_uverbs_dealloc_mw => 0, false, memory::dealloc_mw),
    command!(IB_USER_VERBS_CMD_OPEN_XRCD, ib_uverbs_open_xrcd => size_of::<ib_uverbs_open_xrcd_resp>(), true, memory::no_xrcd),
    command!(IB_USER_VERBS_CMD_CLOSE_XRCD, ib_uverbs_close_xrcd => 0, false, memory::no_xrcd),
    command!(IB_USER_VERBS_CMD_CREATE_AH, ib_uverbs_create_ah => size_of::<ib_uverbs_create_ah_resp>(), true, ah::create),
    command!(IB_USER_VERBS_CMD_DESTROY_AH, ib_uverbs_destroy_ah => 0, false, ah::destroy),
    command!(IB_USER_VERBS_CMD_CREATE_CQ, ib_uverbs_create_cq => size_of::<ib_uverbs_create_cq_resp>(), true, cq::create),
    command!(IB_USER_VERBS_CMD_RESIZE_CQ, ib_uverbs_resize_cq => offset_of!(ib_uverbs_resize_cq_resp, reserved), true, cq::resize),
    command!(IB_USER_VERBS_CMD_DESTROY_CQ, ib_uverbs_destroy_cq => size_of::<ib_uverbs_destroy_cq_resp>(), true, cq::destroy),
    command!(IB_USER_VERBS_CMD_CREATE_QP, ib_uverbs_create_qp => size_of::<ib_uverbs_create_qp_resp>(), true, qp::create),
    command!(IB_USER_VERBS_CMD_QUERY_QP, ib_uverbs_query_qp => size_of::<ib_uverbs_query_qp_resp>(), true, qp::query),
    command!(IB_USER_VERBS_CMD_MODIFY_QP, ib_uverbs_modify_qp => 0, false, modify_qp::modify),
    command!(IB_USER_VERBS_CMD_DESTROY_QP, ib_uverbs_destroy_qp => size_of::<ib_uverbs_destroy_qp_resp>(), true, qp::destroy),
    command!(IB_USER_VERBS_CMD_ATTACH_MCAST, ib_uverbs_attach_mcast => 0, false, qp::attach_mcast),
    command!(IB_USER_VERBS_CMD_DETACH_MCAST, ib_uverbs_attach_mcast => 0, false, qp::detach_mcast),
    command!(IB_USER_VERBS_CMD_CREATE_SRQ, ib_uverbs_create_srq => size_of::<ib_uverbs_create_srq_resp>(), true, srq::create),
    command!(IB_USER_VERBS_CMD_MODIFY_SRQ, ib_uverbs_modify_srq => 0, false, srq::modify),
    command!(IB_USER_VERBS_CMD_QUERY_SRQ, ib_uverbs_query_srq => size_of::<ib_uverbs_query_srq_resp>(), true, srq::query),
    command!(IB_USER_VERBS_CMD_DESTROY_SRQ, ib_uverbs_destroy_srq => size_of::<ib_uverbs_destroy_srq_resp>(), true, srq::destroy),
];

/// Table of the write() commands in extended framing, with their minimum sizes.
static EXTENDED: &[UverbsCommand] = &[
    command!(ex IB_USER_VERBS_EX_CMD_QUERY_DEVICE, ib_uverbs_ex_query_device.reserved + 4 => RESPONSE_LENGTH_OF_QUERY, query::device_ex),
    command!(ex IB_USER_VERBS_EX_CMD_CREATE_CQ, ib_uverbs_ex_create_cq.reserved + 4 => size_of::<ib_uverbs_ex_create_cq_resp>(), cq::create_ex),
    command!(ex IB_USER_VERBS_EX_CMD_MODIFY_CQ, ib_uverbs_ex_modify_cq.reserved + 4 => 0, cq::modify_ex),
    command!(ex IB_USER_VERBS_EX_CMD_CREATE_QP, ib_uverbs_ex_create_qp.comp_mask + 4 => size_of::<ib_uverbs_ex_create_qp_resp>(), qp::create_ex),
    command!(ex IB_USER_VERBS_EX_CMD_MODIFY_QP, ib_uverbs_ex_modify_qp.rate_limit + 0 => size_of::<ib_uverbs_ex_modify_qp_resp>(), modify_qp::modify_ex),
    command!(ex IB_USER_VERBS_EX_CMD_CREATE_FLOW, ib_uverbs_create_flow.flow_attr + size_of::<ib_uverbs_flow_attr>() => size_of::<ib_uverbs_create_flow_resp>(), flow::create),
    command!(ex IB_USER_VERBS_EX_CMD_DESTROY_FLOW, ib_uverbs_destroy_flow.flow_handle + 4 => 0, flow::destroy),
    command!(ex IB_USER_VERBS_EX_CMD_CREATE_WQ, ib_uverbs_ex_create_wq.max_sge + 4 => size_of::<ib_uverbs_ex_create_wq_resp>(), wq::create),
    command!(ex IB_USER_VERBS_EX_CMD_MODIFY_WQ, ib_uverbs_ex_modify_wq.curr_wq_state + 4 => 0, wq::modify),
    command!(ex IB_USER_VERBS_EX_CMD_DESTROY_WQ, ib_uverbs_ex_destroy_wq.wq_handle + 4 => size_of::<ib_uverbs_ex_destroy_wq_resp>(), wq::destroy),
    command!(ex IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL, ib_uverbs_ex_create_rwq_ind_table.log_ind_tbl_size + 4 => size_of::<ib_uverbs_ex_create_rwq_ind_table_resp>(), wq::create_table),
    command!(ex IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL, ib_uverbs_ex_destroy_rwq_ind_table.ind_tbl_handle + 4 => 0, wq::destroy_table),
];

/// Size in bytes of the response of EX_QUERY_DEVICE up to the end of `response_length`.
const RESPONSE_LENGTH_OF_QUERY: usize = offset_of!(ib_uverbs_ex_query_device_resp, odp_caps);

/// Executes one write() command with the kernel's checks and results. Returns the number of bytes
/// consumed, which is always the number of bytes written.
pub fn write(file: &UverbsFile, bytes: &[u8]) -> Result<usize, Errno> {
    let header: ib_uverbs_cmd_hdr = read_from(bytes).ok_or(libc::EINVAL)?;
    let command = find(header.command)?;
    let extended = header.command & IB_USER_VERBS_CMD_FLAG_EXTENDED != 0;
    let debug = settings::global().debug;
    let mut sizes = String::new();
    let result = (|| {
        let request = if extended {
            frame_extended(&header, bytes, &command.framing)?
        } else {
            frame_legacy(&header, bytes, &command.framing)?
        };
        if debug {
            sizes = trace::sizes(extended, command.number, &request).unwrap_or_default();
        }
        if !file.has_context() && command.number != IB_USER_VERBS_CMD_GET_CONTEXT {
            return Err(libc::EINVAL);
        }
        file.check_alive(command.destroys())?;
        (command.run)(file, &request)
    })();
    if debug {
        let prefix = if extended { "extended " } else { "" };
        trace::print(
            file,
            format_args!("{prefix}{}{sizes}", command.name),
            result,
        );
    }
    result.map(|()| bytes.len())
}

fn find(code: u32) -> Result<&'static UverbsCommand, Errno> {
    let flags = IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_CMD_COMMAND_MASK;
    refuse_if(code & !flags != 0, libc::EINVAL)?;
    let commands = if code & IB_USER_VERBS_CMD_FLAG_EXTENDED != 0 {
        EXTENDED
    } else {
        LEGACY
    };
    let number = code & IB_USER_VERBS_CMD_COMMAND_MASK;
    commands
        .iter()
        .find(|command| command.number == number)
        .ok_or(libc::EOPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn legacy(command: u32, in_words: u16, out_words: u16, len: usize) -> Vec<u8> {
        let header = ib_uverbs_cmd_hdr {
            command,
            in_words,
            out_words,
        };
        let mut bytes = bytes_of(&header).to_vec();
        bytes.resize(len, 0);
        bytes
    }

    fn check(bytes: &[u8]) -> Result<(usize, usize, usize, usize), Errno> {
        let header: ib_uverbs_cmd_hdr = read_from(bytes).unwrap();
        let framing = &find(header.command)?.framing;
        let request = if header.command & IB_USER_VERBS_CMD_FLAG_EXTENDED != 0 {
            frame_extended(&header, bytes, framing)?
        } else {
            frame_legacy(&header, bytes, framing)?
        };
        Ok(request.sizes())
    }

    #[test]
    fn legacy_sizes_equal_the_kernels() {
        let create_cq = IB_USER_VERBS_CMD_CREATE_CQ;
        assert_eq!(check(&legacy(create_cq, 18, 4, 72)), Ok((32, 32, 8, 8)));
        assert_eq!(check(&legacy(create_cq, 18, 4, 76)), Err(libc::EINVAL));
        assert_eq!(check(&legacy(create_cq, 9, 4, 36)), Err(libc::ENOSPC));
        assert_eq!(check(&legacy(create_cq, 18, 1, 72)), Err(libc::ENOSPC));
        assert_eq!(
            check(&legacy(IB_USER_VERBS_CMD_DESTROY_CQ, 4, 2, 16)),
            Ok((8, 0, 8, 0))
        );
        assert_eq!(
            check(&legacy(IB_USER_VERBS_CMD_DEALLOC_PD, 3, 0, 12)),
            Ok((4, 0, 0, 0))
        );
        assert_eq!(check(&legacy(200, 2, 0, 8)), Err(libc::EOPNOTSUPP));
        assert_eq!(check(&legacy(0x100, 2, 0, 8)), Err(libc::EINVAL));
    }

    #[test]
    fn extended_sizes_equal_the_kernels() {
        let ex = |in_words, out_words, provider: [u16; 2], response: u64, reserved: u32, len| {
            let command = IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_DESTROY_WQ;
            let mut bytes = legacy(command, in_words, out_words, 8);
            bytes.extend(bytes_of(&ib_uverbs_ex_cmd_hdr {
                response,
                provider_in_words: provider[0],
                provider_out_words: provider[1],
                cmd_hdr_reserved: reserved,
            }));
            bytes.resize(len, 0);
            check(&bytes)
        };
        assert_eq!(ex(1, 2, [0, 0], 64, 0, 32), Ok((8, 0, 16, 0)));
        assert_eq!(ex(1, 2, [2, 1], 64, 0, 48), Ok((8, 16, 16, 8)));
        assert_eq!(
            ex(1, 2, [0, 0], 64, 0, 40),
            Err(libc::EINVAL),
            "wrong length"
        );
        assert_eq!(
            ex(0, 2, [0, 0], 64, 0, 24),
            Err(libc::ENOSPC),
            "the request is too short"
        );
        assert_eq!(
            ex(1, 1, [0, 0], 64, 0, 32),
            Err(libc::ENOSPC),
            "the response buffer is too short"
        );
        assert_eq!(
            ex(1, 2, [0, 0], 0, 0, 32),
            Err(libc::EINVAL),
            "the response has no address"
        );
        assert_eq!(
            ex(1, 0, [0, 0], 64, 0, 32),
            Err(libc::EINVAL),
            "the response has no room"
        );
        assert_eq!(
            ex(1, 2, [0, 0], 64, 1, 32),
            Err(libc::EINVAL),
            "a reserved field is set"
        );
    }
}
