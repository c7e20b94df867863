//! Counters of the ports, in memory that every process of the tree shares.
//!
//! Imports `process` and the settings' limits; `sysfs` renders a counter when its file is opened.
//! Invariant: one table names each counter, so that its field, its file and its position in memory
//! agree. A counter only grows; the link's state is 0 or 1.

#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::process::real;
use crate::settings::{MAX_DEVICES, MAX_PORTS};

/// Directory of a port counter's file in sysfs, below the port's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterGroup {
    /// Counters in `ports/<P>/counters`: those of the InfiniBand core, from the PMA attributes.
    Port,
    /// Counters in `ports/<P>/hw_counters`: those of the mlx5 driver, from the queue counter sets.
    /// They are 32 bits wide (drivers/infiniband/hw/mlx5/counters.c, `mlx5_ib_query_q_counters`
    /// reads a be32), and never reset to 0. In switchdev mode they are in the device's directory
    /// instead of the port's (`hw_switchdev_stats_ops` there).
    Queue,
    /// Counters in `ports/<P>/hw_counters` that belong neither to the InfiniBand core nor to the
    /// queue counter sets.
    Hardware,
}

impl CounterGroup {
    pub fn directory(self) -> &'static str {
        match self {
            CounterGroup::Port => "counters",
            CounterGroup::Queue | CounterGroup::Hardware => "hw_counters",
        }
    }
}

/// Bit of the netdev feature `rx-all` in [`PortCounters::features`].
const RX_ALL: u64 = 1;

/// Function that reads the current value of a port counter.
pub type CounterValue = fn(&PortCounters) -> u64;

macro_rules! counters {
    ($($group:ident { $($(#[doc = $doc:expr])* $name:ident $(as $file:literal)?,)* })*) => {
        /// Counters of one NIC port, named like their files in sysfs.
        #[derive(Debug)]
        #[repr(C, align(64))]
        pub struct PortCounters {
            $($($(#[doc = $doc])* pub $name: AtomicU64,)*)*
            /// Number of delay drop timeouts on the whole device, kept in the counters of its first
            /// port.
            pub delay_drop_timeouts: AtomicU64,
            /// Number of receive queues that were created with delay drop on the whole device, kept
            /// in the counters of its first port.
            pub delay_drop_queues: AtomicU64,
            /// Number of frames that the port dropped for a wrong FCS, as `ethtool -S` of the
            /// netdev shows it.
            pub rx_crc_errors_phy: AtomicU64,
            /// Number of frames that were dropped before any rule because the port's own buffer was
            /// full, as `ethtool -S` of the netdev shows it.
            pub rx_discards_phy: AtomicU64,
            /// Number of frames that were longer than the port's MTU allows, as `ethtool -S` of the
            /// netdev shows it.
            pub rx_oversize_pkts_phy: AtomicU64,
            /// Number of frames that were longer than their WQE and got no CQE, as `ethtool -S` of
            /// the netdev shows it.
            pub rx_oversize_pkts_buffer: AtomicU64,
            /// Number of received frames that matched no rule and were not for the host, as
            /// `ethtool -S` of the netdev shows it.
            pub rx_steer_missed_packets: AtomicU64,
            /// Number of frames that the PCIe bus did not take, as `ethtool -S` of the netdev shows
            /// it.
            pub outbound_pci_buffer_overflow: AtomicU64,
            /// Link state of the port: 1 while the link is up, otherwise 0.
            link_up: AtomicU64,
            /// Number of times the port's netdev was taken down or up; odd while it is down.
            netdev_changes: AtomicU64,
            /// Features of the port's netdev that `ethtool -k` shows, one bit each.
            pub features: AtomicU64,
        }

        impl PortCounters {
            const fn zero() -> Self {
                Self {
                    $($($name: AtomicU64::new(0),)*)*
                    delay_drop_timeouts: AtomicU64::new(0),
                    delay_drop_queues: AtomicU64::new(0),
                    rx_crc_errors_phy: AtomicU64::new(0),
                    rx_discards_phy: AtomicU64::new(0),
                    rx_oversize_pkts_phy: AtomicU64::new(0),
                    rx_oversize_pkts_buffer: AtomicU64::new(0),
                    rx_steer_missed_packets: AtomicU64::new(0),
                    outbound_pci_buffer_overflow: AtomicU64::new(0),
                    link_up: AtomicU64::new(0),
                    netdev_changes: AtomicU64::new(0),
                    features: AtomicU64::new(0),
                }
            }

            /// Sets the queue counters of a port to `value`, as on a device that has been in use.
            pub fn start_queue_counters(&self, value: u64) {
                $($(if CounterGroup::$group == CounterGroup::Queue {
                    self.$name.store(value, Ordering::Relaxed);
                })*)*
            }
        }

        /// Port counters that have a file in sysfs: directory of the file, its name, and function
        /// that reads the counter's value.
        pub static FILES: &[(CounterGroup, &str, CounterValue)] = &[
            $($((CounterGroup::$group, counters!(@file $name $($file)?), |port| port.$name.load(Ordering::Relaxed)),)*)*
        ];
    };
    (@file $name:ident) => { stringify!($name) };
    (@file $name:ident $file:literal) => { $file };
}

// Names and order as in Linux 6.1: drivers/infiniband/core/sysfs.c (`pma_attrs_ext`) and
// drivers/infiniband/hw/mlx5/counters.c. Counters without a comment stay 0, because nothing in the
// model changes them: they count RDMA, credits of InfiniBand links and noise on the line. An idle
// or lossless port reads 0 on hardware too.
counters! {
    Port {
        vl15_dropped as "VL15_dropped", excessive_buffer_overrun_errors,
        /// Number of times the port's link went down.
        link_downed,
        link_error_recovery, local_link_integrity_errors,
        /// Number of multicast frames that the port received.
        multicast_rcv_packets,
        /// Number of multicast frames that the port sent.
        multicast_xmit_packets,
        port_rcv_constraint_errors,
        /// Number of 4-octet words that the port received.
        port_rcv_data,
        port_rcv_errors,
        /// Number of frames that the port received.
        port_rcv_packets,
        port_rcv_remote_physical_errors, port_rcv_switch_relay_errors, port_xmit_constraint_errors,
        /// Number of 4-octet words that the port sent.
        port_xmit_data,
        /// Number of frames that the port could not send because the link was down or congested.
        port_xmit_discards,
        /// Number of frames that the port sent.
        port_xmit_packets,
        port_xmit_wait, symbol_error,
        /// Number of unicast frames that the port received.
        unicast_rcv_packets,
        /// Number of unicast frames that the port sent.
        unicast_xmit_packets,
    }
    Queue {
        rx_write_requests, rx_read_requests, rx_atomic_requests, rx_dct_connect,
        /// Number of received frames that were dropped because no receive WQE was posted.
        out_of_buffer,
        out_of_sequence, duplicate_request, rnr_nak_retry_err, packet_seq_err, implied_nak_seq_err,
        local_ack_timeout_err,
        /// Number of receive completions with a local length error.
        resp_local_length_error,
        /// Number of receive completions in error, including flushes.
        resp_cqe_error,
        /// Number of send completions in error, including flushes.
        req_cqe_error,
        req_remote_invalid_request, req_remote_access_errors, resp_remote_access_errors,
        /// Number of receive WQEs that were flushed.
        resp_cqe_flush_error,
        /// Number of send WQEs that were flushed.
        req_cqe_flush_error,
        roce_adp_retrans, roce_adp_retrans_to, roce_slow_restart, roce_slow_restart_cnps,
        roce_slow_restart_trans, rp_cnp_ignored, rp_cnp_handled, np_ecn_marked_roce_packets, np_cnp_sent,
    }
    Hardware {
        rx_icrc_encapsulated,
        /// Number of frames that the wire lost before the NIC saw them; only the software NIC has
        /// this counter.
        wire_dropped,
        /// Number of frames that a wire on a live interface lost because its ring was full.
        wire_dropped_ring,
        /// Number of frames that a wire on a live interface lost because they were too long or cut.
        wire_dropped_size,
    }
}

impl PortCounters {
    /// Sets the link state of a port that `ports/<port>/state` and related files show in every
    /// process of the tree.
    pub fn set_link_up(&self, up: bool) {
        let was_up = self.link_up.swap(up.into(), Ordering::AcqRel) != 0;
        if was_up && !up {
            self.link_downed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn is_link_up(&self) -> bool {
        self.link_up.load(Ordering::Acquire) != 0
    }

    /// Takes the port's netdev down or up, and with it the link in every process of the tree.
    pub fn set_netdev_down(&self, down: bool) {
        let next = |count: u64| (count % 2 != u64::from(down)).then_some(count + 1);
        // Refused if the netdev is already in that state.
        let _ = self
            .netdev_changes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    pub fn is_taken_down(&self) -> bool {
        self.netdev_changes() & 1 != 0
    }

    /// Returns the number of times the port's netdev was taken down or up; odd while it is down.
    pub fn netdev_changes(&self) -> u64 {
        self.netdev_changes.load(Ordering::Acquire)
    }

    /// Makes a port deliver frames with a wrong FCS from now on (`rx-all`).
    pub fn set_rx_all(&self) {
        self.features.fetch_or(RX_ALL, Ordering::Relaxed);
    }

    /// Returns `true` if the port delivers frames with a wrong FCS.
    pub fn has_rx_all(&self) -> bool {
        self.features.load(Ordering::Relaxed) & RX_ALL != 0
    }

    /// Adds a number of received frames, their octets, and the number of multicast frames among
    /// them to the port's counters.
    pub fn received(&self, frames: u64, octets: u64, multicast: u64) {
        add(&self.port_rcv_packets, frames);
        add(&self.port_rcv_data, words(octets));
        add(&self.multicast_rcv_packets, multicast);
        add(&self.unicast_rcv_packets, frames - multicast.min(frames));
    }

    /// Adds a number of sent frames, their octets, and the number of multicast frames among them to
    /// the port's counters.
    pub fn sent(&self, frames: u64, octets: u64, multicast: u64) {
        add(&self.port_xmit_packets, frames);
        add(&self.port_xmit_data, words(octets));
        add(&self.multicast_xmit_packets, multicast);
        add(&self.unicast_xmit_packets, frames - multicast.min(frames));
    }
}

/// Adds `count` to a port counter; does nothing if `count` is 0.
pub fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// Converts a number of octets to 4-octet words, rounded up once per burst of frames; a hardware
/// port rounds up for each frame.
fn words(octets: u64) -> u64 {
    octets.div_ceil(4)
}

/// Port counters that are used while no shared file is attached: in unit tests and an inert
/// library.
static LOCAL: [PortCounters; MAX_DEVICES * MAX_PORTS] =
    [const { PortCounters::zero() }; MAX_DEVICES * MAX_PORTS];
static SHARED: AtomicPtr<PortCounters> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the counters of a device's port, counted from 1. Panics if the device or port is beyond
/// the limits.
pub fn port(device: usize, port: u8) -> &'static PortCounters {
    let port = usize::from(port);
    assert!(
        device < MAX_DEVICES && (1..=MAX_PORTS).contains(&port),
        "mlx5_{device} port {port} is beyond {MAX_DEVICES} devices of {MAX_PORTS} ports"
    );
    let index = device * MAX_PORTS + port - 1;
    let shared = SHARED.load(Ordering::Acquire);
    if shared.is_null() {
        return &LOCAL[index];
    }
    // SAFETY: the mapping has LOCAL's size, is never unmapped, and is aligned to a page. It is
    // accessed only through atomics, for which every bit pattern of another process is valid.
    unsafe { &*shared.add(index) }
}

/// Moves the port counters to a file that the processes of the process tree share. The first
/// process creates it, with zeroes.
pub fn attach(path: &Path) -> io::Result<()> {
    let size = size_of::<PortCounters>() * LOCAL.len();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    // The file is never truncated: a process that maps it would be killed by its next count.
    if file.metadata()?.len() < size as u64 {
        file.set_len(size as u64)?;
    }
    let at = real::map_shared(file.as_raw_fd(), size).map_err(io::Error::from_raw_os_error)?;
    SHARED.store(at.cast(), Ordering::Release);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_once_and_only_as_drivers_do() {
        let mut names: Vec<_> = FILES
            .iter()
            .map(|(group, name, _)| (group.directory(), *name))
            .collect();
        assert!(names.contains(&("counters", "VL15_dropped")));
        assert!(names.contains(&("hw_counters", "out_of_buffer")));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
