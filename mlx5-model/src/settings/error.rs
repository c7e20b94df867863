//! Errors of the model's settings.

use super::device::MAX_DEVICES;
use super::fault::FaultSyntaxError;
use super::keys::table;
use super::parse::{SET, WIRES};
use crate::wire::SpecError;

/// Invalid setting of the model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelSettingsError {
    #[error("{0} is not UTF-8; set it to UTF-8 text")]
    NotUtf8(&'static str),
    #[error("{SET} has \"{0}\", but {WIRES} is empty; add a wire to {WIRES}")]
    NoWires(String),
    #[error("{WIRES} has {0} wires; the limit is {MAX_DEVICES} devices; remove wires")]
    TooManyWires(usize),
    #[error("\"{0}\" in {SET} is not an assignment; write key=value")]
    NotAnAssignment(String),
    #[error(
        "unknown key \"{0}\" in {SET}; write <key> for all devices, mlx5_0.<key> for one device or mlx5_0.port1.<key> for one port, with one of these keys:{keys}",
        keys = table()
    )]
    UnknownKey(String),
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
    #[error("{path}: \"{name}\" applies to {scope}; write {instead}")]
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
    #[error("the value \"{0}\" is not a source of Linux capabilities")]
    NotACapsSource(String),
    #[error("the value \"{0}\" is not a field of a CQE")]
    NotACqeField(String),
    #[error("{0} Gbit/s is not a supported link rate")]
    NotARate(u32),
    #[error(transparent)]
    Fault(#[from] FaultSyntaxError),
}
