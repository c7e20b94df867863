//! `[[rule]]`: hardware rules that select the frames for `mode = "filtered"`.

use super::ConfigValueError;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};
use wqcap_core::settings::NumberOrText;

/// Configured flow rule of the NIC. A frame must match every field that is present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleConfig {
    /// Name of the flow rule, by which it can be removed while the capture runs.
    pub id: Option<String>,
    /// Destination MAC address that the flow rule matches.
    pub dst_mac: Option<Mac>,
    /// VLAN identifier of a frame's first tag that the flow rule matches.
    pub vlan: Option<u16>,
    /// EtherType after the VLAN tags that the flow rule matches.
    pub ethertype: Option<u16>,
    /// Source IP address or prefix that the flow rule matches.
    pub src: Option<Net>,
    /// Destination IP address or prefix that the flow rule matches.
    pub dst: Option<Net>,
    /// IP protocol, such as TCP, that the flow rule matches.
    pub proto: Option<Proto>,
    /// Source port of TCP or UDP that the flow rule matches.
    pub src_port: Option<u16>,
    /// Destination port of TCP or UDP that the flow rule matches.
    pub dst_port: Option<u16>,
    /// VXLAN network identifier that the flow rule matches.
    pub vni: Option<u32>,
    /// Priority of the flow rule; the NIC tries rules with lower values first.
    pub priority: u16,
    /// Action for frames that match the flow rule.
    pub action: RuleAction,
    /// Queue that receives the flow rule's frames; absent: they are distributed over all queues.
    pub queue: Option<u16>,
}

impl fmt::Display for RuleConfig {
    /// Writes the flow rule's fields in TOML syntax on one line, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = toml::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&text.lines().collect::<Vec<_>>().join(", "))
    }
}

/// Action of a flow rule on matching frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleAction {
    /// Deliver the flow rule's frames to a queue instead of the kernel.
    #[default]
    Capture,
    /// Drop the flow rule's frames in the NIC: neither the kernel nor a queue receives them.
    Drop,
}

/// MAC address that a flow rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = ConfigValueError;

    fn from_str(text: &str) -> Result<Self, ConfigValueError> {
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts
                .next()
                .filter(|p| p.len() == 2)
                .and_then(|p| u8::from_str_radix(p, 16).ok());
            *byte = part.ok_or_else(|| ConfigValueError::NotAMac(text.to_owned()))?;
        }
        match parts.next() {
            None => Ok(Self(bytes)),
            Some(_) => Err(ConfigValueError::MacTooLong(text.to_owned())),
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// IP address with a prefix length, which a flow rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Net {
    /// IP address of the network that a flow rule matches; bits after the prefix are zero.
    pub address: IpAddr,
    /// Number of leading bits of the IP address that must match.
    pub prefix: u8,
}

impl FromStr for Net {
    type Err = ConfigValueError;

    fn from_str(text: &str) -> Result<Self, ConfigValueError> {
        let bad = || ConfigValueError::NotANet(text.to_owned());
        let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = if prefix.is_empty() && !text.ends_with('/') {
            most
        } else {
            prefix.parse().map_err(|_| bad())?
        };
        if prefix > most {
            let text = text.to_owned();
            return Err(ConfigValueError::PrefixTooLong { text, most });
        }
        let net = Self { address, prefix };
        let masked = net.masked();
        if masked != address {
            let text = text.to_owned();
            return Err(ConfigValueError::BitsBeyondPrefix {
                text,
                masked,
                prefix,
            });
        }
        Ok(net)
    }
}

impl Net {
    fn masked(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits() & self.mask_v4()).into(),
            IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() & self.mask_v6()).into(),
        }
    }

    /// Returns the mask of an IPv4 prefix in host byte order.
    #[must_use]
    pub fn mask_v4(&self) -> u32 {
        u32::MAX
            .checked_shl(32 - u32::from(self.prefix.min(32)))
            .unwrap_or(0)
    }

    /// Returns the mask of an IPv6 prefix in host byte order.
    #[must_use]
    pub fn mask_v6(&self) -> u128 {
        u128::MAX
            .checked_shl(128 - u32::from(self.prefix.min(128)))
            .unwrap_or(0)
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// IP protocol that a flow rule matches, by name or IANA number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proto(pub u8);

impl Proto {
    /// IP protocol TCP, which has the number 6.
    pub const TCP: Self = Self(6);
    /// IP protocol UDP, which has the number 17.
    pub const UDP: Self = Self(17);
    const NAMES: [(&'static str, u8); 8] = [
        ("icmp", 1),
        ("tcp", 6),
        ("udp", 17),
        ("gre", 47),
        ("esp", 50),
        ("ah", 51),
        ("icmp6", 58),
        ("sctp", 132),
    ];
}

impl FromStr for Proto {
    type Err = ConfigValueError;

    fn from_str(name: &str) -> Result<Self, ConfigValueError> {
        let known = Self::NAMES.iter().find(|(n, _)| *n == name);
        known
            .map(|(_, number)| Self(*number))
            .ok_or_else(|| ConfigValueError::NotAProtocol {
                text: name.to_owned(),
                known: Self::NAMES.iter().map(|(n, _)| *n).collect(),
            })
    }
}

impl<'de> Deserialize<'de> for Proto {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrText {
            expected: "a protocol: a name such as \"udp\", or a number (0 to 255)",
            number: |n| u8::try_from(n).ok().map(Self),
            text: str::parse,
        })
    }
}

impl Serialize for Proto {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match Self::NAMES.iter().find(|(_, n)| *n == self.0) {
            Some((name, _)) => serializer.serialize_str(name),
            None => serializer.serialize_u8(self.0),
        }
    }
}

// Implements the string conversions for serde with `FromStr` and `Display`.
macro_rules! as_text {
    ($($name:ident)*) => {$(
        impl TryFrom<String> for $name {
            type Error = ConfigValueError;

            fn try_from(text: String) -> Result<Self, ConfigValueError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    )*};
}

as_text! { Mac Net }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_their_masks() {
        let net: Net = "10.0.0.0/8".parse().unwrap();
        assert_eq!(
            (net.mask_v4(), net.to_string()),
            (0xff00_0000, "10.0.0.0/8".into())
        );
        assert_eq!("0.0.0.0/0".parse::<Net>().unwrap().mask_v4(), 0);
        assert_eq!("::1".parse::<Net>().unwrap().mask_v6(), u128::MAX);
        assert!(
            "10.0.0.1/8"
                .parse::<Net>()
                .unwrap_err()
                .to_string()
                .contains("write 10.0.0.0/8")
        );
        for bad in ["", "10.0.0.0/", "10.0.0.0/33", "x/8", "::/129"] {
            assert!(bad.parse::<Net>().is_err(), "{bad}");
        }
    }

    #[test]
    fn macs_and_protocols() {
        assert_eq!(
            "01:80:C2:00:00:0e".parse::<Mac>().unwrap().to_string(),
            "01:80:c2:00:00:0e"
        );
        for bad in ["", "1:2:3:4:5:6", "01:80:c2:00:00", "01:80:c2:00:00:0e:00"] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
        let rule: RuleConfig = toml::from_str("proto = \"sctp\"\nvlan = 7").unwrap();
        assert_eq!(
            (rule.proto, rule.vlan, rule.action),
            (Some(Proto(132)), Some(7), RuleAction::Capture)
        );
        let rule: RuleConfig = toml::from_str("proto = 89").unwrap();
        assert_eq!(
            toml::to_string(&rule).unwrap().lines().next(),
            Some("proto = 89")
        );
        assert!(
            toml::from_str::<RuleConfig>("proto = \"tpc\"")
                .unwrap_err()
                .to_string()
                .contains("tcp")
        );
    }
}
