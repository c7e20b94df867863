//! What the environment sets: which devices, on which wires, with which capabilities.
//!
//! Imports, of `wire`, what a wire is. Invariant: the settings are read once, when the library is loaded, and are
//! complete or an error. Every key is in `keys::KEYS`, which parses, documents and names it in errors.

mod device;
mod draft;
pub mod fault;
mod keys;
mod parse;
mod value;

use std::sync::OnceLock;

pub use device::{DeviceSettings, GIDS, MAX_DEVICES, MAX_PORTS, NicCaps, PortSettings, Settings};
pub use parse::{SET, WIRES};

static GLOBAL: OnceLock<Settings> = OnceLock::new();

/// Makes these the process's settings.
pub fn set(settings: Settings) -> &'static Settings {
    GLOBAL.get_or_init(|| settings)
}

/// The process's settings; no devices before the library is loaded.
pub fn global() -> &'static Settings {
    GLOBAL.get_or_init(Settings::default)
}
