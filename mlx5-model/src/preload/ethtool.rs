//! The statistics that `ethtool -S` shows of a netdev of the model's own: what the port counted before any rule.
//!
//! Imports `counters` and the addresses of `sysfs`. As `mlx5e_get_strings` and `mlx5e_get_ethtool_stats` give them
//! (drivers/net/ethernet/mellanox/mlx5/core/en_stats.c, group "phy"), though of its hundreds of names only those that the
//! model counts. Invariant: the program's memory is written as far as its own counts say, which a reader sets first.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::sync::atomic::Ordering;

use crate::device::counters::{self, CounterValue};
use crate::process::Errno;
use crate::sysfs::address::virtual_netdev;

use super::overlay::Overlay;

/// Names and values; `rx_in_range_len_errors_phy` stays 0.
const STATISTICS: [(&str, CounterValue); 2] = [
    ("rx_crc_errors_phy", |port| {
        port.rx_crc_errors_phy.load(Ordering::Relaxed)
    }),
    ("rx_in_range_len_errors_phy", |_| 0),
];

const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// Commands and the string set of linux/ethtool.h.
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
const GSSET_INFO: u32 = 0x37;
const SS_STATS: u32 = 1;
/// `ETH_GSTRING_LEN`.
const NAME: usize = 32;

/// The port whose netdev an ioctl asks for statistics, if it is the model's own; `None`: the kernel's business.
///
/// # Safety
/// `arg` is what the program passes to `ioctl` with `request`.
pub unsafe fn asked(request: libc::c_ulong, arg: *mut c_void) -> Option<(usize, u8, *mut u32)> {
    if request != SIOCETHTOOL || arg.is_null() || Overlay::get().is_none() {
        return None;
    }
    // SAFETY: SIOCETHTOOL takes a `struct ifreq`, whose name has a zero at its end.
    let (name, data) = unsafe {
        let request = &*arg.cast::<libc::ifreq>();
        (
            CStr::from_ptr(request.ifr_name.as_ptr()),
            request.ifr_ifru.ifru_data,
        )
    };
    let (device, port) = virtual_netdev(name.to_str().ok()?)?;
    Some((device, port, data.cast()))
}

/// Answers a command about a port's netdev. Fails with `EOPNOTSUPP` for any other than those that read statistics.
///
/// # Safety
/// `words` is null, or the structure of an ethtool command with the room that its counts state.
pub unsafe fn answer(device: usize, port: u8, words: *mut u32) -> Result<i32, Errno> {
    if words.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: every structure of ethtool's begins with its command; the words read and written below are those of
    // `ethtool_sset_info` with room for each set asked for, of `ethtool_gstrings` and of `ethtool_stats`.
    unsafe {
        match *words {
            // cmd, reserved, the mask of sets (u64), a u32 for each set.
            GSSET_INFO => {
                let mask = *words.add(2) & 1 << SS_STATS;
                (*words.add(2), *words.add(3)) = (mask, 0);
                if mask != 0 {
                    *words.add(4) = STATISTICS.len() as u32;
                }
            }
            // cmd, the set, the count, then the names.
            GSTRINGS if *words.add(1) == SS_STATS => {
                let count = (*words.add(2) as usize).min(STATISTICS.len());
                *words.add(2) = count as u32;
                for (at, (name, _)) in STATISTICS[..count].iter().enumerate() {
                    let mut text = [0u8; NAME];
                    text[..name.len()].copy_from_slice(name.as_bytes());
                    let to = words.add(3).cast::<u8>().add(at * NAME);
                    to.copy_from_nonoverlapping(text.as_ptr(), NAME);
                }
            }
            // cmd, the count, then the values (u64).
            GSTATS => {
                let count = (*words.add(1) as usize).min(STATISTICS.len());
                *words.add(1) = count as u32;
                let counters = counters::port(device, port);
                for (at, (_, value)) in STATISTICS[..count].iter().enumerate() {
                    words
                        .add(2)
                        .cast::<u64>()
                        .add(at)
                        .write_unaligned(value(counters));
                }
            }
            _ => return Err(libc::EOPNOTSUPP),
        }
    }
    Ok(0)
}
