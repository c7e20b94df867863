//! What a long run needs around its capture: the sandbox, signals, the service manager, metrics.

pub mod metrics;
pub mod sandbox;
pub mod sd_notify;
pub mod signals;
