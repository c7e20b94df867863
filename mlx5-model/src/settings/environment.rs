//! Environment variables that hold the settings, and the number of devices that they may name.

/// Environment variable with the wires, one per line: the Nth is port 1 of device `mlx5_<N-1>`.
pub const WIRES: &str = "MLX5_MODEL_WIRES";
/// Environment variable with the model's settings, one `key=value` per line.
pub const SET: &str = "MLX5_MODEL_SET";
/// Maximum number of modelled devices; the shared memory of the counters has room for this number.
pub const MAX_DEVICES: usize = 32;
