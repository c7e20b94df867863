//! Key of encrypted capture files: `output.encrypt_key`, similar keys of the configuration, and
//! `--key`.

use crate::{args::KeyArgs, failure::Failure};
use wqcap_engine::files::sealed::{KeySource, SecretKey};

/// Reads the encryption key of capture files from `source`. `name` is the configuration key or
/// option that names the source.
pub fn read(source: &KeySource, name: &str) -> Result<SecretKey, Failure> {
    let refused = |problem| Failure::refused(format!("{name} {source}: {problem}"));
    source.read().map_err(refused)
}

/// Returns the decryption key of capture files that the arguments name; `None`: they name no key.
pub fn of_args(args: &KeyArgs) -> Result<Option<SecretKey>, Failure> {
    let file = args.key.clone().map(KeySource::File);
    let command = args.key_command.clone().map(KeySource::Command);
    let file = file.map(|it| read(&it, "--key"));
    let key = file.or_else(|| command.map(|it| read(&it, "--key-command")));
    key.transpose()
}
