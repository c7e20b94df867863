//! Resources that a process prepares before a capture starts.

use crate::sink::{FinishTimes, HookProcess, PreparedRing};
use std::sync::Arc;
use wqcap_files::sealed::SecretKey;

/// Resources that captures of one process share. A process prepares them while it still has the
/// rights for them, before its sandbox closes. The default has none: a capture then creates what it
/// needs itself.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    /// Process that runs the hook of finished files; `None`: this process starts the hook.
    pub hook_process: Option<Arc<HookProcess>>,
    /// Key that encrypts finished capture files; `None`: it is read from its source when the
    /// capture starts.
    pub encryption_key: Option<SecretKey>,
    /// Times at which capture files were finished, shared by successive captures of a run.
    pub finish_times: FinishTimes,
    /// Prepared io_uring ring of the file writer; `None`: each writer creates its own.
    pub write_ring: Option<Arc<PreparedRing>>,
}
