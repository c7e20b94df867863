//! `wqcap model`: runs any verbs program on the software NIC.

use crate::{args::ModelArgs, failure::Failure, preload};

/// Replaces this process with the program that the arguments name, on the software NIC. Returns
/// only if that fails.
pub fn model(args: &ModelArgs) -> Result<(), Failure> {
    if let Some(it) = args.set.iter().find(|it| it.key.starts_with("model.")) {
        return Err(Failure::refused(format!(
            "{}={}: every key of this command is a key of the model; omit the prefix \"model.\"",
            it.key, it.value
        )));
    }
    let wires: Vec<_> = args.wire.iter().map(String::as_str).collect();
    preload::exec(&wires, &args.set, &args.program)
}
