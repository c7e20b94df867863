//! `wqcap model`: any verbs program on the software NIC.

use crate::{args::ModelArgs, failure::Failure, preload};

/// Becomes the program; comes back only if it cannot.
pub fn model(args: &ModelArgs) -> Result<(), Failure> {
    if let Some(it) = args.set.iter().find(|it| it.key.starts_with("model.")) {
        return Err(Failure::refused(format!(
            "{}={}: all keys here are keys of the model; leave \"model.\" out",
            it.key, it.value
        )));
    }
    let wires: Vec<_> = args.wire.iter().map(String::as_str).collect();
    preload::exec(&wires, &args.set, &args.program)
}
