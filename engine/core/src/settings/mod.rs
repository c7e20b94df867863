//! Values of configuration keys, as the TOML file spells them.

mod compress;
mod control;
mod error;
mod keep;
mod section;
mod size;
mod span;
mod words;

pub use compress::Compress;
pub use control::{ControlConfig, FileMode};
pub use error::SettingError;
pub use keep::Keep;
pub use size::{NumberOrText, Size};
pub use span::Span;
pub use words::{
    Access, Backend, Clock, CqeCompression, Direction, Format, HashDepth, Idle, Loops, Mode,
    OnFull, OnLoss, OnPortDown, Order, PipelineMode, Receive, SampleBy, Sandbox, Timestamps, Vlan,
};
