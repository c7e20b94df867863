//! Counters of frames that the NIC lost before delivery, under the names that the NIC's driver
//! gives them.
//!
//! `out_of_buffer` and similar counters are files of the RDMA device (`ports/N/hw_counters`).
//! `rx_discards_phy` and similar counters are ethtool statistics of the port's network interface.
//! The driver counts timeouts of delay drop in debugfs. A counter that cannot be read is
//! `"unreadable"`, never 0.

use crate::{
    device::{
        delay_drop::{self, TIMEOUTS},
        interface::NetInterface,
        read_number,
    },
    stats::{Counter, NicCounters, Unreadable, nic_sum},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use wqcap_sockets::{packet::PacketSocket, xdp::XdpSocket};

/// Loss counters of the RDMA port that are always reported.
const PORT: [&str; 1] = ["out_of_buffer"];
/// Loss counters of the RDMA port that are reported if they exist. Only the software NIC has
/// `wire_dropped` and, on live interfaces, its parts by cause.
const PORT_IF_THERE: [&str; 4] = [
    "rx_icrc_encapsulated",
    "wire_dropped",
    "wire_dropped_ring",
    "wire_dropped_size",
];
/// Loss counters of the network interface: frames that the port refused or lost, and frames that the
/// device lost behind it, under the mlx5 driver's names
/// (drivers/net/ethernet/mellanox/mlx5/core/en_stats.c).
///
/// The port refuses frames with a wrong FCS or length, unless `ethtool -K IFACE rx-all on` is set
/// (`mlx5_set_port_fcs`). Behind it, the PCIe bus does not take a frame
/// (`outbound_pci_buffer_overflow`, `pcie_perf_stats_desc64`), a frame is longer than the WQE of its
/// queue (`rx_oversize_pkts_buffer`, `vnic_env_stats_drop_desc`), or no rule matches it
/// (`rx_steer_missed_packets`, `vnic_env_stats_steer_desc`).
const NETDEV: [&str; 9] = [
    "rx_discards_phy",
    "outbound_pci_buffer_overflow",
    "rx_oversize_pkts_buffer",
    "rx_steer_missed_packets",
    "rx_crc_errors_phy",
    "rx_in_range_len_errors_phy",
    "rx_oversize_pkts_phy",
    "rx_symbol_err_phy",
    "rx_prio0_buf_discard",
];

/// Loss counters of an ordinary network interface, files of its `statistics` in sysfs: frames that
/// the driver or the NIC lost before the kernel received them
/// (`Documentation/ABI/testing/sysfs-class-net-statistics`). `rx_dropped` is not among them: it
/// also counts frames of protocols that the host does not use.
const INTERFACE: [&str; 5] = [
    "rx_missed_errors",
    "rx_fifo_errors",
    "rx_over_errors",
    "rx_crc_errors",
    "rx_length_errors",
];
/// Name of the counter of frames that found no room in the rings of the capture's packet sockets.
const SOCKET: &str = "socket_dropped";

/// NIC counters that are 32 bits wide and wrap around: the queue counters
/// (drivers/infiniband/hw/mlx5/counters.c, `mlx5_ib_query_q_counters` reads a be32) and the
/// driver's atomic of delay drop's timeouts.
const NARROW: [&str; 2] = ["out_of_buffer", TIMEOUTS];

/// Reader of a port's counters of lost frames, and of their growth since the start of the capture.
#[derive(Debug)]
pub struct NicReader {
    source: CounterSource,
    /// Growth of each NIC counter by name; `None` if the counter was not readable at the start.
    counters: Mutex<BTreeMap<&'static str, Option<Growth>>>,
}

/// Readers of the counters of lost frames of all captured ports, at least one.
#[derive(Debug)]
pub struct NicReaders(Vec<PortLossCounters>);

/// Counters of lost frames of one captured port.
#[derive(Debug)]
struct PortLossCounters {
    label: String,
    /// Growth of the counters up to the last loss of the port, and the reader since then; `None`
    /// while the port is lost.
    state: Mutex<(NicCounters, Option<NicReader>)>,
}

impl NicReaders {
    /// Creates the readers of loss counters from the name and the reader of each port.
    #[must_use]
    pub fn new(ports: Vec<(String, NicReader)>) -> Self {
        let port = |(label, reader)| PortLossCounters {
            label,
            state: Mutex::new((NicCounters::default(), Some(reader))),
        };
        Self(ports.into_iter().map(port).collect())
    }

    /// Stops reading the loss counters of port number `port`, which is lost; their growth up to now
    /// is kept.
    pub fn pause(&self, port: usize) {
        let so_far = self.0[port].growth(NicReader::growth_so_far);
        *self.0[port].lock() = (so_far, None);
    }

    /// Continues the loss counters of port number `port`, which was lost, with a new reader.
    pub fn resume(&self, port: usize, reader: NicReader) {
        self.0[port].lock().1 = Some(reader);
    }

    /// Returns the growth of the loss counters of all ports, like [`NicReader::growth`]. With
    /// several ports, the name of a counter is preceded by the name of its port and a slash.
    #[must_use]
    pub fn growth(&self) -> NicCounters {
        self.each(NicReader::growth)
    }

    /// Returns the last known growth of the loss counters of all ports, like
    /// [`NicReader::growth_so_far`].
    #[must_use]
    pub fn growth_so_far(&self) -> NicCounters {
        self.each(NicReader::growth_so_far)
    }

    fn each(&self, growth: impl Fn(&NicReader) -> NicCounters) -> NicCounters {
        let of_port = |it: &PortLossCounters| it.growth(&growth);
        match self.0.as_slice() {
            [only] => of_port(only),
            several => several
                .iter()
                .flat_map(|port| {
                    let named = move |(name, it)| (format!("{}/{name}", port.label), it);
                    of_port(port).into_iter().map(named)
                })
                .collect(),
        }
    }
}

impl PortLossCounters {
    /// Returns the growth of the port's loss counters since the start of the capture; `growth`
    /// reads the port's reader.
    fn growth(&self, growth: impl Fn(&NicReader) -> NicCounters) -> NicCounters {
        let state = self.lock();
        match &state.1 {
            Some(reader) => nic_sum(state.0.clone(), growth(reader)),
            None => state.0.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, (NicCounters, Option<NicReader>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Place from which the loss counters of a port are read.
#[derive(Debug)]
enum CounterSource {
    /// Port of an RDMA device, whose counters are in sysfs and ethtool.
    Rdma {
        /// Sysfs directories of hardware counters: the port's and the device's. The device's
        /// directory exists only in switchdev mode, where it holds the queue counters
        /// (`hw_switchdev_stats_ops` of drivers/infiniband/hw/mlx5/counters.c).
        folders: [PathBuf; 2],
        /// Name of the network interface on the RDMA port; `None` if unknown.
        netdev: Option<String>,
        /// Driver's debugfs directory of delay drop; `None` if the capture does not use delay drop.
        delay_drop: Option<PathBuf>,
    },
    /// Ordinary network interface that sockets of the kernel capture.
    Interface {
        /// Directory of the interface's statistics in sysfs.
        folder: PathBuf,
        drops: Arc<SocketDrops>,
    },
}

/// Counter of the frames that were dropped because the rings of the capture's sockets were full.
#[derive(Debug)]
pub enum SocketDrops {
    /// Packet sockets, whose drops are counted.
    Packet {
        /// Packet sockets of the capture's queues.
        sockets: Vec<Arc<PacketSocket>>,
        /// Sum of all readings of the sockets' drop counts. The kernel resets a socket's count with
        /// each reading.
        total: Mutex<u64>,
    },
    /// AF_XDP sockets, whose drop counts only grow.
    Xdp(Vec<Arc<XdpSocket>>),
}

impl SocketDrops {
    /// Creates the counter of frames that the packet sockets drop.
    #[must_use]
    pub fn of_packets(sockets: Vec<Arc<PacketSocket>>) -> Self {
        Self::Packet {
            sockets,
            total: Mutex::new(0),
        }
    }

    /// Returns the number of frames dropped since the sockets were opened; `None` if a socket's
    /// count cannot be read.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        match self {
            Self::Packet { sockets, total } => {
                let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                for socket in sockets {
                    *total += socket.take_counts().ok()?.dropped;
                }
                Some(*total)
            }
            Self::Xdp(sockets) => sockets
                .iter()
                .map(|it| it.counts().ok().map(|counts| counts.lost()))
                .sum(),
        }
    }
}

/// Growth of a NIC counter since the start of the capture.
///
/// Each reading adds the difference to the reading before. A counter that wraps at most once
/// between two readings is thus summed correctly.
#[derive(Debug, Clone, Copy)]
struct Growth {
    /// Value of the NIC counter at the last reading.
    last: u64,
    /// Sum of the NIC counter's growth since the start of the capture.
    total: u64,
}

impl Growth {
    /// Adds the growth of the NIC counter `name` up to its reading `now`.
    fn add(&mut self, name: &str, now: u64) {
        self.total += if NARROW.contains(&name) {
            now.wrapping_sub(self.last) & u64::from(u32::MAX)
        } else {
            now.saturating_sub(self.last)
        };
        self.last = now;
    }
}

impl NicReader {
    /// Reads the initial values of the NIC's loss counters. `delay_drop` includes the timeouts of
    /// delay drop.
    #[must_use]
    pub fn start(device: &str, port: u8, netdev: Option<&str>, delay_drop: bool) -> Self {
        let folder_of = || delay_drop::folder(Path::new("/sys"), device).unwrap_or_default();
        let device = format!("/sys/class/infiniband/{device}");
        Self::with_source(CounterSource::Rdma {
            folders: [
                format!("{device}/ports/{port}/hw_counters"),
                format!("{device}/hw_counters"),
            ]
            .map(PathBuf::from),
            netdev: netdev.map(str::to_owned),
            delay_drop: delay_drop.then(folder_of),
        })
    }

    /// Reads the initial values of the loss counters of an ordinary network interface, which sockets
    /// of the kernel capture.
    #[must_use]
    pub fn start_interface(name: &str, drops: Arc<SocketDrops>) -> Self {
        Self::with_source(CounterSource::Interface {
            folder: Path::new("/sys/class/net").join(name).join("statistics"),
            drops,
        })
    }

    fn with_source(source: CounterSource) -> Self {
        let reader = Self {
            source,
            counters: Mutex::default(),
        };
        let start =
            |(name, value): (_, Option<u64>)| (name, value.map(|last| Growth { last, total: 0 }));
        *reader.lock() = reader.read().into_iter().map(start).collect();
        reader
    }

    /// Reads the NIC's loss counters and returns their growth since the start of the capture.
    #[must_use]
    pub fn growth(&self) -> NicCounters {
        self.observed(|_| None)
    }

    /// Returns the growth of the loss counters of a device that may be gone: counters that can no
    /// longer be read have the growth of the last reading.
    #[must_use]
    pub fn growth_so_far(&self) -> NicCounters {
        self.observed(|growth| Some(growth.total))
    }

    /// Locks the map from the name of each NIC counter to its growth.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Option<Growth>>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all NIC counters and returns their growth. `otherwise` returns the growth to report
    /// for a counter that cannot be read.
    fn observed(&self, otherwise: fn(&Growth) -> Option<u64>) -> NicCounters {
        let now = self.read();
        let value = |(name, growth): (&&'static str, &mut Option<Growth>)| {
            let total = growth.as_mut().and_then(|growth| {
                let Some(now) = now.get(name).copied().flatten() else {
                    return otherwise(growth);
                };
                growth.add(name, now);
                Some(growth.total)
            });
            let counter = total.map_or(Counter::Unreadable(Unreadable::Unreadable), Counter::Value);
            ((*name).to_owned(), counter)
        };
        self.lock().iter_mut().map(value).collect()
    }

    /// Reads the present value of each NIC counter; `None` if it cannot be read.
    fn read(&self) -> BTreeMap<&'static str, Option<u64>> {
        let (folders, netdev, delay_drop) = match &self.source {
            CounterSource::Rdma {
                folders,
                netdev,
                delay_drop,
            } => (folders, netdev, delay_drop),
            CounterSource::Interface { folder, drops } => {
                let counter = |name: &&'static str| (*name, read_number(folder.join(name)));
                let mut all: BTreeMap<_, _> = INTERFACE.iter().map(counter).collect();
                all.insert(SOCKET, drops.total());
                return all;
            }
        };
        let number = |name: &str| {
            let [port, device] = folders;
            read_number(device.join(name)).or_else(|| read_number(port.join(name)))
        };
        let port = |name: &&'static str| (*name, number(name));
        let mut all: BTreeMap<_, _> = PORT.iter().map(port).collect();
        all.extend(PORT_IF_THERE.iter().map(port).filter(|(_, v)| v.is_some()));
        if let Some(folder) = delay_drop {
            all.insert(TIMEOUTS, read_number(folder.join(TIMEOUTS)));
        }
        let ethtool = netdev
            .as_deref()
            .and_then(|name| NetInterface::open(name).and_then(|it| it.statistics()).ok())
            .unwrap_or_default();
        all.insert(NETDEV[0], ethtool.get(NETDEV[0]).copied());
        all.extend(
            NETDEV[1..]
                .iter()
                .filter_map(|n| Some((*n, Some(*ethtool.get(*n)?)))),
        );
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_counters_wrap_and_their_growth_does_not() {
        let mut narrow = Growth {
            last: u64::from(u32::MAX) - 1,
            total: 0,
        };
        for (now, total) in [(u64::from(u32::MAX), 1), (3, 5), (3, 5), (10, 12)] {
            narrow.add("out_of_buffer", now);
            assert_eq!(narrow.total, total);
        }
        // A counter of 64 bits that decreases was reset by another program. The decrease is not
        // counted.
        let mut wide = Growth { last: 10, total: 0 };
        wide.add("rx_discards_phy", 4);
        wide.add("rx_discards_phy", 6);
        assert_eq!(wide.total, 2);
    }

    #[test]
    fn a_counter_that_cannot_be_read_is_not_a_zero() {
        let reader = NicReader::start("no_such_device", 1, Some("no_such_if"), true);
        let growth = reader.growth();
        for name in ["out_of_buffer", "rx_discards_phy", TIMEOUTS] {
            assert_eq!(growth[name], Counter::Unreadable(Unreadable::Unreadable));
        }
        assert!(!growth.contains_key("wire_dropped"));
        reader
            .lock()
            .insert("out_of_buffer", Some(Growth { last: 9, total: 7 }));
        let so_far = reader.growth_so_far();
        assert_eq!(so_far["out_of_buffer"], Counter::Value(7));
        assert_eq!(
            so_far[TIMEOUTS],
            Counter::Unreadable(Unreadable::Unreadable)
        );
        let without = NicReader::start("no_such_device", 1, None, false);
        assert!(!without.growth().contains_key(TIMEOUTS));
    }
}
