//! The one table of keys: how each is written, what it takes, what holds without it, and where its
//! value goes.
//!
//! Imports the drafts it writes to. Invariant: a key that is not here does not exist, and the README
//! repeats each row (a test compares).

use super::{DeviceDraft, PortDraft, Settings};

pub(super) type Parsed = Result<(), String>;

/// What a key belongs to, and how it is stored.
pub(super) enum Scope {
    Model(fn(&mut Settings, &str) -> Parsed),
    Device(fn(&mut DeviceDraft, &str) -> Parsed),
    Port(fn(&mut PortDraft, &str) -> Parsed),
}

/// One key: the table that errors, the README and the parser share.
pub struct Key {
    /// As it is written after the prefix.
    pub name: &'static str,
    /// What values it takes.
    pub takes: &'static str,
    /// What holds without it.
    pub default: &'static str,
    /// What it means.
    pub means: &'static str,
    pub(super) scope: Scope,
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    let plain = text.replace('_', "");
    plain
        .parse()
        .map_err(|_| format!("\"{text}\" is no number that fits"))
}

fn within<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
    text: &str,
    low: T,
    high: T,
) -> Result<T, String> {
    let value = number(text)?;
    if value < low || value > high {
        return Err(format!("{value} is not from {low} to {high}"));
    }
    Ok(value)
}

fn truth(text: &str) -> Result<bool, String> {
    match text {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(format!("\"{text}\" is neither true nor false")),
    }
}

fn mask(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16)
            .map_err(|_| format!("\"{text}\" is no 64-bit hexadecimal number")),
        None => number(text),
    }
}

/// A MAC address as six hexadecimal pairs with colons.
pub(super) fn mac(text: &str) -> Result<[u8; 6], String> {
    let mut bytes = [0; 6];
    let mut pairs = text.split(':');
    for byte in &mut bytes {
        *byte = pairs
            .next()
            .filter(|pair| pair.len() == 2)
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
            .ok_or_else(|| format!("\"{text}\" is no MAC address (as 0c:42:a1:00:00:01)"))?;
    }
    match pairs.next() {
        None => Ok(bytes),
        Some(_) => Err(format!("\"{text}\" is longer than a MAC address")),
    }
}

fn interface_name(text: &str) -> Result<String, String> {
    let fits = (1..16).contains(&text.len())
        && text != "."
        && text != ".."
        && !text.contains(|c: char| c == '/' || c.is_whitespace());
    if fits {
        Ok(text.to_owned())
    } else {
        Err(format!("\"{text}\" cannot be an interface's name"))
    }
}

/// Stores a parsed value in a field.
macro_rules! store {
    ($scope:ident, $draft:ident => $($field:ident).+, $parse:expr) => {
        Scope::$scope(|$draft, text| {
            $draft.$($field).+ = ($parse)(text)?;
            Ok(())
        })
    };
}

/// Every key there is.
pub static KEYS: &[Key] = &[
    Key {
        name: "caps",
        takes: "process, all",
        default: "process",
        means: "whether RAW_PACKET QPs, flows and delay drop want the process's own Linux capabilities, or all are granted",
        scope: Scope::Model(|model, text| {
            model.enforce_caps = match text {
                "process" => true,
                "all" => false,
                _ => return Err(format!("\"{text}\" is neither process nor all")),
            };
            Ok(())
        }),
    },
    Key {
        name: "debug",
        takes: "true, false",
        default: "false",
        means: "tell each command on standard error",
        scope: store!(Model, model => debug, truth),
    },
    Key {
        name: "ports",
        takes: "1 to 2",
        default: "1",
        means: "ports of the device",
        scope: store!(Device, device => ports, |text| within(text, 1, 2)),
    },
    Key {
        name: "cpu",
        takes: "a CPU's number",
        default: "not pinned",
        means: "the CPU the NIC's thread is pinned to",
        scope: store!(Device, device => cpu, |text| number(text).map(Some)),
    },
    Key {
        name: "numa_node",
        takes: "a node's number, -1",
        default: "-1",
        means: "the device's NUMA node in sysfs",
        scope: store!(Device, device => caps.numa_node, |text| within(text, -1, 1023)),
    },
    Key {
        name: "vf",
        takes: "true, false",
        default: "false",
        means: "the device is a virtual function, by sysfs",
        scope: store!(Device, device => place.is_vf, truth),
    },
    Key {
        name: "vfs",
        takes: "0 to 127",
        default: "0",
        means: "virtual functions that the device has brought up, by sysfs",
        scope: store!(Device, device => place.vfs, |text| within(text, 0, 127)),
    },
    Key {
        name: "lag",
        takes: "true, false",
        default: "false",
        means: "the device stands for several physical ports: its name is mlx5_bond_<N>, but not in these keys",
        scope: store!(Device, device => place.lag, truth),
    },
    Key {
        name: "scatter_fcs",
        takes: "true, false",
        default: "true",
        means: "the device can keep the FCS",
        scope: store!(Device, device => caps.scatter_fcs, truth),
    },
    Key {
        name: "cvlan_stripping",
        takes: "true, false",
        default: "true",
        means: "the device can strip the C-VLAN tag",
        scope: store!(Device, device => caps.cvlan_stripping, truth),
    },
    Key {
        name: "delay_drop",
        takes: "true, false",
        default: "true",
        means: "the device can hold the wire while a WQ is empty",
        scope: store!(Device, device => caps.delay_drop, truth),
    },
    Key {
        name: "delay_drop_timeout",
        takes: "100 to 100000",
        default: "100000",
        means: "how long the wire is held, in microseconds, rounded up to whole hundreds",
        scope: store!(Device, device => caps.delay_drop_timeout_us, |text| {
            within::<u32>(text, 100, 100_000).map(|us| us.next_multiple_of(100))
        }),
    },
    Key {
        name: "end_padding",
        takes: "true, false",
        default: "true",
        means: "the device can pad PCI writes to cache lines",
        scope: store!(Device, device => caps.end_padding, truth),
    },
    Key {
        name: "sniffer",
        takes: "true, false",
        default: "true",
        means: "the device takes sniffer rules",
        scope: store!(Device, device => caps.sniffer, truth),
    },
    Key {
        name: "tunnel_offloads",
        takes: "true, false",
        default: "true",
        means: "the device can hash and match inner headers",
        scope: store!(Device, device => caps.tunnel_offloads, truth),
    },
    Key {
        name: "mpls",
        takes: "true, false",
        default: "true",
        means: "rules can match MPLS labels",
        scope: store!(Device, device => caps.mpls, truth),
    },
    Key {
        name: "esp",
        takes: "true, false",
        default: "true",
        means: "rules can match the SPI of ESP",
        scope: store!(Device, device => caps.esp, truth),
    },
    Key {
        name: "max_ind_table_log",
        takes: "0 to 13",
        default: "11",
        means: "base-2 logarithm of the largest RWQ indirection table",
        scope: store!(Device, device => caps.max_ind_table_log, |text| within(text, 0, 13)),
    },
    Key {
        name: "max_wq",
        takes: "1 to 16777216",
        default: "131072",
        means: "WQs at most",
        scope: store!(Device, device => caps.max_wq, |text| within(text, 1, 1 << 24)),
    },
    Key {
        name: "max_recv_wr",
        takes: "1 to 32768",
        default: "32768",
        means: "WRs of a receive queue at most",
        scope: store!(Device, device => caps.max_recv_wr, |text| within(text, 1, 32768)),
    },
    Key {
        name: "max_cqe",
        takes: "1 to 4194303",
        default: "4194303",
        means: "CQEs of a CQ at most",
        scope: store!(Device, device => caps.max_cqe, |text| within(text, 1, 4_194_303)),
    },
    Key {
        name: "cq_moderation",
        takes: "true, false",
        default: "true",
        means: "CQs can hold back their events",
        scope: store!(Device, device => caps.cq_moderation, truth),
    },
    Key {
        name: "clock_khz",
        takes: "1000 to 4000000",
        default: "1000000",
        means: "rate of the NIC's clock",
        scope: store!(Device, device => caps.clock_khz, |text| within(text, 1000, 4_000_000)),
    },
    Key {
        name: "clock_drift",
        takes: "-10000 to 10000",
        default: "0",
        means: "how much faster than its nominal rate the NIC's clock runs, in parts per million",
        scope: store!(Device, device => caps.clock_drift_ppm, |text| within(text, -10_000, 10_000)),
    },
    Key {
        name: "timestamp_mask",
        takes: "64 bits, 0x for hexadecimal",
        default: "0xffffffffffffffff",
        means: "which bits of a completion's timestamp count; 0: the device has no timestamps",
        scope: store!(Device, device => caps.timestamp_mask, mask),
    },
    Key {
        name: "realtime_clock",
        takes: "true, false",
        default: "false",
        means: "the device can stamp completions in UTC",
        scope: store!(Device, device => caps.realtime_clock, truth),
    },
    Key {
        name: "max_srq",
        takes: "0 to 16777216",
        default: "65536",
        means: "SRQs at most",
        scope: store!(Device, device => caps.max_srq, |text| within(text, 0, 1 << 24)),
    },
    Key {
        name: "max_srq_wr",
        takes: "1 to 32767",
        default: "32767",
        means: "WRs of an SRQ at most",
        scope: store!(Device, device => caps.max_srq_wr, |text| within(text, 1, 32767)),
    },
    Key {
        name: "max_srq_sge",
        takes: "1 to 31",
        default: "31",
        means: "SGEs of an SRQ's WR at most",
        scope: store!(Device, device => caps.max_srq_sge, |text| within(text, 1, 31)),
    },
    Key {
        name: "fault",
        takes: "KIND[:k=v,...]@frames=N or @ms=N, with ; between several",
        default: "none",
        means: "what goes wrong on the device, and when: see Faults",
        scope: store!(Device, device => faults, crate::settings::fault::parse),
    },
    Key {
        name: "wire",
        takes: "a wire",
        default: "from MLX5_MODEL_WIRES",
        means: "what the port's frames come from and go to; a second port has to have its own",
        scope: store!(Port, port => wire, |text: &str| Ok::<_, String>(Some(text.to_owned()))),
    },
    Key {
        name: "rate",
        takes: "1, 10, 25, 40, 50, 100, 200",
        default: "100",
        means: "link rate in Gbit/s, as it is reported",
        scope: store!(Port, port => rate_gbps, |text| match number(text)? {
            rate @ (1 | 10 | 25 | 40 | 50 | 100 | 200) => Ok(Some(rate)),
            rate => Err(format!("no link has {rate} Gbit/s")),
        }),
    },
    Key {
        name: "mac",
        takes: "a MAC address",
        default: "the interface's, or 0c:42:a1:00:<device>:<port>",
        means: "address of the port's netdev",
        scope: store!(Port, port => mac, |text| mac(text).map(Some)),
    },
    Key {
        name: "netdev",
        takes: "an interface's name",
        default: "the wire's interface, or mlx5_<N>p<port>",
        means: "the port's netdev in sysfs; it is made up if there is no such interface",
        scope: store!(Port, port => netdev, |text| interface_name(text).map(Some)),
    },
    Key {
        name: "mtu",
        takes: "68 to 65536",
        default: "the interface's, or 1500",
        means: "MTU of the port's netdev",
        scope: store!(Port, port => mtu, |text| within(text, 68, 65536).map(Some)),
    },
    Key {
        name: "eswitch_port",
        takes: "a port's name, as p0 or pf0vf3",
        default: "none",
        means: "which port of an e-switch in switchdev mode a made-up netdev is, by sysfs: an uplink or a representor",
        scope: store!(Port, port => eswitch_port, |text| interface_name(text).map(Some)),
    },
    Key {
        name: "bond",
        takes: "an interface's name",
        default: "none",
        means: "the bond that a made-up netdev belongs to, by sysfs",
        scope: store!(Port, port => bond, |text| interface_name(text).map(Some)),
    },
    Key {
        name: "link_up",
        takes: "true, false",
        default: "true",
        means: "whether the link is up at the start",
        scope: store!(Port, port => link_up, |text| truth(text).map(Some)),
    },
];

/// The table of keys, for who named one that is not there.
pub(super) fn known() -> String {
    let row = |key: &Key| {
        let Key {
            name,
            takes,
            default,
            means,
            ..
        } = key;
        format!("\n  {name} = {takes}: {means} (default: {default})")
    };
    KEYS.iter().map(row).collect()
}
