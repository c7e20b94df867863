//! Answers to `ethtool -S` and `ethtool -K` for a virtual netdev: counters of the port before any
//! rule, and features.
//!
//! Imports `counters`. The values are those of `mlx5e_get_strings` and `mlx5e_get_ethtool_stats`
//! (drivers/net/ethernet/mellanox/mlx5/core/en_stats.c, groups "phy", "vnic_env" and "pcie"). Of the
//! driver's hundreds of names only those that the model counts are listed. Invariant: the program's memory is written
//! only as far as the counts in it state, which the program sets first.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use rustix::thread::CapabilitySet;

use crate::device::counters::{self, CounterValue};
use crate::process::{Errno, has_capability};
use crate::settings;

/// Names of the ethtool statistics in the order of [`VALUES`]. `rx_in_range_len_errors_phy` stays
/// 0. `rx_discards_phy` counts frames "dropped due to lack of buffers on a physical port"
/// (Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst). No WQ has
/// received them. They are not part of `wire_dropped`, which counts frames that no port has
/// received.
const NAMES: [&str; 7] = [
    "rx_crc_errors_phy",
    "rx_in_range_len_errors_phy",
    "rx_discards_phy",
    "rx_oversize_pkts_phy",
    "rx_oversize_pkts_buffer",
    "rx_steer_missed_packets",
    "outbound_pci_buffer_overflow",
];
const VALUES: [CounterValue; 7] = [
    |port| port.rx_crc_errors_phy.load(Ordering::Relaxed),
    |_| 0,
    |port| port.rx_discards_phy.load(Ordering::Relaxed),
    |port| port.rx_oversize_pkts_phy.load(Ordering::Relaxed),
    |port| port.rx_oversize_pkts_buffer.load(Ordering::Relaxed),
    |port| port.rx_steer_missed_packets.load(Ordering::Relaxed),
    |port| port.outbound_pci_buffer_overflow.load(Ordering::Relaxed),
];

/// Names of the netdev features in the order of the bits of `PortCounters::features`. Verbs queues
/// have their own FCS setting (`SCATTER_FCS`), so `rx-fcs` changes nothing for them.
const FEATURES: [&str; 2] = ["rx-all", "rx-fcs"];

/// Commands (`ETHTOOL_*`) and string sets (`ETH_SS_*`) of the ethtool ioctl in linux/ethtool.h.
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
const SS_STATS: u32 = 1;
const SS_FEATURES: u32 = 4;
/// Size of the name of an ethtool statistic or feature in bytes: `ETH_GSTRING_LEN`.
const NAME: usize = 32;

/// Checks that the calling thread has CAP_NET_ADMIN. Fails with `EPERM` where the kernel does
/// (net/core/dev_ioctl.c).
pub(super) fn require_net_admin() -> Result<(), Errno> {
    if settings::global().enforce_caps && !has_capability(CapabilitySet::NET_ADMIN) {
        return Err(libc::EPERM);
    }
    Ok(())
}

fn names(set: u32) -> &'static [&'static str] {
    match set {
        SS_STATS => &NAMES,
        SS_FEATURES => &FEATURES,
        _ => &[],
    }
}

/// Answers an ethtool command about the netdev of a port of the model. Fails with `EOPNOTSUPP` for
/// commands that are not implemented.
///
/// # Safety
/// `words` is null, or the structure of an ethtool command with the room that its counts state.
pub unsafe fn answer(device: usize, port: u8, words: *mut u32) -> Result<i32, Errno> {
    if words.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: every ethtool structure begins with its command. The words read and written below are
    // those of `ethtool_sset_info` with room for each requested set, `ethtool_gstrings`,
    // `ethtool_stats`, `ethtool_gfeatures` and `ethtool_sfeatures`.
    unsafe {
        match *words {
            // cmd, reserved, mask of the sets (u64), then a u32 for each set.
            GSSET_INFO => {
                let wanted = *words.add(2);
                (*words.add(2), *words.add(3)) = (0, 0);
                let mut to = words.add(4);
                for set in [SS_STATS, SS_FEATURES] {
                    if wanted & 1 << set != 0 {
                        *words.add(2) |= 1 << set;
                        *to = names(set).len() as u32;
                        to = to.add(1);
                    }
                }
            }
            // cmd, set, count, then the names.
            GSTRINGS if !names(*words.add(1)).is_empty() => {
                let names = names(*words.add(1));
                let count = (*words.add(2) as usize).min(names.len());
                *words.add(2) = count as u32;
                for (at, name) in names[..count].iter().enumerate() {
                    let mut text = [0u8; NAME];
                    text[..name.len()].copy_from_slice(name.as_bytes());
                    let to = words.add(3).cast::<u8>().add(at * NAME);
                    to.copy_from_nonoverlapping(text.as_ptr(), NAME);
                }
            }
            // cmd, number of words, then for each word: available, requested, active, never
            // changed.
            GFEATURES => {
                let (all, room) = (1u32.wrapping_shl(FEATURES.len() as u32) - 1, *words.add(1));
                *words.add(1) = 1;
                if room > 0 {
                    let active = counters::port(device, port)
                        .features
                        .load(Ordering::Relaxed) as u32;
                    for (at, word) in [all, active, active, 0].into_iter().enumerate() {
                        *words.add(2 + at) = word;
                    }
                }
            }
            // cmd, number of words, then for each word: the bits to change and their new values.
            SFEATURES if *words.add(1) == 1 => {
                require_net_admin()?;
                let (which, wanted) = (u64::from(*words.add(2)), u64::from(*words.add(3)));
                let features = &counters::port(device, port).features;
                let old = features.load(Ordering::Relaxed);
                features.store(old & !which | wanted & which, Ordering::Relaxed);
            }
            SFEATURES => return Err(libc::EINVAL),
            // cmd, count, then the values (u64).
            GSTATS => {
                let count = (*words.add(1) as usize).min(VALUES.len());
                *words.add(1) = count as u32;
                let counters = counters::port(device, port);
                for (at, value) in VALUES[..count].iter().enumerate() {
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
