//! The key of encrypted capture files: `output.encrypt_key` and its like, and `--key`.

use crate::{args::KeyArgs, failure::Failure};
use wqcap_engine::files::sealed::{KeySource, SecretKey, open_with};

/// Reads a key that `name`, a key of the configuration or an option, tells the source of.
pub fn read(source: &KeySource, name: &str) -> Result<SecretKey, Failure> {
    let refused = |problem| Failure::refused(format!("{name} {source}: {problem}"));
    source.read().map_err(refused)
}

/// Has encrypted files opened with the key that the arguments name, if they name one.
pub fn settle(args: &KeyArgs) -> Result<(), Failure> {
    let file = args.key.clone().map(KeySource::File);
    let command = args.key_command.clone().map(KeySource::Command);
    for (source, name) in [(file, "--key"), (command, "--key-command")] {
        if let Some(source) = source {
            open_with(read(&source, name)?);
        }
    }
    Ok(())
}
