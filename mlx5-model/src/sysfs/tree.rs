//! Writer of the device files, laid out as the kernel lays out those of a ConnectX-5: the device
//! below `sys/devices`, and links to it from the classes. So `readlink`, `..` and `realpath` lead
//! to the same places as on hardware.
//!
//! Invariant: only constants, settings and facts of the machine are written, never a value that can
//! change.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::abi;
use crate::device::counters::{CounterGroup, FILES};
use crate::process::real;
use crate::settings::{DeviceSettings, GIDS, PortSettings, Settings};

use super::address::{PCI_DOMAIN, pci_address, virtual_ifindex};
use super::live::DELAY_DROP_FILES;

/// PCI address of the physical function when the model's devices are virtual functions; it is above
/// the addresses of all devices.
const PHYSICAL: &str = "15b3:ff:00.0";

/// Memory regions of a PCI function: start, end and flags of six regions and of the ROM. The model
/// maps none (drivers/pci/pci-sysfs.c, resource_show).
const RESOURCE: [&str; 7] = ["0x0000000000000000 0x0000000000000000 0x0000000000000000"; 7];

/// Writer of files below the run directory's root; it creates directories as needed.
struct Tree {
    root: PathBuf,
    created: BTreeSet<PathBuf>,
}

impl Tree {
    fn prepare(&mut self, path: &str) -> io::Result<PathBuf> {
        let path = self.root.join(path);
        let parent = path.parent().unwrap_or(&self.root);
        if !self.created.contains(parent) {
            fs::create_dir_all(parent)?;
            self.created.insert(parent.to_owned());
        }
        Ok(path)
    }

    /// Writes a file of the run directory with `line` and a newline.
    fn write_line(&mut self, path: &str, line: impl AsRef<str>) -> io::Result<()> {
        let path = self.prepare(path)?;
        fs::write(path, format!("{}\n", line.as_ref()))
    }

    /// Writes several files into one directory of the run directory, each with a newline at its
    /// end.
    fn write_lines(&mut self, directory: &str, files: &[(&str, &str)]) -> io::Result<()> {
        files
            .iter()
            .try_for_each(|(name, line)| self.write_line(&format!("{directory}/{name}"), line))
    }

    fn link(&mut self, path: &str, to: &str) -> io::Result<()> {
        symlink(to, self.prepare(path)?)
    }

    fn directory(&mut self, path: &str) -> io::Result<()> {
        fs::create_dir_all(self.root.join(path))
    }
}

/// Writes the directories `sys` and `dev` of the run directory below `root`.
pub fn write(root: &Path, settings: &Settings) -> io::Result<()> {
    let mut tree = Tree {
        root: root.to_owned(),
        created: BTreeSet::new(),
    };
    // The descriptor of a uverbs device is one of /dev/zero, and libibverbs compares this number
    // with fstat.
    let zero = fs::metadata("/dev/zero")?.rdev();
    let dev = format!("{}:{}", libc::major(zero), libc::minor(zero));
    // IB_USER_VERBS_ABI_VERSION, rdma/ib_user_verbs.h.
    tree.write_line(
        "sys/class/infiniband_verbs/abi_version",
        abi::IB_USER_VERBS_ABI_VERSION.to_string(),
    )?;
    tree.directory("sys/class/infiniband")?;
    tree.write_line("sys/bus/pci/drivers/mlx5_core/module/version", "5.0-0")?;
    machine_devices(&mut tree)?;
    for (number, device) in settings.devices.iter().enumerate() {
        pci(&mut tree, number, device)?;
        verbs(&mut tree, number, device, &dev)?;
        infiniband(&mut tree, number, device)?;
        debug(&mut tree, number, device)?;
        for (port, number_of) in device.ports.iter().zip(1..) {
            self::port(&mut tree, number, device, port, number_of)?;
            netdev(&mut tree, number, device, port, number_of)?;
        }
        representors(&mut tree, number, device)?;
    }
    Ok(())
}

/// Returns the modelled device's directory, relative to the run directory's root.
fn device_dir(number: usize) -> String {
    format!("sys/devices/pci{PCI_DOMAIN}:00/{}", pci_address(number))
}

/// Returns the target of a link to the modelled device's directory, relative to the directory of a
/// class in sysfs.
fn class_link(dir: &str) -> String {
    format!("../../{}", dir.trim_start_matches("sys/"))
}

/// Writes links to the machine's own devices on the PCI bus into the run directory, so that a
/// listing of the bus, such as DPDK's, shows all devices.
fn machine_devices(tree: &mut Tree) -> io::Result<()> {
    const LISTING: &str = "/sys/bus/pci/devices";
    let Ok(listing) = fs::read_dir(LISTING) else {
        // A machine without a PCI bus: many containers and virtual machines.
        return Ok(());
    };
    for device in listing.flatten() {
        let (Ok(to), Some(name)) = (
            device.path().canonicalize(),
            device.file_name().to_str().map(str::to_owned),
        ) else {
            continue;
        };
        tree.link(&format!("{}/{name}", &LISTING[1..]), &to.to_string_lossy())?;
    }
    Ok(())
}

/// Writes the sysfs files of a device's PCI function: drivers/pci/pci-sysfs.c.
fn pci(tree: &mut Tree, number: usize, device: &DeviceSettings) -> io::Result<()> {
    let dir = device_dir(number);
    let address = pci_address(number);
    let node = device.caps.numa_node;
    let (cpus, list) = local_cpus(node);
    tree.write_lines(
        &dir,
        &[
            ("vendor", "0x15b3"),
            ("device", "0x1017"),
            ("subsystem_vendor", "0x15b3"),
            ("subsystem_device", "0x0007"),
            ("class", "0x020000"),
            ("revision", "0x00"),
            // Makes libmlx5 the provider, for a ConnectX-5.
            ("modalias", "pci:v000015B3d00001017sv000015B3sd00000007bc02sc00i00"),
            ("numa_node", &node.to_string()),
            ("local_cpus", &cpus),
            ("local_cpulist", &list),
            ("current_link_speed", "8.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_speed", "8.0 GT/s PCIe"),
            ("max_link_width", "16"),
            ("enable", "1"),
            ("resource", &RESOURCE.join("\n")),
            ("sriov_totalvfs", if device.topology.vfs > 0 { "127" } else { "0" }),
            ("sriov_numvfs", &device.topology.vfs.to_string()),
            (
                "uevent",
                &format!("DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:1017\nPCI_SUBSYS_ID=15B3:0007\nPCI_SLOT_NAME={address}"),
            ),
            // Files that only the model has: a program can detect the model by them, and whether
            // its wire ends.
            ("model/wire", device.ports[0].wire.text()),
            ("model/finite", finite(&device.ports[0])),
        ],
    )?;
    if device.topology.is_vf {
        // The physical function belongs to the host or another guest: its directory exists and is
        // empty.
        tree.directory(&format!("sys/devices/pci{PCI_DOMAIN}:00/{PHYSICAL}"))?;
        tree.link(&format!("{dir}/physfn"), &format!("../{PHYSICAL}"))?;
    }
    tree.link(
        &format!("{dir}/driver"),
        "../../../bus/pci/drivers/mlx5_core",
    )?;
    tree.link(&format!("{dir}/subsystem"), "../../../bus/pci")?;
    tree.link(
        &format!("sys/bus/pci/devices/{address}"),
        &format!("../../../devices/pci{PCI_DOMAIN}:00/{address}"),
    )
}

fn finite(port: &PortSettings) -> &'static str {
    if port.wire.finite() { "1" } else { "0" }
}

/// Returns the CPUs of a NUMA node as mask and as list; those of all nodes if the node does not
/// exist.
fn local_cpus(node: i32) -> (String, String) {
    let of_node =
        |what: &str| fs::read_to_string(format!("/sys/devices/system/node/node{node}/{what}"));
    if let (Ok(mask), Ok(list)) = (of_node("cpumap"), of_node("cpulist")) {
        return (mask.trim().to_owned(), list.trim().to_owned());
    }
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let list = if list.trim().is_empty() {
        "0"
    } else {
        list.trim()
    };
    (mask_of(list), list.to_owned())
}

/// Converts a CPU list such as `0-2,5` to the kernel's CPU mask: 32-bit words in hexadecimal, the
/// highest first.
fn mask_of(list: &str) -> String {
    let mut words = vec![0u32];
    for range in list.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (Ok(low), Ok(high)) = (low.parse::<usize>(), high.parse::<usize>()) else {
            continue;
        };
        for cpu in low..=high.min(8191) {
            if cpu / 32 >= words.len() {
                words.resize(cpu / 32 + 1, 0);
            }
            words[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    words
        .iter()
        .rev()
        .map(|word| format!("{word:08x}"))
        .collect::<Vec<_>>()
        .join(",")
}

/// Writes the sysfs directory `infiniband_verbs/uverbs<N>` and the node in `/dev`:
/// drivers/infiniband/core/uverbs_main.c.
fn verbs(tree: &mut Tree, number: usize, device: &DeviceSettings, dev: &str) -> io::Result<()> {
    let dir = format!("{}/infiniband_verbs/uverbs{number}", device_dir(number));
    tree.write_lines(
        &dir,
        &[("ibdev", &device.name), ("dev", dev), ("abi_version", "1")],
    )?;
    tree.write_line(
        &format!("{dir}/uevent"),
        format!("DEVNAME=infiniband/uverbs{number}"),
    )?;
    tree.link(&format!("{dir}/device"), "../..")?;
    tree.link(
        &format!("sys/class/infiniband_verbs/uverbs{number}"),
        &class_link(&dir),
    )?;
    tree.link(&format!("dev/infiniband/uverbs{number}"), "/dev/zero")
}

/// Writes the sysfs directory `infiniband/mlx5_<N>`: drivers/infiniband/core/sysfs.c and
/// drivers/infiniband/hw/mlx5/main.c.
fn infiniband(tree: &mut Tree, number: usize, device: &DeviceSettings) -> io::Result<()> {
    let dir = format!("{}/infiniband/{}", device_dir(number), device.name);
    let guid = quads(&device.node_guid(number).to_be_bytes());
    tree.write_lines(
        &dir,
        &[
            ("node_type", "1: CA"),
            ("node_guid", &guid),
            ("sys_image_guid", &guid),
            ("node_desc", &format!("{} software model", device.name)),
            ("fw_ver", "16.35.4030"),
            ("hca_type", "MT4119"),
            ("hw_rev", "0"),
            ("board_id", "MT_0000000012"),
            ("uevent", &format!("NAME={}", device.name)),
        ],
    )?;
    tree.link(&format!("{dir}/device"), "../..")?;
    tree.link(
        &format!("sys/class/infiniband/{}", device.name),
        &class_link(&dir),
    )
}

/// Writes the device's files of debugfs: of delay drop, drivers/infiniband/hw/mlx5/main.c
/// (`delay_drop_debugfs_init`); of an active LAG, mlx5/core/lag/debugfs.c
/// (`mlx5_ldev_add_debugfs`).
fn debug(tree: &mut Tree, number: usize, device: &DeviceSettings) -> io::Result<()> {
    let dir = format!("sys/kernel/debug/mlx5/{}/delay_drop", pci_address(number));
    let timeout = device.caps.delay_drop_timeout_us.to_string();
    tree.write_line(&format!("{dir}/timeout"), timeout)?;
    for (name, _) in DELAY_DROP_FILES {
        tree.write_line(&format!("{dir}/{name}"), "0")?;
    }
    if device.topology.lag {
        let address = pci_address(number);
        let members = format!("{address}\n{}1", address.trim_end_matches('0'));
        tree.write_lines(
            &format!("sys/kernel/debug/mlx5/{address}/lag"),
            &[("state", "active"), ("type", "roce"), ("members", &members)],
        )?;
    }
    Ok(())
}

/// Formats bytes as groups of four hexadecimal digits, as sysfs writes GUIDs and GIDs.
fn quads(bytes: &[u8]) -> String {
    bytes
        .chunks(2)
        .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]))
        .collect::<Vec<_>>()
        .join(":")
}

/// Writes the sysfs directory `ports/<P>` of a device: drivers/infiniband/core/sysfs.c.
fn port(
    tree: &mut Tree,
    number: usize,
    device: &DeviceSettings,
    port: &PortSettings,
    number_of: u8,
) -> io::Result<()> {
    let dir = format!(
        "{}/infiniband/{}/ports/{number_of}",
        device_dir(number),
        device.name
    );
    tree.write_lines(
        &dir,
        &[
            ("state", ""),
            ("phys_state", ""),
            ("rate", port.rate().3),
            ("link_layer", "Ethernet"),
            ("lid", "0x0"),
            ("lid_mask_count", "0"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
            ("cap_mask", "0x04010000"),
            ("pkeys/0", "0xffff"),
            // Maximum age of a hardware counter's value in milliseconds; in the model a value is
            // always current.
            ("hw_counters/lifespan", "10"),
            ("model_wire", port.wire.text()),
            ("model_finite", finite(port)),
        ],
    )?;
    let is_there = |name: &str| !name.starts_with("wire_dropped_") || port.wire.is_live();
    for (group, name, _) in FILES.iter().filter(|it| is_there(it.1)) {
        let dir = if *group == CounterGroup::Queue && device.topology.switchdev {
            format!("{}/infiniband/{}", device_dir(number), device.name)
        } else {
            dir.clone()
        };
        tree.write_line(&format!("{dir}/{}/{name}", group.directory()), "0")?;
    }
    tree.directory(&format!("{dir}/gids"))?;
    for (index, gid) in gids(port)[..device.gids()].iter().enumerate() {
        tree.write_line(&format!("{dir}/gids/{index}"), quads(gid))?;
        let kind = if index % 2 == 0 {
            "IB/RoCE v1"
        } else {
            "RoCE v2"
        };
        tree.write_line(&format!("{dir}/gid_attrs/types/{index}"), kind)?;
        tree.write_line(&format!("{dir}/gid_attrs/ndevs/{index}"), &port.ifname)?;
    }
    Ok(())
}

/// Returns the GID table of a port: link-local GIDs derived from the MAC (RFC 4291, appendix A),
/// then the IPv4-mapped ones.
fn gids(port: &PortSettings) -> [[u8; 16]; GIDS] {
    let m = port.mac;
    let mut local = [0; 16];
    local[..2].copy_from_slice(&[0xfe, 0x80]);
    local[8..].copy_from_slice(&[m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]]);
    let mut mapped = [0; 16];
    if let Some(address) = port.netdev.as_deref().and_then(ipv4) {
        mapped[10..12].fill(0xff);
        mapped[12..].copy_from_slice(&address);
    }
    [local, local, mapped, mapped]
}

/// Returns the first IPv4 address of a network interface: netdevice(7), `SIOCGIFADDR`.
fn ipv4(interface: &str) -> Option<[u8; 4]> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // struct ifreq: 16 bytes of name, then a sockaddr_in with the address at byte 4.
    let mut request = [0u8; 40];
    request[..interface.len().min(15)]
        .copy_from_slice(&interface.as_bytes()[..interface.len().min(15)]);
    real::ioctl(
        socket.as_raw_fd(),
        libc::SIOCGIFADDR,
        request.as_mut_ptr().cast(),
    )
    .ok()?;
    request[20..24].try_into().ok()
}

/// Writes the sysfs directory `device/net/<interface>` for a real or a virtual interface:
/// net/core/net-sysfs.c.
fn netdev(
    tree: &mut Tree,
    number: usize,
    device: &DeviceSettings,
    port: &PortSettings,
    number_of: u8,
) -> io::Result<()> {
    let dir = format!("{}/net/{}", device_dir(number), port.ifname);
    if let Some(real) = &port.netdev {
        return tree.link(&dir, &format!("/sys/class/net/{real}"));
    }
    let index = virtual_ifindex(number, number_of).to_string();
    let mac = port.mac.map(|byte| format!("{byte:02x}")).join(":");
    tree.write_lines(
        &dir,
        &[
            ("address", &mac),
            ("addr_len", "6"),
            ("broadcast", "ff:ff:ff:ff:ff:ff"),
            ("ifindex", &index),
            ("iflink", &index),
            ("mtu", &port.mtu.to_string()),
            ("speed", &(port.rate_gbps * 1000).to_string()),
            ("duplex", "full"),
            ("type", "1"),
            ("flags", "0x1003"),
            ("dev_id", "0x0"),
            ("dev_port", &(number_of - 1).to_string()),
            ("carrier", ""),
            ("operstate", ""),
            (
                "uevent",
                &format!("INTERFACE={}\nIFINDEX={index}", port.ifname),
            ),
        ],
    )?;
    let uplink = || format!("p{}", number_of - 1);
    let eswitch_port = port.eswitch_port.clone();
    let eswitch_port = eswitch_port.or_else(|| device.topology.switchdev.then(uplink));
    memberships(tree, &dir, eswitch_port.as_deref(), port.bond.as_deref())?;
    tree.link(&format!("{dir}/device"), "../..")?;
    tree.link(&format!("sys/class/net/{}", port.ifname), &class_link(&dir))
}

/// Writes the sysfs files of a virtual netdev's e-switch port and bond:
/// Documentation/networking/switchdev.rst, drivers/net/bonding/bond_sysfs.c.
fn memberships(
    tree: &mut Tree,
    dir: &str,
    eswitch_port: Option<&str>,
    bond: Option<&str>,
) -> io::Result<()> {
    if let Some(name) = eswitch_port {
        tree.write_line(&format!("{dir}/phys_switch_id"), "15b300feff15b300")?;
        tree.write_line(&format!("{dir}/phys_port_name"), name)?;
    }
    if let Some(bond) = bond {
        let master = format!("virtual/net/{bond}");
        tree.write_line(&format!("sys/devices/{master}/bonding/mode"), "802.3ad 4")?;
        tree.link(&format!("{dir}/master"), &format!("../../../../{master}"))?;
    }
    Ok(())
}

/// Writes the sysfs directories of the netdevs that represent the virtual functions in switchdev
/// mode. They share `device/net` with the uplink, because they belong to the same PCI function
/// (drivers/net/ethernet/mellanox/mlx5/core/en_rep.c). No frame passes through them.
fn representors(tree: &mut Tree, number: usize, device: &DeviceSettings) -> io::Result<()> {
    let vfs = if device.topology.switchdev {
        device.topology.vfs
    } else {
        0
    };
    for vf in 0..vfs {
        let dir = format!("{}/net/mlx5_{number}vf{vf}", device_dir(number));
        tree.write_lines(
            &dir,
            &[
                ("addr_len", "6"),
                ("mtu", "1500"),
                ("type", "1"),
                ("flags", "0x1003"),
                ("operstate", "up"),
            ],
        )?;
        memberships(tree, &dir, Some(&format!("pf0vf{vf}")), None)?;
        tree.link(&format!("{dir}/device"), "../..")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_the_kernels_format() {
        assert_eq!(mask_of("0-1"), "00000003");
        assert_eq!(mask_of("0,2-3,33"), "00000002,0000000d");
    }

    #[test]
    fn files_that_libibverbs_reads_exist() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let settings = Settings::parse(
            "loopback\nloopback",
            "mlx5_1.ports=2\nmlx5_1.port2.wire=loopback\nrate=25",
        )
        .expect("valid settings");
        write(temp.path(), &settings).expect("the tree is written");
        let class = temp.path().join("sys/class");
        let read = |path: &str| fs::read_to_string(class.join(path)).expect(path);
        assert_eq!(read("infiniband_verbs/abi_version"), "6\n");
        assert_eq!(read("infiniband_verbs/uverbs1/ibdev"), "mlx5_1\n");
        assert!(
            read("infiniband_verbs/uverbs0/device/modalias")
                .starts_with("pci:v000015B3d00001017sv")
        );
        assert_eq!(read("infiniband/mlx5_0/node_guid"), "0c42:a103:0000:0001\n");
        assert_eq!(read("infiniband/mlx5_1/node_guid"), "0c42:a103:0100:0101\n");
        assert_eq!(
            read("infiniband/mlx5_1/ports/2/rate"),
            "25 Gb/sec (1X EDR)\n"
        );
        assert_eq!(
            read("infiniband/mlx5_1/ports/2/gids/1"),
            "fe80:0000:0000:0000:0e42:a1ff:fe00:0102\n"
        );
        assert_eq!(
            read("infiniband/mlx5_1/device/net/mlx5_1p2/address"),
            "0c:42:a1:00:01:02\n"
        );
        assert_eq!(read("infiniband/mlx5_1/device/model/finite"), "0\n");
        assert_eq!(
            fs::canonicalize(class.join("infiniband/mlx5_1/device")).expect("the link resolves"),
            fs::canonicalize(temp.path().join("sys/bus/pci/devices/15b3:02:00.0"))
                .expect("the link resolves")
        );
        assert!(fs::metadata(temp.path().join("dev/infiniband/uverbs1")).is_ok());
    }

    #[test]
    fn switchdev_mode_has_no_gids_and_several_interfaces() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let settings =
            Settings::parse("loopback", "switchdev=true\nvfs=2").expect("valid settings");
        write(temp.path(), &settings).expect("the tree is written");
        let device = temp.path().join("sys/class/infiniband/mlx5_0");
        let names = |dir: &str| {
            let entries = fs::read_dir(device.join(dir)).expect(dir);
            let name = |it: io::Result<fs::DirEntry>| it.expect(dir).file_name();
            let mut names: Vec<_> = entries.map(name).collect();
            names.sort();
            names
        };
        assert_eq!(names("ports/1/gids"), [""; 0]);
        assert!(!device.join("ports/1/gid_attrs/ndevs/0").exists());
        let netdevs = ["mlx5_0p1", "mlx5_0vf0", "mlx5_0vf1"];
        assert_eq!(names("device/net"), netdevs);
        let ports = netdevs.map(|it| device.join("device/net").join(it).join("phys_port_name"));
        let ports = ports.map(|it| fs::read_to_string(it).expect("a port name"));
        assert_eq!(ports, ["p0\n", "pf0vf0\n", "pf0vf1\n"]);
    }
}
