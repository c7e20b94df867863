//! Check for management traffic on an interface: login sessions and default routes that a capture
//! in mode `steal`, which takes frames from the kernel, would cut off.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    path::Path,
};

/// Addresses outside any local network: one in each half of the IPv4 addresses, because two routes
/// to these halves are a common default route, and two of IPv6. All but the first are reserved for
/// documentation (RFC 5737, RFC 3849, RFC 9637).
const GLOBAL: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8)),
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 1)),
];

/// Returns the reason why a capture of `netdev` in mode `steal`, which takes frames from the
/// kernel, would cut off a login session, or `None` if there is none.
///
/// Bonds, bridges and VLANs over the interface depend on its traffic, so their routes and addresses
/// count as well.
#[must_use]
pub fn reason_against_steal(netdev: &str) -> Option<String> {
    reason(netdev).or_else(|| {
        let upper = interfaces_over(Path::new("/sys"), netdev);
        upper
            .iter()
            .find_map(|it| Some(format!("{netdev} is below {it}, and {}", reason(it)?)))
    })
}

/// Returns the network interfaces stacked over `netdev`: the links `upper_NAME` below `sysfs`
/// (`/sys`), see `Documentation/ABI/testing/sysfs-class-net`.
fn interfaces_over(sysfs: &Path, netdev: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut below = vec![netdev.to_owned()];
    while let Some(netdev) = below.pop() {
        let links = fs::read_dir(sysfs.join("class/net").join(netdev));
        for link in links.into_iter().flatten().flatten() {
            let name = link.file_name();
            let upper = name.to_str().and_then(|it| it.strip_prefix("upper_"));
            if let Some(upper) = upper.filter(|upper| !found.iter().any(|it| it == upper)) {
                found.push(upper.to_owned());
                below.push(upper.to_owned());
            }
        }
    }
    found
}

/// Returns the reason why a capture of the interface `netdev` itself in mode `steal` would cut off
/// a login session; `None`: it would not.
#[expect(clippy::disallowed_methods, reason = "files of /proc")]
fn reason(netdev: &str) -> Option<String> {
    // Names of interfaces may not be UTF-8.
    let read = |path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let addresses: Vec<IpAddr> = if_addrs::get_if_addrs()
        .unwrap_or_default()
        .iter()
        .filter(|i| i.name == netdev)
        .map(if_addrs::Interface::ip)
        .collect();
    if default_route_v4(&read("/proc/net/route"), netdev)
        || default_route_v6(&read("/proc/net/ipv6_route"), netdev)
        || GLOBAL
            .iter()
            .filter_map(source_of)
            .any(|it| addresses.contains(&it))
    {
        return Some(format!(
            "the default route of this machine leads through {netdev}"
        ));
    }
    let session = std::env::var("SSH_CONNECTION")
        .ok()
        .and_then(|c| c.split(' ').nth(2)?.parse::<IpAddr>().ok());
    let (tcp, tcp6) = (read("/proc/net/tcp"), read("/proc/net/tcp6"));
    let sessions = tcp_sessions(&tcp).chain(tcp_sessions(&tcp6));
    let reached = session
        .into_iter()
        .chain(sessions)
        .find(|a| addresses.contains(a))?;
    Some(format!(
        "a login session uses the address {reached} of {netdev}"
    ))
}

/// Returns the local address from which the kernel sends to `destination`, by all of its routing
/// rules and tables; `None`: there is no route. No packet is sent: connect(2) of a UDP socket only
/// looks the route up.
fn source_of(destination: &IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match destination {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // The port of the discard service.
    socket.connect((*destination, 9)).ok()?;
    socket.local_addr().ok().map(|it| it.ip())
}

/// Returns `true` if the routing table `table`, in the form of `/proc/net/route`, has a default
/// route over the interface.
fn default_route_v4(table: &str, netdev: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (name, destination, mask) = (fields.next(), fields.next(), fields.nth(5));
        name == Some(netdev) && destination == Some("00000000") && mask == Some("00000000")
    })
}

/// Returns `true` if the routing table `table`, in the form of `/proc/net/ipv6_route`, has a
/// default route over the interface. The kernel's unreachable default route on `lo` is ignored.
fn default_route_v6(table: &str, netdev: &str) -> bool {
    table.lines().any(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        fields.len() == 10
            && fields[1] == "00"
            && fields[0].bytes().all(|b| b == b'0')
            && fields[9] == netdev
            && netdev != "lo"
    })
}

/// Returns the local addresses of established TCP connections to port 22 (SSH), from a socket table
/// in the form of `/proc/net/tcp` and `tcp6`.
fn tcp_sessions(table: &str) -> impl Iterator<Item = IpAddr> + '_ {
    table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (local, state) = (fields.nth(1)?, fields.nth(1)?);
        let (address, port) = local.split_once(':')?;
        (state == "01" && u16::from_str_radix(port, 16) == Ok(22))
            .then(|| kernel_address(address))
            .flatten()
    })
}

/// Parses an IP address as the kernel prints it: hexadecimal 32-bit words in the host's byte order.
fn kernel_address(text: &str) -> Option<IpAddr> {
    let words: Vec<u32> = text
        .as_bytes()
        .chunks(8)
        .map(|c| u32::from_str_radix(std::str::from_utf8(c).ok()?, 16).ok())
        .collect::<Option<_>>()?;
    match *words.as_slice() {
        [word] => Some(Ipv4Addr::from(word.to_ne_bytes()).into()),
        [a, b, c, d] => {
            let mut bytes = [0; 16];
            for (to, word) in bytes.chunks_exact_mut(4).zip([a, b, c, d]) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            let v6 = Ipv6Addr::from(bytes);
            Some(v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bonds_and_vlans_over_an_interface_are_found() {
        let root = tempfile::tempdir().expect("temporary directory");
        let net = root.path().join("class/net");
        for folder in [
            "ens1/upper_bond0",
            "ens1/statistics",
            "bond0/lower_ens1",
            "bond0/upper_bond0.7",
            "bond0/upper_br0",
            "bond0.7/upper_br0",
            "br0/upper_bond0",
        ] {
            fs::create_dir_all(net.join(folder)).expect("create directory");
        }
        let mut over = interfaces_over(root.path(), "ens1");
        over.sort();
        assert_eq!(over, ["bond0", "bond0.7", "br0"]);
        assert_eq!(interfaces_over(root.path(), "ens2"), [""; 0]);
    }

    #[test]
    fn default_routes_are_found() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                  eth0\t00000000\t0114A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                  eth1\t0014A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert!(default_route_v4(v4, "eth0"));
        assert!(!default_route_v4(v4, "eth1"));
        let zero = "00000000000000000000000000000000";
        let v6 = format!(
            "{zero} 00 {zero} 00 fe80000000000000000000000000000a 00000400 00000001 00000000 00450003 eth0\n{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n"
        );
        assert!(default_route_v6(&v6, "eth0"));
        assert!(!default_route_v6(&v6, "lo"));
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn established_ssh_sessions_are_found() {
        let tcp = "  sl  local_address rem_address   st\n\
                   0: 0100007F:0016 0200007F:C000 01 x\n\
                   1: 0300007F:0050 0200007F:C000 01 x\n\
                   2: 0400007F:0016 00000000:0000 0A x\n\
                   3: 0000000000000000FFFF00000A0B0C0D:0016 0:0 01 x\n";
        let found: Vec<_> = tcp_sessions(tcp).collect();
        assert_eq!(
            found,
            [
                "127.0.0.1".parse::<IpAddr>().unwrap(),
                "13.12.11.10".parse().unwrap()
            ]
        );
    }
}
