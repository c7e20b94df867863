//! Settings from the environment: devices, their wires and their capabilities.
//!
//! Imports the wire specifications of `wire`. Invariant: the settings are read once, when the
//! library is loaded, and are either complete or an error. The table `keys::KEYS` parses and
//! documents every key and names it in errors.

mod device;
mod draft;
mod environment;
mod error;
pub mod fault;
mod keys;
mod parse;
mod value;

use std::sync::OnceLock;

pub use device::{DeviceSettings, GIDS, MAX_PORTS, NicCaps, PortSettings, Settings, WrongCqeField};
pub use environment::{MAX_DEVICES, SET, WIRES};
pub use error::ModelSettingsError;

static GLOBAL: OnceLock<Settings> = OnceLock::new();

/// Stores the model's settings for this process and returns them. Later calls return the settings
/// of the first one.
pub fn set(settings: Settings) -> &'static Settings {
    GLOBAL.get_or_init(|| settings)
}

/// Returns the model's settings for this process; they have no devices before the library is
/// loaded.
pub fn global() -> &'static Settings {
    GLOBAL.get_or_init(Settings::default)
}
