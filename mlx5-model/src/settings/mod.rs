//! What the environment asks the model to be: which devices, on which wires, able to do what.
//!
//! Imports `wire` and `fault` for their own syntax, and from `counters` how many devices have room. Invariant: the settings are read once, when the library
//! is loaded, and are whole or an error; nothing of the model runs on a guess. Every key stands in
//! `keys::KEYS`, which parses, documents and names it in errors.

pub mod fault;
mod keys;

use std::sync::OnceLock;

use crate::device::counters::DEVICES;
use crate::wire::WireSpec;

use fault::Fault;
use keys::{KEYS, Key, Parsed, Scope, known, mac};

/// Newline-separated wires: the Nth is device `mlx5_<N-1>`, port 1.
pub const WIRES: &str = "MLX5_MODEL_WIRES";
/// Newline-separated `key=value`.
pub const SET: &str = "MLX5_MODEL_SET";

/// The whole model.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// `mlx5_0`, `mlx5_1`, ...; empty when the library is inert.
    pub devices: Vec<DeviceSettings>,
    /// Whether the process's own Linux capabilities are asked for (`caps=process`), or all granted.
    pub enforce_caps: bool,
    /// Whether each command is told on standard error.
    pub debug: bool,
}

/// One device.
#[derive(Debug, Clone)]
pub struct DeviceSettings {
    /// `mlx5_<N>`, or `mlx5_bond_<N>`.
    pub name: String,
    /// What it says it can do, and refuses beyond.
    pub caps: DeviceCaps,
    /// Whom it shares its hardware with.
    pub place: DevicePlace,
    /// Port `N` is the entry `N - 1`.
    pub ports: Vec<PortSettings>,
    /// The CPU the NIC's thread is pinned to.
    pub cpu: Option<usize>,
    /// What is to go wrong.
    pub faults: Vec<Fault>,
}

/// Whom a device says it shares its hardware with. What its wires bring does not depend on it.
#[derive(Debug, Clone, Default)]
pub struct DevicePlace {
    /// The PCI function is a virtual one.
    pub is_vf: bool,
    /// Virtual functions that it has brought up.
    pub vfs: u32,
    /// It stands for several physical ports (RoCE LAG).
    pub lag: bool,
}

/// One port.
#[derive(Debug, Clone)]
pub struct PortSettings {
    /// What its frames come from and go to.
    pub wire: WireSpec,
    /// The same as it was written.
    pub wire_text: String,
    /// Link rate in Gbit/s, as sysfs and the verbs report it.
    pub rate_gbps: u32,
    /// The netdev's address.
    pub mac: [u8; 6],
    /// The real interface under the port, if there is one.
    pub netdev: Option<String>,
    /// The port's netdev as sysfs names it: the real one's name, or one made up.
    pub ifname: String,
    /// The netdev's MTU.
    pub mtu: u32,
    /// Whether the link is up at the start.
    pub link_up: bool,
    /// The netdev's port name on an e-switch in switchdev mode, if it is made up.
    pub eswitch_port: Option<String>,
    /// The bond that the netdev belongs to, if it is made up.
    pub bond: Option<String>,
}

/// What a device can do. The defaults are a ConnectX-5's.
#[derive(Debug, Clone)]
pub struct DeviceCaps {
    /// `IBV_WQ_FLAGS_SCATTER_FCS` and its QP twin.
    pub scatter_fcs: bool,
    /// `IBV_WQ_FLAGS_CVLAN_STRIPPING` and its QP twin.
    pub cvlan_stripping: bool,
    /// `IBV_WQ_FLAGS_DELAY_DROP`.
    pub delay_drop: bool,
    /// How long delay drop holds a frame, in microseconds.
    pub delay_drop_timeout_us: u32,
    /// `IBV_WQ_FLAGS_PCI_WRITE_END_PADDING`.
    pub end_padding: bool,
    /// `IBV_FLOW_ATTR_SNIFFER`.
    pub sniffer: bool,
    /// RSS on inner headers and tunnel specs in rules.
    pub tunnel_offloads: bool,
    /// Rules match MPLS labels (`ft_field_support` of the first label, wherever it stands).
    pub mpls: bool,
    /// Rules match the SPI of ESP.
    pub esp: bool,
    /// Base-2 logarithm of the largest RWQ indirection table.
    pub max_ind_table_log: u32,
    /// WQs at most.
    pub max_wq: u32,
    /// WRs in a receive queue at most.
    pub max_recv_wr: u32,
    /// CQEs in a CQ at most.
    pub max_cqe: u32,
    /// CQs can hold back their events.
    pub cq_moderation: bool,
    /// The NIC clock's rate.
    pub clock_khz: u64,
    /// How much faster than that it runs, in parts per million.
    pub clock_drift_ppm: i32,
    /// Which bits of a completion's timestamp count; 0: no timestamps.
    pub timestamp_mask: u64,
    /// Whether CQs can be made whose timestamps are UTC.
    pub realtime_clock: bool,
    /// SRQs at most.
    pub max_srq: u32,
    /// WRs in an SRQ at most.
    pub max_srq_wr: u32,
    /// SGEs of an SRQ's WR at most.
    pub max_srq_sge: u32,
    /// NUMA node of the device, -1: none.
    pub numa_node: i32,
}

impl Default for DeviceCaps {
    fn default() -> Self {
        Self {
            scatter_fcs: true,
            cvlan_stripping: true,
            delay_drop: true,
            delay_drop_timeout_us: 100_000,
            end_padding: true,
            sniffer: true,
            tunnel_offloads: true,
            mpls: true,
            esp: true,
            max_ind_table_log: 11,
            max_wq: 1 << 17,
            max_recv_wr: 32768,
            max_cqe: 4_194_303,
            cq_moderation: true,
            clock_khz: 1_000_000,
            clock_drift_ppm: 0,
            timestamp_mask: u64::MAX,
            realtime_clock: false,
            max_srq: 1 << 16,
            max_srq_wr: 32767,
            max_srq_sge: 31,
            numa_node: -1,
        }
    }
}

/// A port before its wire is known.
#[derive(Debug, Clone, Default)]
struct PortDraft {
    wire: Option<String>,
    rate_gbps: Option<u32>,
    mac: Option<[u8; 6]>,
    netdev: Option<String>,
    mtu: Option<u32>,
    link_up: Option<bool>,
    eswitch_port: Option<String>,
    bond: Option<String>,
}

#[derive(Debug, Default)]
struct DeviceDraft {
    ports: usize,
    place: DevicePlace,
    cpu: Option<usize>,
    faults: Vec<Fault>,
    caps: DeviceCaps,
    port: Vec<PortDraft>,
}

/// Where a key's prefix points: all, one device, or one port of it.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Target {
    All,
    Device(usize),
    Port(usize, usize),
}

/// `mlx5_<N>.port<P>.key`, `mlx5_<N>.key` or `key`.
fn target(path: &str) -> Option<(Target, &str)> {
    let Some(rest) = path.strip_prefix("mlx5_") else {
        return Some((Target::All, path));
    };
    let (device, rest) = rest.split_once('.')?;
    let device = device.parse().ok()?;
    let Some(rest) = rest.strip_prefix("port") else {
        return Some((Target::Device(device), rest));
    };
    match rest.split_once('.') {
        Some((port, key)) => match port.parse().ok()? {
            0 => None,
            port => Some((Target::Port(device, port), key)),
        },
        // `ports` itself begins with `port`.
        None => (rest == "s").then_some((Target::Device(device), "ports")),
    }
}

impl Settings {
    /// The process's settings, read at the first call.
    pub fn global() -> &'static Settings {
        static GLOBAL: OnceLock<Settings> = OnceLock::new();
        GLOBAL.get_or_init(|| match Settings::from_env() {
            Ok(settings) => settings,
            Err(error) => {
                eprintln!("mlx5-model: {error}");
                // The wrong device would be worse than none; atexit handlers belong to a program
                // that has not begun yet.
                crate::preload::leave(2)
            }
        })
    }

    /// What the environment says.
    fn from_env() -> Result<Settings, String> {
        let read = |name: &str| match std::env::var(name) {
            Ok(text) => Ok(text),
            Err(std::env::VarError::NotPresent) => Ok(String::new()),
            Err(std::env::VarError::NotUnicode(_)) => Err(format!("{name} is not UTF-8")),
        };
        Settings::parse(&read(WIRES)?, &read(SET)?)
    }

    /// The settings that two variables' texts mean.
    ///
    /// # Errors
    /// A sentence that names the key, the value, and what would do.
    pub fn parse(wires: &str, set: &str) -> Result<Settings, String> {
        let lines = |text: &str| -> Vec<String> {
            text.lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let (wires, set) = (lines(wires), lines(set));
        let mut settings = Settings {
            enforce_caps: true,
            ..Settings::default()
        };
        let mut drafts: Vec<DeviceDraft> = wires
            .iter()
            .map(|_| DeviceDraft {
                ports: 1,
                ..DeviceDraft::default()
            })
            .collect();
        if drafts.is_empty() {
            return match set.first() {
                None => Ok(settings),
                Some(line) => Err(format!("{SET} has \"{line}\", but {WIRES} names no wire")),
            };
        }
        if drafts.len() > DEVICES {
            return Err(format!(
                "{WIRES} names {} wires; there can be {DEVICES} devices",
                drafts.len()
            ));
        }
        let mut orders = set
            .iter()
            .map(|line| order(line, drafts.len()))
            .collect::<Result<Vec<_>, _>>()?;
        // The more particular order wins, wherever it stands; `ports` comes first of all, for the
        // ports that the others speak of.
        orders.sort_by(|a, b| {
            a.target
                .partial_cmp(&b.target)
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        orders.sort_by_key(|order| order.key.name != "ports");
        for order in orders.iter().take_while(|order| order.key.name == "ports") {
            order.give(&mut settings, &mut drafts)?;
        }
        for (draft, wire) in drafts.iter_mut().zip(&wires) {
            draft.port = vec![PortDraft::default(); draft.ports];
            draft.port[0].wire = Some(wire.clone());
        }
        for order in orders.iter().skip_while(|order| order.key.name == "ports") {
            order.give(&mut settings, &mut drafts)?;
        }
        settings.devices = drafts
            .into_iter()
            .enumerate()
            .map(|(index, draft)| draft.finish(index))
            .collect::<Result<_, _>>()?;
        Ok(settings)
    }
}

/// One `key=value`, understood as far as its key goes.
struct Order<'a> {
    line: &'a str,
    target: Target,
    key: &'static Key,
    value: &'a str,
}

fn order(line: &str, devices: usize) -> Result<Order<'_>, String> {
    let (path, value) = line
        .split_once('=')
        .ok_or_else(|| format!("\"{line}\" in {SET} is not key=value"))?;
    let (path, value) = (path.trim(), value.trim());
    let unknown = || {
        format!(
            "unknown key \"{path}\" in {SET}; for one device it is mlx5_0.<key>, for one port mlx5_0.port1.<key>, and the keys are{}",
            known()
        )
    };
    let (target, name) = target(path).ok_or_else(unknown)?;
    let key = KEYS
        .iter()
        .find(|key| key.name == name)
        .ok_or_else(unknown)?;
    if let Target::Device(device) | Target::Port(device, _) = target
        && device >= devices
    {
        return Err(format!(
            "{path}: there is no mlx5_{device}, for {WIRES} names {devices} wire(s)"
        ));
    }
    match (&key.scope, target) {
        (Scope::Model(_), Target::Device(_) | Target::Port(..)) => Err(format!(
            "{path}: \"{name}\" belongs to the whole model: write {name}={value}"
        )),
        (Scope::Device(_), Target::Port(device, _)) => Err(format!(
            "{path}: \"{name}\" belongs to a device: write mlx5_{device}.{name}={value}"
        )),
        _ => Ok(Order {
            line,
            target,
            key,
            value,
        }),
    }
}

impl Order<'_> {
    fn give(&self, settings: &mut Settings, drafts: &mut [DeviceDraft]) -> Parsed {
        let told = |error: String| format!("{}: {error} (it takes {})", self.line, self.key.takes);
        if let Scope::Model(store) = self.key.scope {
            return store(settings, self.value).map_err(told);
        }
        for (index, draft) in drafts.iter_mut().enumerate() {
            if let Target::Device(device) | Target::Port(device, _) = self.target
                && device != index
            {
                continue;
            }
            match self.key.scope {
                Scope::Model(_) => {}
                Scope::Device(store) => store(draft, self.value).map_err(told)?,
                Scope::Port(store) => {
                    let ports = draft.port.len();
                    let range = match self.target {
                        Target::Port(_, port) if port > ports => {
                            return Err(format!(
                                "{}: mlx5_{index} has {ports} port(s); mlx5_{index}.ports sets how many",
                                self.line
                            ));
                        }
                        Target::Port(_, port) => port - 1..port,
                        _ => 0..ports,
                    };
                    for port in &mut draft.port[range] {
                        store(port, self.value).map_err(told)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl DeviceDraft {
    fn finish(self, index: usize) -> Result<DeviceSettings, String> {
        let ports = self
            .port
            .into_iter()
            .enumerate()
            .map(|(port, draft)| draft.finish(index, port + 1))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(fault) = self
            .faults
            .iter()
            .find(|fault| usize::from(fault.port) > ports.len())
        {
            return Err(format!(
                "mlx5_{index}.fault: there is no port {}; mlx5_{index}.ports sets how many there are",
                fault.port
            ));
        }
        Ok(DeviceSettings {
            // As the driver names it (`mlx5_ib_stage_init_init`).
            name: if self.place.lag {
                format!("mlx5_bond_{index}")
            } else {
                format!("mlx5_{index}")
            },
            place: self.place,
            caps: self.caps,
            ports,
            cpu: self.cpu,
            faults: self.faults,
        })
    }
}

impl PortDraft {
    fn finish(self, device: usize, port: usize) -> Result<PortSettings, String> {
        let text = self.wire.ok_or_else(|| {
            format!("mlx5_{device} has a port {port} without a wire: set mlx5_{device}.port{port}.wire=<wire>")
        })?;
        let wire: WireSpec = text
            .parse()
            .map_err(|error| format!("mlx5_{device} port {port}: {error}"))?;
        let named = self.netdev.or_else(|| wire.netdev().map(str::to_owned));
        let fact = |name: &str, what: &str| {
            let text = std::fs::read_to_string(format!("/sys/class/net/{name}/{what}")).ok()?;
            Some(text.trim().to_owned())
        };
        let real = named.clone().filter(|name| fact(name, "ifindex").is_some());
        let of_real = |what: &str| real.as_deref().and_then(|name| fact(name, what));
        Ok(PortSettings {
            wire,
            wire_text: text,
            rate_gbps: self.rate_gbps.unwrap_or(100),
            mac: self
                .mac
                .or_else(|| mac(&of_real("address")?).ok())
                .unwrap_or([0x0c, 0x42, 0xa1, 0, device as u8, port as u8]),
            mtu: self
                .mtu
                .or_else(|| of_real("mtu")?.parse().ok())
                .unwrap_or(1500),
            ifname: named.unwrap_or_else(|| format!("mlx5_{device}p{port}")),
            netdev: real,
            link_up: self.link_up.unwrap_or(true),
            eswitch_port: self.eswitch_port,
            bond: self.bond,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(set: &str) -> DeviceSettings {
        Settings::parse("loopback", set)
            .expect("good settings")
            .devices
            .remove(0)
    }

    #[test]
    fn nothing_set_is_inert() {
        assert!(Settings::parse("", "").expect("inert").devices.is_empty());
        assert!(Settings::parse("", "rate=10").is_err());
        assert!(Settings::parse(&"loopback\n".repeat(DEVICES), "").is_ok());
        assert!(Settings::parse(&"loopback\n".repeat(DEVICES + 1), "").is_err());
    }

    #[test]
    fn nth_wire_is_nth_device() {
        let settings = Settings::parse("loopback\n\n loopback \n", "").expect("two");
        let names: Vec<_> = settings
            .devices
            .iter()
            .map(|device| device.name.as_str())
            .collect();
        assert_eq!(names, ["mlx5_0", "mlx5_1"]);
        assert!(settings.enforce_caps);
    }

    #[test]
    fn particular_wins_wherever_it_stands() {
        let settings = Settings::parse(
            "loopback\nloopback",
            "mlx5_1.scatter_fcs=true\nscatter_fcs=false\nmlx5_0.port1.rate=10\nrate=25",
        )
        .expect("good");
        assert!(!settings.devices[0].caps.scatter_fcs);
        assert!(settings.devices[1].caps.scatter_fcs);
        assert_eq!(settings.devices[0].ports[0].rate_gbps, 10);
        assert_eq!(settings.devices[1].ports[0].rate_gbps, 25);
    }

    #[test]
    fn second_port_has_its_own_wire() {
        let two = device(
            "mlx5_0.port2.wire=loopback\nmlx5_0.ports=2\nmlx5_0.port2.mac=02:00:00:00:00:07",
        );
        assert_eq!(two.ports.len(), 2);
        assert_eq!(two.ports[1].mac, [2, 0, 0, 0, 0, 7]);
        assert_eq!(two.ports[1].ifname, "mlx5_0p2");
        let error = Settings::parse("loopback", "mlx5_0.ports=2").expect_err("no wire");
        assert!(error.contains("mlx5_0.port2.wire"), "{error}");
    }

    #[test]
    fn errors_name_the_key_and_what_would_do() {
        for (set, says) in [
            ("colour=red", "unknown key \"colour\""),
            ("colour=red", "max_ind_table_log"),
            ("rate=33", "rate=33"),
            ("rate=33", "25, 40"),
            ("mlx5_3.cpu=1", "there is no mlx5_3"),
            ("mlx5_0.caps=all", "whole model"),
            ("mlx5_0.port1.cpu=1", "mlx5_0.cpu=1"),
            ("mlx5_0.port2.rate=10", "mlx5_0.ports"),
            ("mlx5_0.port0.rate=10", "unknown key"),
            ("caps", "not key=value"),
            ("max_ind_table_log=14", "from 0 to 13"),
            ("mac=1:2:3:4:5:6", "no MAC"),
            ("fault=fire@ms=1", "fault=fire@ms=1: \"fire\" is no fault"),
            (
                "mlx5_0.fault=device_fatal:port=2@ms=1",
                "there is no port 2",
            ),
        ] {
            let error = Settings::parse("loopback", set).expect_err(set);
            assert!(error.contains(says), "{set}: {error}");
        }
    }

    #[test]
    fn readme_lists_every_key() {
        let readme = include_str!("../../README.md");
        for key in KEYS {
            let row = format!(
                "| `{}` | {} | {} | {} |",
                key.name, key.takes, key.default, key.means
            );
            assert!(readme.contains(&row), "README.md lacks:\n{row}");
        }
    }
}
