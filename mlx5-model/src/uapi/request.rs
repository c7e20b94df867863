//! The framing of commands by write(): from bytes to typed structs, and back.
//!
//! Imports `abi` and `process`.

use crate::abi::*;
use crate::process::memory::copy_to_user;
use crate::process::{Errno, refuse_if};

/// rdma-core 18 and 19 sent DESTROY_CQ this short; the kernel tolerates it.
const SHORT_DESTROY_CQ: usize = 16;

/// The sizes that a command has to have.
pub struct Framing {
    /// The least size of its struct.
    pub request: usize,
    /// The least room for the response.
    pub response: usize,
    /// Whether driver data may follow the struct.
    pub driver: bool,
}

/// A command with checked framing.
pub struct UverbsRequest<'b> {
    /// The kernel's struct, and what follows it.
    core: &'b [u8],
    /// The driver's data.
    driver: &'b [u8],
    /// Where the kernel's part of the response goes, and the driver's.
    response: u64,
    response_len: usize,
    driver_response: u64,
    driver_response_len: usize,
}

impl UverbsRequest<'_> {
    /// The command struct. Fails with `EOPNOTSUPP` if it is longer than the known one and not zero there.
    pub fn core<T: Plain>(&self) -> Result<T, Errno> {
        read_whole(self.core)
    }

    /// The command struct, and what follows it. Fails with `ENOSPC` if it is too short.
    pub fn core_and_rest<T: Plain>(&self) -> Result<(T, &[u8]), Errno> {
        let core = read_from(self.core).ok_or(libc::ENOSPC)?;
        Ok((core, self.core.get(size_of::<T>()..).unwrap_or(&[])))
    }

    /// The driver's data.
    pub fn driver_bytes(&self) -> &[u8] {
        self.driver
    }

    /// The driver's struct. Fails with `EINVAL` if it has less than `min` bytes, with `EOPNOTSUPP` if it is longer
    /// than the known one and not zero there.
    pub fn driver<T: Plain>(&self, min: usize) -> Result<T, Errno> {
        refuse_if(self.driver.len() < min, libc::EINVAL)?;
        read_whole(self.driver)
    }

    /// The room for a response struct (`response_length`).
    pub fn room<T: Plain>(&self) -> u32 {
        self.response_len.min(size_of::<T>()) as u32
    }

    /// The room for the driver's response struct.
    pub fn driver_room<T: Plain>(&self) -> u32 {
        self.driver_response_len.min(size_of::<T>()) as u32
    }

    /// Writes the response. Fails with `EFAULT` if that is not possible.
    pub fn reply<T: Plain>(&self, response: &T) -> Result<(), Errno> {
        write_response(self.response, self.response_len, bytes_of(response))
    }

    /// Writes the driver's response. Fails as [`UverbsRequest::reply`] does.
    pub fn reply_driver<T: Plain>(&self, response: &T) -> Result<(), Errno> {
        write_response(
            self.driver_response,
            self.driver_response_len,
            bytes_of(response),
        )
    }
}

/// The struct in `bytes`, zero-extended; beyond it there may only be zeroes.
fn read_whole<T: Plain>(bytes: &[u8]) -> Result<T, Errno> {
    if bytes.iter().skip(size_of::<T>()).any(|&byte| byte != 0) {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(read_prefix(bytes))
}

fn write_response(at: u64, room: usize, bytes: &[u8]) -> Result<(), Errno> {
    if at == 0 {
        return Ok(());
    }
    copy_to_user(at, &bytes[..bytes.len().min(room)])
}

/// `verify_hdr`, for legacy commands: sizes in 4-byte words, header included.
pub fn frame_legacy<'b>(
    header: &ib_uverbs_cmd_hdr,
    bytes: &'b [u8],
    framing: &Framing,
) -> Result<UverbsRequest<'b>, Errno> {
    let core = &bytes[size_of::<ib_uverbs_cmd_hdr>()..];
    if usize::from(header.in_words) * 4 != bytes.len() {
        return Err(libc::EINVAL);
    }
    let tolerated =
        header.command == IB_USER_VERBS_CMD_DESTROY_CQ && bytes.len() == SHORT_DESTROY_CQ;
    let room = usize::from(header.out_words) * 4;
    if core.len() < framing.request && !tolerated || room < framing.response {
        return Err(libc::ENOSPC);
    }
    let (core, driver) = match core.split_at_checked(framing.request) {
        Some(split) if framing.driver => split,
        _ => (core, &[][..]),
    };
    let response = if framing.response > 0 {
        read_prefix::<u64>(core)
    } else {
        0
    };
    Ok(UverbsRequest {
        core,
        driver,
        response,
        response_len: framing.response,
        driver_response: behind(response, framing.response),
        driver_response_len: room - framing.response,
    })
}

/// `verify_hdr`, for extended commands: sizes in 8-byte words, headers excluded.
pub fn frame_extended<'b>(
    header: &ib_uverbs_cmd_hdr,
    bytes: &'b [u8],
    framing: &Framing,
) -> Result<UverbsRequest<'b>, Errno> {
    let rest = &bytes[size_of::<ib_uverbs_cmd_hdr>()..];
    let extended: ib_uverbs_ex_cmd_hdr = read_from(rest).ok_or(libc::EINVAL)?;
    let body = &rest[size_of::<ib_uverbs_ex_cmd_hdr>()..];
    let core_len = usize::from(header.in_words) * 8;
    if core_len + usize::from(extended.provider_in_words) * 8 != body.len() {
        return Err(libc::EINVAL);
    }
    refuse_if(core_len < framing.request, libc::ENOSPC)?;
    let room = usize::from(header.out_words) * 8;
    let driver_room = usize::from(extended.provider_out_words) * 8;
    if extended.cmd_hdr_reserved != 0 || (extended.response == 0) != (room + driver_room == 0) {
        return Err(libc::EINVAL);
    }
    if extended.response != 0 && room < framing.response {
        return Err(libc::ENOSPC);
    }
    let (core, driver) = body.split_at(core_len);
    Ok(UverbsRequest {
        core,
        driver,
        response: extended.response,
        response_len: room,
        driver_response: behind(extended.response, room),
        driver_response_len: driver_room,
    })
}

/// The address behind a response; 0 if there is no response.
fn behind(response: u64, len: usize) -> u64 {
    match response {
        0 => 0,
        response => response.wrapping_add(len as u64),
    }
}

#[cfg(test)]
impl UverbsRequest<'_> {
    /// Sizes of the two structs, and of the room for the two responses.
    pub fn sizes(&self) -> (usize, usize, usize, usize) {
        (
            self.core.len(),
            self.driver.len(),
            self.response_len,
            self.driver_response_len,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_known_struct_must_be_zero() {
        let mut bytes = [0u8; 40];
        let core = |bytes: &[u8]| {
            let request = UverbsRequest {
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
