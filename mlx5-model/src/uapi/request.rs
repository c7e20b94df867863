//! Framing of write() commands: conversion between bytes and typed structs.
//!
//! Imports `abi` and `process`.

use crate::abi::*;
use crate::process::memory::copy_to_user;
use crate::process::{Errno, refuse_if};

/// Size in bytes of the DESTROY_CQ that rdma-core 18 and 19 sent; the kernel tolerates it although
/// it is too short.
const SHORT_DESTROY_CQ: usize = 16;

/// Minimum sizes in bytes that a write() command must have, and whether driver data may follow.
pub struct Framing {
    /// Minimum size of a write() command's struct in bytes.
    pub request: usize,
    /// Minimum size of a write() command's response buffer in bytes.
    pub response: usize,
    /// `true` if driver data may follow the struct of a write() command.
    pub driver: bool,
}

/// A write() command with checked framing.
pub struct UverbsRequest<'b> {
    /// The kernel's struct of a write() command and the bytes that follow it.
    core: &'b [u8],
    /// Driver data of the write() command.
    driver: &'b [u8],
    /// Address of the buffer for the kernel's part of the write() command's response.
    response: u64,
    response_len: usize,
    driver_response: u64,
    driver_response_len: usize,
}

impl UverbsRequest<'_> {
    /// Returns the struct of a write() command. Fails with `EOPNOTSUPP` if the command is longer
    /// than the known struct and has a nonzero byte there.
    pub fn core<T: Plain>(&self) -> Result<T, Errno> {
        read_whole(self.core)
    }

    /// Returns the struct of a write() command and the bytes that follow it. Fails with `ENOSPC` if
    /// the command is too short.
    pub fn core_and_rest<T: Plain>(&self) -> Result<(T, &[u8]), Errno> {
        let core = read_from(self.core).ok_or(libc::ENOSPC)?;
        Ok((core, self.core.get(size_of::<T>()..).unwrap_or(&[])))
    }

    /// Returns the driver data of the write() command.
    pub fn driver_bytes(&self) -> &[u8] {
        self.driver
    }

    /// Returns the driver's struct of a write() command. Fails with `EINVAL` if it has less than
    /// `min` bytes, with `EOPNOTSUPP` if it is longer than the known struct and has a nonzero byte
    /// there.
    pub fn driver<T: Plain>(&self, min: usize) -> Result<T, Errno> {
        refuse_if(self.driver.len() < min, libc::EINVAL)?;
        read_whole(self.driver)
    }

    /// Returns the number of bytes of the kernel's response struct that fit in the program's buffer
    /// (`response_length`).
    pub fn room<T: Plain>(&self) -> u32 {
        self.response_len.min(size_of::<T>()) as u32
    }

    /// Returns the number of bytes of the driver's response struct that fit in the program's
    /// buffer.
    pub fn driver_room<T: Plain>(&self) -> u32 {
        self.driver_response_len.min(size_of::<T>()) as u32
    }

    /// Writes the command's response to the program's buffer. Fails with `EFAULT` if the buffer is
    /// not writable.
    pub fn reply<T: Plain>(&self, response: &T) -> Result<(), Errno> {
        write_response(self.response, self.response_len, bytes_of(response))
    }

    /// Writes the driver's part of the command's response. Fails as [`UverbsRequest::reply`] does.
    pub fn reply_driver<T: Plain>(&self, response: &T) -> Result<(), Errno> {
        write_response(
            self.driver_response,
            self.driver_response_len,
            bytes_of(response),
        )
    }
}

/// Reads the command struct at the start of `bytes`, zero-extended. Fails with `EOPNOTSUPP` for
/// nonzero bytes beyond the struct.
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

/// Checks a write() command in legacy framing as `verify_hdr` does: sizes in 4-byte words, header
/// included.
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

/// Checks a write() command in extended framing as `verify_hdr` does: sizes in 8-byte words,
/// headers excluded.
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

/// Returns the address directly after a response of `len` bytes; 0 if the command has no response.
fn behind(response: u64, len: usize) -> u64 {
    match response {
        0 => 0,
        response => response.wrapping_add(len as u64),
    }
}

#[cfg(test)]
impl UverbsRequest<'_> {
    /// Returns the sizes in bytes of a write() command's two structs and of the buffers for its two
    /// responses.
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
