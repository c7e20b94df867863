//! Errors of the model's settings.

use super::environment::{MAX_DEVICES, SET, WIRES};
use crate::wire::SpecError;

/// Invalid setting of the model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelSettingsError {
    #[error("the value of the environment variable {0} is not UTF-8; set it to UTF-8 text")]
    NotUtf8(&'static str),
    #[error("{SET} has \"{0}\", but {WIRES} is empty; add a wire to {WIRES}")]
    NoWires(String),
    #[error("{WIRES} has {0} wires; the limit is {MAX_DEVICES} devices; remove wires")]
    TooManyWires(usize),
    #[error("\"{0}\" in {SET} is not an assignment; write key=value")]
    NotAnAssignment(String),
    /// Key that no setting has; `keys` is the table of all keys.
    #[error(
        "unknown key \"{key}\" in {SET}; write <key> for all devices, mlx5_0.<key> for one device or mlx5_0.port1.<key> for one port, with one of these keys:{keys}"
    )]
    UnknownKey { key: String, keys: String },
    #[error(
        "{path}: mlx5_{device} does not exist; {WIRES} has {devices} wire(s); add wires or name a lower device"
    )]
    NoSuchDevice {
        path: String,
        device: usize,
        devices: usize,
    },
    /// Key with the prefix of a device or a port, which applies to more; `instead` is the
    /// assignment without it.
    #[error("{path}: the key \"{name}\" applies to {scope}; write {instead}")]
    TooNarrow {
        path: String,
        name: &'static str,
        scope: &'static str,
        instead: String,
    },
    #[error("{line}: {source}; the valid values are {takes}")]
    Value {
        line: String,
        source: Box<ModelValueError>,
        takes: &'static str,
    },
    #[error("{line}: the device mlx5_{device} has only {ports} port(s); raise mlx5_{device}.ports")]
    NoSuchPort {
        line: String,
        device: usize,
        ports: usize,
    },
    #[error(
        "mlx5_{device}.fault: port {port} does not exist, the device has {ports} port(s); raise mlx5_{device}.ports"
    )]
    NoFaultPort {
        device: usize,
        port: u8,
        ports: usize,
    },
    #[error("mlx5_{device} port {port} has no wire; set mlx5_{device}.port{port}.wire=<wire>")]
    NoWire { device: usize, port: usize },
    #[error("mlx5_{device} port {port}: {source}")]
    Wire {
        device: usize,
        port: usize,
        source: Box<SpecError>,
    },
}

/// Text that is not a valid value of a setting. It does not list the valid values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelValueError {
    #[error("the value \"{0}\" is not a number in the allowed range")]
    NotANumber(String),
    #[error("{0} is out of range")]
    OutOfRange(String),
    #[error("the value \"{0}\" is neither true nor false")]
    NotABoolean(String),
    #[error("\"{0}\" is not a 64-bit hexadecimal number")]
    NotHexadecimal(String),
    #[error("\"{0}\" is not a MAC address such as 0c:42:a1:00:00:01")]
    NotAMac(String),
    #[error("the value \"{0}\" is longer than a MAC address of six bytes")]
    MacTooLong(String),
    #[error(
        "\"{0}\" is not a name of a network interface, which has 1 to 15 bytes without slash and white space"
    )]
    NotAnInterface(String),
    #[error("the value \"{0}\" does not say which Linux capabilities the software NIC assumes")]
    NotACapsSource(String),
    #[error("the value \"{0}\" is not a field of a CQE")]
    NotACqeField(String),
    #[error("the link rate {0} Gbit/s is not supported")]
    NotARate(u32),
    #[error(transparent)]
    Fault(#[from] FaultSyntaxError),
}

/// Invalid text of a fault; the error quotes the wrong part and states the valid form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultSyntaxError {
    #[error("the fault \"{0}\" has no trigger; append @frames=N, @ms=N or @file=PATH")]
    NoTrigger(String),
    #[error("\"@{0}\" is not a trigger; write @frames=N, @ms=N or @file=PATH")]
    NotATrigger(String),
    #[error(
        "\"{0}\" is not a fault; the faults are wq_fatal, bad_lkey, bad_fcs, cq_overrun, port_down, device_fatal, slow_pci, pci_overflow, clock_jump and clock_busy"
    )]
    NotAFault(String),
    /// Number out of its range; the limits are in text, because their types differ.
    #[error("{name}={text} is not a number from {low} to {high}")]
    OutOfRange {
        name: &'static str,
        text: String,
        low: String,
        high: String,
    },
    #[error("\"{option}\" of {kind} is not an option of a fault; write the option as NAME=VALUE")]
    NotAnOption { option: String, kind: String },
    #[error("{kind} requires {name}=N")]
    Missing { kind: String, name: &'static str },
    #[error("the fault {0} takes the option for or the option until, but not both")]
    TwoEnds(String),
    #[error(
        "{kind} does not take {name}, or takes it once; wq_fatal, bad_lkey, bad_fcs and cq_overrun take queue, port_down and device_fatal take for or until, clock_busy takes for, slow_pci takes ns and for, pci_overflow takes count, clock_jump takes ns, and all take port"
    )]
    UnknownOption { kind: String, name: String },
}
