//! The kernel's write() interface: from bytes to a typed command, and back; and beside it, in `ioctl`,
//! the methods that it has no commands for.
//!
//! May import everything. Each family of commands has its file below. Invariants: a command is checked
//! as the kernel checks it (`ib_uverbs_write`) before anything happens; structs are read whole, whatever
//! their alignment, and zero-extended when a program knows a shorter one; a response never exceeds the
//! room that the command offers.

mod context;
mod counters;
mod cq;
mod flow;
mod ioctl;
mod matcher;
mod memory;
mod qp;
mod srq;
mod trace;
mod wq;

use std::io::Write;
use std::mem::size_of;

use crate::abi::*;
use crate::device::memory::{Plain, bytes_of, copy_to_user, read_from, read_prefix};
use crate::device::nic::Session;
use crate::process::Errno;
use crate::settings::Settings;

pub use ioctl::ioctl;

/// A command whose framing has been checked.
pub struct Request<'b> {
    /// The kernel's part.
    core: &'b [u8],
    /// The driver's part.
    driver: &'b [u8],
    /// Where the kernel's part of the response goes, and the driver's.
    response: u64,
    response_len: usize,
    driver_response: u64,
    driver_response_len: usize,
}

impl Request<'_> {
    /// The command struct.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it is longer than what is known of it, and says something there.
    pub fn core<T: Plain>(&self) -> Result<T, Errno> {
        if self.core.iter().skip(size_of::<T>()).any(|&byte| byte != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        Ok(read_prefix(self.core))
    }

    /// The command struct, and what follows it.
    ///
    /// # Errors
    /// `ENOSPC` if it is cut short.
    pub fn core_and_rest<T: Plain>(&self) -> Result<(T, &[u8]), Errno> {
        let core = read_from(self.core).ok_or(libc::ENOSPC)?;
        Ok((core, self.core.get(size_of::<T>()..).unwrap_or(&[])))
    }

    /// The driver's struct, of which at least `least` bytes have to be there.
    ///
    /// # Errors
    /// `EINVAL` if they are not, `EOPNOTSUPP` if there is more than is known, and it says something.
    pub fn driver<T: Plain>(&self, least: usize) -> Result<T, Errno> {
        if self.driver.len() < least {
            return Err(libc::EINVAL);
        }
        if self
            .driver
            .iter()
            .skip(size_of::<T>())
            .any(|&byte| byte != 0)
        {
            return Err(libc::EOPNOTSUPP);
        }
        Ok(read_prefix(self.driver))
    }

    /// How much of a response struct there is room for (`response_length`).
    pub fn room<T: Plain>(&self) -> u32 {
        self.response_len.min(size_of::<T>()) as u32
    }

    /// The same for the driver's.
    pub fn driver_room<T: Plain>(&self) -> u32 {
        self.driver_response_len.min(size_of::<T>()) as u32
    }

    /// Answers with a response struct.
    ///
    /// # Errors
    /// `EFAULT` if it cannot be written.
    pub fn reply<T: Plain>(&self, response: &T) -> Result<(), Errno> {
        answer(self.response, self.response_len, bytes_of(response))
    }

    /// Answers the driver's part.
    ///
    /// # Errors
    /// As [`Request::reply`].
    pub fn reply_driver<T: Plain>(&self, response: &T) -> Result<(), Errno> {
        answer(
            self.driver_response,
            self.driver_response_len,
            bytes_of(response),
        )
    }
}

fn answer(at: u64, room: usize, bytes: &[u8]) -> Result<(), Errno> {
    if at == 0 {
        return Ok(());
    }
    copy_to_user(at, &bytes[..bytes.len().min(room)])
}

/// A command: its number, what it must bring and have room for, and what it does.
struct Method {
    name: &'static str,
    number: u32,
    request: usize,
    response: usize,
    /// Whether driver data may follow the struct; in legacy commands also whether the struct begins
    /// with the response's address.
    driver: bool,
    run: fn(&Session, &Request<'_>) -> Result<(), Errno>,
}

impl Method {
    /// Whether it gives something back: a dead device still does that, or nothing could be closed.
    fn takes_leave(&self) -> bool {
        ["_DESTROY_", "_DEALLOC_", "_DEREG_", "_CLOSE_", "_DETACH_"]
            .iter()
            .any(|word| self.name.contains(word))
    }
}

macro_rules! method {
    ($number:ident, $request:ty => $response:expr, $driver:expr, $run:path) => {
        Method {
            name: stringify!($number),
            number: $number as u32,
            request: size_of::<$request>(),
            response: $response,
            driver: $driver,
            run: $run,
        }
    };
    // Extended: what has to be there is less than what is known.
    (ex $number:ident, $request:ident.$field:ident + $len:expr => $response:expr, $run:path) => {
        Method {
            name: stringify!($number),
            number: $number as u32,
            request: std::mem::offset_of!($request, $field) + $len,
            response: $response,
            driver: true,
            run: $run,
        }
    };
}

/// Commands in legacy framing, with the sizes of Linux 6.1's `uverbs_def_write_intf`.
static LEGACY: &[Method] = &[
    method!(IB_USER_VERBS_CMD_GET_CONTEXT, ib_uverbs_get_context => size_of::<ib_uverbs_get_context_resp>(), true, context::get),
    method!(IB_USER_VERBS_CMD_QUERY_DEVICE, ib_uverbs_query_device => size_of::<ib_uverbs_query_device_resp>(), true, context::query_device),
    method!(IB_USER_VERBS_CMD_QUERY_PORT, ib_uverbs_query_port => size_of::<ib_uverbs_query_port_resp>(), true, context::query_port),
    method!(IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, ib_uverbs_create_comp_channel => size_of::<ib_uverbs_create_comp_channel_resp>(), true, context::create_comp_channel),
    method!(IB_USER_VERBS_CMD_ALLOC_PD, ib_uverbs_alloc_pd => size_of::<ib_uverbs_alloc_pd_resp>(), true, memory::alloc_pd),
    method!(IB_USER_VERBS_CMD_DEALLOC_PD, ib_uverbs_dealloc_pd => 0, false, memory::dealloc_pd),
    method!(IB_USER_VERBS_CMD_REG_MR, ib_uverbs_reg_mr => size_of::<ib_uverbs_reg_mr_resp>(), true, memory::reg_mr),
    method!(IB_USER_VERBS_CMD_REREG_MR, ib_uverbs_rereg_mr => size_of::<ib_uverbs_rereg_mr_resp>(), true, memory::rereg_mr),
    method!(IB_USER_VERBS_CMD_DEREG_MR, ib_uverbs_dereg_mr => 0, false, memory::dereg_mr),
    method!(IB_USER_VERBS_CMD_ALLOC_MW, ib_uverbs_alloc_mw => size_of::<ib_uverbs_alloc_mw_resp>(), true, memory::alloc_mw),
    method!(IB_USER_VERBS_CMD_DEALLOC_MW, ib_uverbs_dealloc_mw => 0, false, memory::dealloc_mw),
    method!(IB_USER_VERBS_CMD_OPEN_XRCD, ib_uverbs_open_xrcd => size_of::<ib_uverbs_open_xrcd_resp>(), true, memory::no_xrcd),
    method!(IB_USER_VERBS_CMD_CLOSE_XRCD, ib_uverbs_close_xrcd => 0, false, memory::no_xrcd),
    method!(IB_USER_VERBS_CMD_CREATE_AH, ib_uverbs_create_ah => size_of::<ib_uverbs_create_ah_resp>(), true, memory::create_ah),
    method!(IB_USER_VERBS_CMD_DESTROY_AH, ib_uverbs_destroy_ah => 0, false, memory::destroy_ah),
    method!(IB_USER_VERBS_CMD_CREATE_CQ, ib_uverbs_create_cq => size_of::<ib_uverbs_create_cq_resp>(), true, cq::create),
    method!(IB_USER_VERBS_CMD_RESIZE_CQ, ib_uverbs_resize_cq => std::mem::offset_of!(ib_uverbs_resize_cq_resp, reserved), true, cq::resize),
    method!(IB_USER_VERBS_CMD_DESTROY_CQ, ib_uverbs_destroy_cq => size_of::<ib_uverbs_destroy_cq_resp>(), true, cq::destroy),
    method!(IB_USER_VERBS_CMD_CREATE_QP, ib_uverbs_create_qp => size_of::<ib_uverbs_create_qp_resp>(), true, qp::create),
    method!(IB_USER_VERBS_CMD_QUERY_QP, ib_uverbs_query_qp => size_of::<ib_uverbs_query_qp_resp>(), true, qp::query),
    method!(IB_USER_VERBS_CMD_MODIFY_QP, ib_uverbs_modify_qp => 0, false, qp::modify),
    method!(IB_USER_VERBS_CMD_DESTROY_QP, ib_uverbs_destroy_qp => size_of::<ib_uverbs_destroy_qp_resp>(), true, qp::destroy),
    method!(IB_USER_VERBS_CMD_ATTACH_MCAST, ib_uverbs_attach_mcast => 0, false, qp::attach_mcast),
    method!(IB_USER_VERBS_CMD_DETACH_MCAST, ib_uverbs_attach_mcast => 0, false, qp::detach_mcast),
    method!(IB_USER_VERBS_CMD_CREATE_SRQ, ib_uverbs_create_srq => size_of::<ib_uverbs_create_srq_resp>(), true, srq::create),
    method!(IB_USER_VERBS_CMD_MODIFY_SRQ, ib_uverbs_modify_srq => 0, false, srq::modify),
    method!(IB_USER_VERBS_CMD_QUERY_SRQ, ib_uverbs_query_srq => size_of::<ib_uverbs_query_srq_resp>(), true, srq::query),
    method!(IB_USER_VERBS_CMD_DESTROY_SRQ, ib_uverbs_destroy_srq => size_of::<ib_uverbs_destroy_srq_resp>(), true, srq::destroy),
];

/// Commands in extended framing.
static EXTENDED: &[Method] = &[
    method!(ex IB_USER_VERBS_EX_CMD_QUERY_DEVICE, ib_uverbs_ex_query_device.reserved + 4 => RESPONSE_LENGTH_OF_QUERY, context::query_device_ex),
    method!(ex IB_USER_VERBS_EX_CMD_CREATE_CQ, ib_uverbs_ex_create_cq.reserved + 4 => size_of::<ib_uverbs_ex_create_cq_resp>(), cq::create_ex),
    method!(ex IB_USER_VERBS_EX_CMD_MODIFY_CQ, ib_uverbs_ex_modify_cq.reserved + 4 => 0, cq::modify_ex),
    method!(ex IB_USER_VERBS_EX_CMD_CREATE_QP, ib_uverbs_ex_create_qp.comp_mask + 4 => size_of::<ib_uverbs_ex_create_qp_resp>(), qp::create_ex),
    method!(ex IB_USER_VERBS_EX_CMD_MODIFY_QP, ib_uverbs_ex_modify_qp.rate_limit + 0 => size_of::<ib_uverbs_ex_modify_qp_resp>(), qp::modify_ex),
    method!(ex IB_USER_VERBS_EX_CMD_CREATE_FLOW, ib_uverbs_create_flow.flow_attr + size_of::<ib_uverbs_flow_attr>() => size_of::<ib_uverbs_create_flow_resp>(), flow::create),
    method!(ex IB_USER_VERBS_EX_CMD_DESTROY_FLOW, ib_uverbs_destroy_flow.flow_handle + 4 => 0, flow::destroy),
    method!(ex IB_USER_VERBS_EX_CMD_CREATE_WQ, ib_uverbs_ex_create_wq.max_sge + 4 => size_of::<ib_uverbs_ex_create_wq_resp>(), wq::create),
    method!(ex IB_USER_VERBS_EX_CMD_MODIFY_WQ, ib_uverbs_ex_modify_wq.curr_wq_state + 4 => 0, wq::modify),
    method!(ex IB_USER_VERBS_EX_CMD_DESTROY_WQ, ib_uverbs_ex_destroy_wq.wq_handle + 4 => size_of::<ib_uverbs_ex_destroy_wq_resp>(), wq::destroy),
    method!(ex IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL, ib_uverbs_ex_create_rwq_ind_table.log_ind_tbl_size + 4 => size_of::<ib_uverbs_ex_create_rwq_ind_table_resp>(), wq::create_table),
    method!(ex IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL, ib_uverbs_ex_destroy_rwq_ind_table.ind_tbl_handle + 4 => 0, wq::destroy_table),
];

/// Up to `response_length`.
const RESPONSE_LENGTH_OF_QUERY: usize =
    std::mem::offset_of!(ib_uverbs_ex_query_device_resp, odp_caps);
/// rdma-core 18 and 19 sent DESTROY_CQ so short; the kernel forgives them.
const SHORT_DESTROY_CQ: usize = 16;

/// `write(2)` on a device: one command.
///
/// # Errors
/// As the kernel.
pub fn write(session: &Session, bytes: &[u8]) -> Result<usize, Errno> {
    let header: ib_uverbs_cmd_hdr = read_from(bytes).ok_or(libc::EINVAL)?;
    let method = find(header.command)?;
    let extended = header.command & IB_USER_VERBS_CMD_FLAG_EXTENDED != 0;
    let debug = Settings::global().debug;
    let mut details = String::new();
    let result = (|| {
        let request = if extended {
            frame_extended(&header, bytes, method)?
        } else {
            frame_legacy(&header, bytes, method)?
        };
        if debug {
            details = trace::details(extended, method.number, &request);
        }
        if !session.is_ready() && method.number != IB_USER_VERBS_CMD_GET_CONTEXT {
            return Err(libc::EINVAL);
        }
        session.admit(method.takes_leave())?;
        (method.run)(session, &request)
    })();
    if debug {
        tell(session, method, extended, &details, result);
    }
    result.map(|()| bytes.len())
}

fn find(command: u32) -> Result<&'static Method, Errno> {
    let flags = IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_CMD_COMMAND_MASK;
    if command & !flags != 0 {
        return Err(libc::EINVAL);
    }
    let methods = if command & IB_USER_VERBS_CMD_FLAG_EXTENDED != 0 {
        EXTENDED
    } else {
        LEGACY
    };
    let number = command & IB_USER_VERBS_CMD_COMMAND_MASK;
    methods
        .iter()
        .find(|method| method.number == number)
        .ok_or(libc::EOPNOTSUPP)
}

fn tell(
    session: &Session,
    method: &Method,
    extended: bool,
    details: &str,
    result: Result<(), Errno>,
) {
    let result = match result {
        Ok(()) => "ok".to_owned(),
        Err(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
    };
    let _ = writeln!(
        std::io::stderr(),
        "mlx5-model: {} context {}: {}{}{details} -> {result}",
        session.device().settings().name,
        session.context(),
        if extended { "extended " } else { "" },
        method.name,
    );
}

/// `verify_hdr`, legacy half: sizes in 4-byte words, header included.
fn frame_legacy<'b>(
    header: &ib_uverbs_cmd_hdr,
    bytes: &'b [u8],
    method: &Method,
) -> Result<Request<'b>, Errno> {
    let core = &bytes[size_of::<ib_uverbs_cmd_hdr>()..];
    if usize::from(header.in_words) * 4 != bytes.len() {
        return Err(libc::EINVAL);
    }
    let forgiven = method.number == IB_USER_VERBS_CMD_DESTROY_CQ && bytes.len() == SHORT_DESTROY_CQ;
    let room = usize::from(header.out_words) * 4;
    if core.len() < method.request && !forgiven || room < method.response {
        return Err(libc::ENOSPC);
    }
    let (core, driver) = match core.split_at_checked(method.request) {
        Some(split) if method.driver => split,
        _ => (core, &[][..]),
    };
    let response = if method.response > 0 {
        read_u64(core)
    } else {
        0
    };
    Ok(Request {
        core,
        driver,
        response,
        response_len: method.response,
        driver_response: if response == 0 {
            0
        } else {
            response.wrapping_add(method.response as u64)
        },
        driver_response_len: room - method.response,
    })
}

/// `verify_hdr`, extended half: sizes in 8-byte words, headers excluded.
fn frame_extended<'b>(
    header: &ib_uverbs_cmd_hdr,
    bytes: &'b [u8],
    method: &Method,
) -> Result<Request<'b>, Errno> {
    let rest = &bytes[size_of::<ib_uverbs_cmd_hdr>()..];
    let extended: ib_uverbs_ex_cmd_hdr = read_from(rest).ok_or(libc::EINVAL)?;
    let body = &rest[size_of::<ib_uverbs_ex_cmd_hdr>()..];
    let core_len = usize::from(header.in_words) * 8;
    if core_len + usize::from(extended.provider_in_words) * 8 != body.len() {
        return Err(libc::EINVAL);
    }
    if core_len < method.request {
        return Err(libc::ENOSPC);
    }
    let room = usize::from(header.out_words) * 8;
    let driver_room = usize::from(extended.provider_out_words) * 8;
    if extended.cmd_hdr_reserved != 0 || (extended.response == 0) != (room + driver_room == 0) {
        return Err(libc::EINVAL);
    }
    if extended.response != 0 && room < method.response {
        return Err(libc::ENOSPC);
    }
    let (core, driver) = body.split_at(core_len);
    Ok(Request {
        core,
        driver,
        response: extended.response,
        response_len: room,
        driver_response: if extended.response == 0 {
            0
        } else {
            extended.response.wrapping_add(room as u64)
        },
        driver_response_len: driver_room,
    })
}

fn read_u64(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk::<8>()
        .map_or(0, |chunk| u64::from_ne_bytes(*chunk))
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
        let method = find(header.command)?;
        let request = if header.command & IB_USER_VERBS_CMD_FLAG_EXTENDED != 0 {
            frame_extended(&header, bytes, method)?
        } else {
            frame_legacy(&header, bytes, method)?
        };
        Ok((
            request.core.len(),
            request.driver.len(),
            request.response_len,
            request.driver_response_len,
        ))
    }

    #[test]
    fn legacy_sizes_are_the_kernels() {
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
    fn extended_sizes_are_the_kernels() {
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
        assert_eq!(ex(1, 2, [0, 0], 64, 0, 40), Err(libc::EINVAL), "length");
        assert_eq!(ex(0, 2, [0, 0], 64, 0, 24), Err(libc::ENOSPC), "request");
        assert_eq!(ex(1, 1, [0, 0], 64, 0, 32), Err(libc::ENOSPC), "response");
        assert_eq!(ex(1, 2, [0, 0], 0, 0, 32), Err(libc::EINVAL), "no address");
        assert_eq!(ex(1, 0, [0, 0], 64, 0, 32), Err(libc::EINVAL), "no room");
        assert_eq!(ex(1, 2, [0, 0], 64, 1, 32), Err(libc::EINVAL), "reserved");
    }

    #[test]
    fn what_is_not_known_must_be_zero() {
        let mut bytes = [0u8; 40];
        let core = |bytes: &[u8]| {
            let request = Request {
                core: bytes,
                driver: &[],
                response: 0,
                response_len: 0,
                driver_response: 0,
                driver_response_len: 0,
            };
            request
                .core::<ib_uverbs_ex_destroy_wq>()
                .map(|command| command.wq_handle)
        };
        bytes[4] = 7;
        assert_eq!(core(&bytes), Ok(7));
        bytes[39] = 1;
        assert_eq!(core(&bytes), Err(libc::EOPNOTSUPP));
    }
}
