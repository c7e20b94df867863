//! Parser of the two environment variables that hold the settings.

use std::cmp::Ordering;
use std::env::{self, VarError};

use super::device::Settings;
use super::draft::{DeviceDraft, PortDraft};
use super::environment::{MAX_DEVICES, SET, WIRES};
use super::error::{ModelSettingsError, ModelValueError};
use super::keys::{KEYS, KeyScope, SettingKey, default_device, table};

/// Part of the model that a setting key's prefix selects: all devices, one device, or one port.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Prefix {
    All,
    Device(usize),
    Port(usize, usize),
}

/// Splits the setting key `mlx5_<N>.port<P>.key`, `mlx5_<N>.key` or `key` into prefix and name.
fn split_prefix(path: &str) -> Option<(Prefix, &str)> {
    let Some(rest) = path.strip_prefix("mlx5_") else {
        return Some((Prefix::All, path));
    };
    let (device, rest) = rest.split_once('.')?;
    let device = device.parse().ok()?;
    let Some(rest) = rest.strip_prefix("port") else {
        return Some((Prefix::Device(device), rest));
    };
    match rest.split_once('.') {
        Some((port, key)) => match port.parse().ok()? {
            0 => None,
            port => Some((Prefix::Port(device, port), key)),
        },
        // The key `ports` itself begins with `port`.
        None => (rest == "s").then_some((Prefix::Device(device), "ports")),
    }
}

impl Settings {
    /// Reads the model's settings from the environment.
    pub fn from_env() -> Result<Settings, ModelSettingsError> {
        let read = |name: &'static str| match env::var(name) {
            Ok(value) => Ok(value),
            Err(VarError::NotPresent) => Ok(String::new()),
            Err(VarError::NotUnicode(_)) => Err(ModelSettingsError::NotUtf8(name)),
        };
        Settings::parse(&read(WIRES)?, &read(SET)?)
    }

    /// Parses the model's settings from the values of the two environment variables. An error
    /// states the key, the value and the valid values.
    pub fn parse(wires: &str, set: &str) -> Result<Settings, ModelSettingsError> {
        let (wires, set) = (lines(wires), lines(set));
        let mut settings = Settings {
            enforce_caps: true,
            ..Settings::default()
        };
        if wires.is_empty() {
            return match set.first() {
                None => Ok(settings),
                Some(line) => Err(ModelSettingsError::NoWires((*line).to_owned())),
            };
        }
        if wires.len() > MAX_DEVICES {
            return Err(ModelSettingsError::TooManyWires(wires.len()));
        }
        let mut assignments = set
            .iter()
            .map(|line| Assignment::parse(line, wires.len()))
            .collect::<Result<Vec<_>, _>>()?;
        // The more specific assignment wins, in any order. `ports` is applied first, because other
        // keys may name those ports.
        assignments.sort_by(|a, b| a.prefix.partial_cmp(&b.prefix).unwrap_or(Ordering::Equal));
        let (of_ports, others): (Vec<_>, Vec<_>) = assignments
            .into_iter()
            .partition(|assignment| assignment.key.name == "ports");
        let mut drafts: Vec<_> = wires.iter().map(|_| default_device()).collect();
        for assignment in of_ports {
            assignment.apply(&mut settings, &mut drafts)?;
        }
        for (draft, wire) in drafts.iter_mut().zip(wires) {
            draft.port = vec![PortDraft::default(); draft.ports];
            draft.port[0].wire = Some(wire.to_owned());
        }
        for assignment in others {
            assignment.apply(&mut settings, &mut drafts)?;
        }
        settings.devices = drafts
            .into_iter()
            .enumerate()
            .map(|(index, draft)| draft.finish(index))
            .collect::<Result<_, _>>()?;
        Ok(settings)
    }
}

fn lines(value: &str) -> Vec<&str> {
    let lines = value.lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).collect()
}

/// One `key=value` line of the settings with a known key and a value that is not parsed yet.
struct Assignment<'a> {
    line: &'a str,
    prefix: Prefix,
    key: &'static SettingKey,
    value: &'a str,
}

impl<'a> Assignment<'a> {
    fn parse(line: &'a str, devices: usize) -> Result<Self, ModelSettingsError> {
        let (path, value) = line
            .split_once('=')
            .ok_or_else(|| ModelSettingsError::NotAnAssignment(line.to_owned()))?;
        let (path, value) = (path.trim(), value.trim());
        let unknown = || ModelSettingsError::UnknownKey {
            key: path.to_owned(),
            keys: table(),
        };
        let (prefix, name) = split_prefix(path).ok_or_else(unknown)?;
        let key = KEYS
            .iter()
            .find(|key| key.name == name)
            .ok_or_else(unknown)?;
        if let Prefix::Device(device) | Prefix::Port(device, _) = prefix
            && device >= devices
        {
            return Err(ModelSettingsError::NoSuchDevice {
                path: path.to_owned(),
                device,
                devices,
            });
        }
        let too_narrow = |scope, instead| {
            Err(ModelSettingsError::TooNarrow {
                path: path.to_owned(),
                name: key.name,
                scope,
                instead,
            })
        };
        match (&key.scope, prefix) {
            (KeyScope::Model(_), Prefix::Device(_) | Prefix::Port(..)) => {
                too_narrow("the whole model", format!("{name}={value}"))
            }
            (KeyScope::Device(_), Prefix::Port(device, _)) => {
                too_narrow("a device", format!("mlx5_{device}.{name}={value}"))
            }
            _ => Ok(Self {
                line,
                prefix,
                key,
                value,
            }),
        }
    }

    /// Parses the value of a settings line and stores it in the draft of every device or port that
    /// the key's prefix selects.
    fn apply(
        &self,
        settings: &mut Settings,
        drafts: &mut [DeviceDraft],
    ) -> Result<(), ModelSettingsError> {
        let invalid = |source: ModelValueError| ModelSettingsError::Value {
            line: self.line.to_owned(),
            source: source.into(),
            takes: self.key.takes,
        };
        let (devices, port) = match self.prefix {
            Prefix::All => (0..drafts.len(), None),
            Prefix::Device(device) => (device..device + 1, None),
            Prefix::Port(device, port) => (device..device + 1, Some(port)),
        };
        match self.key.scope {
            KeyScope::Model(store) => store(settings, self.value).map_err(invalid)?,
            KeyScope::Device(store) => drafts[devices]
                .iter_mut()
                .try_for_each(|draft| store(draft, self.value))
                .map_err(invalid)?,
            KeyScope::Port(store) => {
                for index in devices {
                    let ports = &mut drafts[index].port;
                    let range = match port {
                        Some(port) if port > ports.len() => {
                            return Err(ModelSettingsError::NoSuchPort {
                                line: self.line.to_owned(),
                                device: index,
                                ports: ports.len(),
                            });
                        }
                        Some(port) => port - 1..port,
                        None => 0..ports.len(),
                    };
                    for port in &mut ports[range] {
                        store(port, self.value).map_err(invalid)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::DeviceSettings;

    fn device(set: &str) -> DeviceSettings {
        Settings::parse("loopback", set)
            .expect("valid settings")
            .devices
            .remove(0)
    }

    #[test]
    fn no_settings_are_inert() {
        assert!(
            Settings::parse("", "")
                .expect("empty settings are valid")
                .devices
                .is_empty()
        );
        assert!(Settings::parse("", "rate=10").is_err());
        assert!(Settings::parse(&"loopback\n".repeat(MAX_DEVICES), "").is_ok());
        assert!(Settings::parse(&"loopback\n".repeat(MAX_DEVICES + 1), "").is_err());
    }

    #[test]
    fn nth_wire_is_nth_device() {
        let settings = Settings::parse("loopback\n\n loopback \n", "").expect("valid settings");
        let names: Vec<_> = settings
            .devices
            .iter()
            .map(|device| device.name.as_str())
            .collect();
        assert_eq!(names, ["mlx5_0", "mlx5_1"]);
        assert!(settings.enforce_caps);
    }

    #[test]
    fn the_more_specific_key_wins_in_any_order() {
        let settings = Settings::parse(
            "loopback\nloopback",
            "mlx5_1.scatter_fcs=true\nscatter_fcs=false\nmlx5_0.port1.rate=10\nrate=25",
        )
        .expect("valid settings");
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
        let error = Settings::parse("loopback", "mlx5_0.ports=2").expect_err("a port has no wire");
        let error = error.to_string();
        assert!(error.contains("mlx5_0.port2.wire"), "{error}");
    }

    #[test]
    fn errors_name_the_key_and_the_valid_values() {
        for (set, expected) in [
            ("colour=red", "unknown key \"colour\""),
            ("colour=red", "max_ind_table_log"),
            ("rate=33", "rate=33"),
            ("rate=33", "25, 40"),
            ("mlx5_3.cpu=1", "mlx5_3 does not exist"),
            ("mlx5_0.caps=all", "whole model"),
            ("mlx5_0.port1.cpu=1", "mlx5_0.cpu=1"),
            ("mlx5_0.port2.rate=10", "mlx5_0.ports"),
            ("mlx5_0.port0.rate=10", "unknown key"),
            ("caps", "write key=value"),
            ("max_ind_table_log=14", "0 to 13"),
            ("mac=1:2:3:4:5:6", "not a MAC"),
            (
                "fault=fire@ms=1",
                "fault=fire@ms=1: \"fire\" is not a fault",
            ),
            (
                "mlx5_0.fault=device_fatal:port=2@ms=1",
                "port 2 does not exist",
            ),
        ] {
            let error = Settings::parse("loopback", set).expect_err(set).to_string();
            assert!(error.contains(expected), "{set}: {error}");
        }
    }

    #[test]
    fn readme_lists_every_key() {
        let readme = include_str!("../../README.md");
        for key in KEYS {
            let row = format!(
                "| `{}` | {} | {} | {} |",
                key.name, key.takes, key.default, key.meaning
            );
            assert!(readme.contains(&row), "README.md lacks:\n{row}");
        }
    }
}
