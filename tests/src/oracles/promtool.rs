//! promtool: Prometheus' own word on metrics and rules.

use crate::{Done, Program, binaries};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// promtool, ready to be asked.
#[derive(Debug)]
pub struct Promtool {
    program: PathBuf,
}

impl Promtool {
    /// Finds it, or takes it out of Debian's package `prometheus`, once. The package is not installed: that would start
    /// a server.
    ///
    /// # Errors
    /// There is neither: a reason to skip.
    pub fn find() -> Result<Self, String> {
        let on_path = Program::new("sh").args(["-c", "command -v promtool"]).run();
        if on_path.status.success() {
            let program = PathBuf::from(on_path.stdout.trim());
            return Ok(Self { program });
        }
        let target = binaries::profile_dir();
        let program = target.join("promtool");
        if program.is_file() {
            return Ok(Self { program });
        }
        // In a folder of its own at first: half a program must not be taken for one.
        let fresh = tempfile::Builder::new()
            .prefix("promtool-")
            .tempdir_in(&target)
            .map_err(|e| format!("{}: {e}", target.display()))?;
        let script = "apt-get -q download prometheus && dpkg-deb --extract ./prometheus_*.deb .";
        let done = Program::new("sh")
            .args(["-c", script])
            .cwd(fresh.path())
            .run();
        if !done.status.success() {
            let last = done.stderr.trim().lines().last().unwrap_or_default();
            return Err(format!(
                "there is no promtool, and Debian's package prometheus cannot be had: {last}"
            ));
        }
        fs::rename(fresh.path().join("usr/bin/promtool"), &program)
            .map_err(|e| format!("Debian's package prometheus has no promtool: {e}"))?;
        Ok(Self { program })
    }

    /// `promtool check metrics` on a scrape in the text format.
    #[must_use]
    pub fn metrics(&self, scrape: &Path) -> Done {
        let line = "exec \"$0\" check metrics <\"$1\"";
        Program::new("sh")
            .args(["-c", line])
            .arg(&self.program)
            .arg(scrape)
            .run()
    }

    /// `promtool check rules` on a file of rules.
    #[must_use]
    pub fn rules(&self, file: &Path) -> Done {
        Program::new(&self.program)
            .args(["check", "rules"])
            .arg(file)
            .run()
    }
}
