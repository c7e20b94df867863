//! Anonymization of the options of IP, TCP and neighbour discovery. Options that are known to
//! contain no address are kept. All others are overwritten with padding options of the same length,
//! so that later bytes keep their offsets.

use super::walk::Walk;

/// Option kinds of IPv4 headers: RFC 791.
mod ipv4 {
    pub(super) const END: u8 = 0;
    pub(super) const NO_OPERATION: u8 = 1;
    /// Kinds of the IPv4 options loose and strict source route.
    pub(super) const ROUTES: [u8; 2] = [131, 137];
    /// Kind of the IPv4 option router alert: RFC 2113.
    pub(super) const ROUTER_ALERT: u8 = 148;
}

/// Option kinds of TCP headers: RFC 9293, RFC 7323, RFC 2018.
mod tcp {
    pub(super) const END: u8 = 0;
    pub(super) const NO_OPERATION: u8 = 1;
    /// Kind and length of the TCP options that the anonymization keeps: maximum segment size,
    /// window scale, SACK permitted, SACK, timestamps.
    pub(super) const KNOWN: [(u8, usize); 8] = [
        (2, 4),
        (3, 3),
        (4, 2),
        (5, 10),
        (5, 18),
        (5, 26),
        (5, 34),
        (8, 10),
    ];
}

/// Option types of IPv6 extension headers: RFC 8200 section 4.2.
mod ipv6 {
    pub(super) const PAD_1: u8 = 0;
    pub(super) const PAD_N: u8 = 1;
    /// Type and data length of the IPv6 options that the anonymization keeps: tunnel encapsulation
    /// limit (RFC 2473), router alert (RFC 2711), jumbo payload (RFC 2675).
    pub(super) const KNOWN: [(u8, usize); 3] = [(4, 1), (5, 2), (0xc2, 4)];
    /// Type of the IPv6 option home address: RFC 6275 section 6.3.
    pub(super) const HOME_ADDRESS: u8 = 0xc9;
}

/// Option types of neighbour discovery: RFC 4861 section 4.6 and others.
mod neighbour {
    pub(super) const SOURCE_LINK: u8 = 1;
    pub(super) const TARGET_LINK: u8 = 2;
    pub(super) const PREFIX: u8 = 3;
    pub(super) const REDIRECTED: u8 = 4;
    pub(super) const MTU: u8 = 5;
    /// Type of the neighbour discovery option route information: RFC 4191.
    pub(super) const ROUTE: u8 = 24;
    /// Type of the neighbour discovery option recursive DNS servers: RFC 8106.
    pub(super) const RESOLVERS: u8 = 25;
}

impl Walk<'_> {
    /// Anonymizes header options that have a kind and a length; `last` and `single` are the two
    /// kinds without a length. `keep` is called for each option and returns `true` if the option is
    /// kept.
    fn options(
        &mut self,
        mut at: usize,
        end: usize,
        [last, single]: [u8; 2],
        mut keep: impl FnMut(u8, &[u8]) -> bool,
    ) {
        while let Some([kind]) = self.bytes(at).filter(|_| at < end) {
            if kind == last {
                break;
            }
            if kind == single {
                at += 1;
                continue;
            }
            let len = self.bytes(at).map_or(0, |[_, len]| usize::from(len));
            let next = at + len;
            if len < 2 || next > end {
                break;
            }
            if !keep(kind, self.bytes_from(at).get(..len).unwrap_or_default()) {
                self.overwrite(at..next, single);
            }
            at = next;
        }
        // Bytes after the last option have no meaning.
        let behind = self.bytes_from(at).get(..end.saturating_sub(at));
        if behind.is_some_and(|it| it.iter().any(|byte| *byte != last)) {
            self.overwrite(at..end, last);
        }
    }

    /// Anonymizes the IPv4 options from offset `at` to `end`. Returns the last address of a source
    /// route that is not yet complete.
    pub(super) fn ipv4_options(&mut self, at: usize, end: usize) -> Option<[u8; 4]> {
        let mut destination = None;
        self.options(at, end, [ipv4::END, ipv4::NO_OPERATION], |kind, option| {
            if ipv4::ROUTES.contains(&kind)
                && let [_, len, pointer, .., a, b, c, d] = *option
                && pointer <= len
            {
                destination = Some([a, b, c, d]);
            }
            kind == ipv4::ROUTER_ALERT && option.len() == 4
        });
        destination
    }

    /// Anonymizes the TCP options from offset `at` to `end` of the frame.
    pub(super) fn tcp_options(&mut self, at: usize, end: usize) {
        self.options(at, end, [tcp::END, tcp::NO_OPERATION], |kind, option| {
            tcp::KNOWN.contains(&(kind, option.len()))
        });
    }

    /// Anonymizes the options of an IPv6 extension header, from offset `at` to `end`. Returns the
    /// home address, if present.
    pub(super) fn ipv6_options(&mut self, mut at: usize, end: usize) -> Option<[u8; 16]> {
        let mut home = None;
        while let Some([kind]) = self.bytes(at).filter(|_| at < end) {
            if kind == ipv6::PAD_1 {
                at += 1;
                continue;
            }
            let next = self.bytes(at).map(|[_, len]| at + 2 + usize::from(len));
            let Some(next) = next.filter(|it| *it <= end) else {
                self.overwrite(at..end, ipv6::PAD_1);
                break;
            };
            if kind == ipv6::HOME_ADDRESS {
                home = self.bytes(at + 2).filter(|_| next == at + 18);
            }
            let content = self.old.get(at + 2..next).unwrap_or_default();
            let is_padding = kind == ipv6::PAD_N && content.iter().all(|it| *it == 0);
            if !is_padding && !ipv6::KNOWN.contains(&(kind, content.len())) {
                self.write(at, &[ipv6::PAD_N]);
                self.overwrite(at + 2..next, 0);
            }
            at = next;
        }
        home
    }

    /// Anonymizes the options of neighbour discovery from offset `at` on, up to the last complete
    /// one. Returns the offset of a redirected packet, if present.
    pub(super) fn neighbour_options(&mut self, mut at: usize) -> Option<usize> {
        while let Some([kind, words]) = self.bytes(at) {
            let end = at + usize::from(words) * 8;
            if end == at || end > self.end {
                break;
            }
            match kind {
                neighbour::SOURCE_LINK | neighbour::TARGET_LINK if words == 1 => {
                    self.replace_mac(at + 2)?;
                }
                neighbour::PREFIX if words == 4 => {
                    let [len] = self.bytes(at + 2)?;
                    self.replace_prefix(at + 16, end, len);
                }
                neighbour::REDIRECTED => {
                    self.keep_all(at + 8)?;
                    return Some(at + 8);
                }
                neighbour::MTU if words == 1 => {}
                neighbour::ROUTE if words <= 3 => {
                    let [len] = self.bytes(at + 2)?;
                    self.replace_prefix(at + 8, end, len);
                }
                neighbour::RESOLVERS => {
                    for address in (at + 8..end.saturating_sub(15)).step_by(16) {
                        self.replace_v6(address)?;
                    }
                    if words % 2 == 0 {
                        // 8 bytes remain, which are half an address.
                        self.overwrite(end - 8..end, 0);
                    }
                }
                _ => self.overwrite(at + 2..end, 0),
            }
            self.keep_all(end)?;
            at = end;
        }
        None
    }

    /// Replaces an IPv6 prefix of `len` bits; its bytes in the frame are from `at` to `end`, the
    /// others are 0.
    fn replace_prefix(&mut self, at: usize, end: usize, len: u8) {
        let there = self.old.get(at..end).unwrap_or_default();
        let mut prefix = [0; 16];
        let most = there.len().min(prefix.len());
        prefix[..most].copy_from_slice(&there[..most]);
        let replaced = self.ciphers.addresses.v6_prefix(prefix, len);
        self.write(at, &replaced[..most]);
    }
}
