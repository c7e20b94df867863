//! Services around a long capture: sandbox, signals, service manager, metrics.

pub mod end;
pub mod metrics;
pub mod sandbox;
pub mod sd_notify;
pub mod signals;
