//! From the arguments to a configuration that this build can carry out.

use crate::{args::Setting, failure::Failure};
use std::path::Path;
use wqcap_engine::config::{Config, ConfigError};

/// Prefix of the settings that are not the configuration's but the model's.
const MODEL: &str = "model.";

/// Splits settings into the configuration's and the model's, the latter without their prefix.
pub fn split(settings: &[Setting]) -> (Vec<&Setting>, Vec<Setting>) {
    let (model, config): (Vec<_>, Vec<_>) =
        settings.iter().partition(|it| it.key.starts_with(MODEL));
    let strip = |it: &Setting| Setting {
        key: it.key[MODEL.len()..].into(),
        value: it.value.clone(),
    };
    (config, model.into_iter().map(strip).collect())
}

/// Reads the file, if there is one, and puts the settings above it.
pub fn load(file: Option<&Path>, settings: &[&Setting]) -> Result<Config, Failure> {
    let text = match file {
        Some(path) => std::fs::read_to_string(path).map_err(|e| {
            Failure::refused(format!("cannot read the config {}: {e}", path.display()))
        })?,
        None => String::new(),
    };
    let overrides: Vec<_> = settings
        .iter()
        .map(|it| (it.key.as_str(), it.value.as_str()))
        .collect();
    let config = Config::with_overrides(&text, &overrides).map_err(|e| match (&e, file) {
        // A value out of range may as well come from --set; its key tells where to look.
        (ConfigError::Toml(_), Some(path)) => Failure::refused(format!("{}: {e}", path.display())),
        _ => Failure::refused(format!("{e}")),
    })?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(texts: &[&str]) -> Vec<Setting> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_models_settings_are_split_off() {
        let all = settings(&["capture.queues=2", "model.caps=all", "model.mlx5_0.ports=2"]);
        let (config, model) = split(&all);
        assert_eq!(config, [&all[0]]);
        assert_eq!(model, settings(&["caps=all", "mlx5_0.ports=2"]));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let failure = load(Some(Path::new("/nowhere/x.toml")), &[]).unwrap_err();
        assert!(failure.messages[0].contains("/nowhere/x.toml"));
    }

    #[test]
    fn every_sample_loads() {
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
        let mut loaded = 0;
        for entry in std::fs::read_dir(samples).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            load(Some(&path), &[]).unwrap_or_else(|e| panic!("{}: {e:?}", path.display()));
            loaded += 1;
        }
        assert!(loaded >= 5);
    }
}
