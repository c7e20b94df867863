//! Reload of the configuration of a command that has no supervised capture, on SIGHUP.

use crate::{args::ConfigArgs, failure::Failure};
use wqcap_control::protocol::{Changed, Refusal, RefusalCode};
use wqcap_engine::config::Config;
use wqcap_supervisor::{ReloadTable, Signals, report_reload};

/// Configuration of a command without a supervised capture, which reads it again on SIGHUP.
pub struct Reloadable<'a> {
    /// Config file and settings of the command line, which a reload reads again.
    given: &'a ConfigArgs,
    /// Effects of a reload on the configuration keys of the command.
    table: ReloadTable,
    /// Configuration that the command currently uses.
    config: Config,
    /// Function that completes a configuration with the defaults of the command, so that an absent
    /// section does not differ from its defaults.
    complete: fn(&mut Config),
}

impl<'a> Reloadable<'a> {
    /// Creates the reloadable configuration `config`, which was read as `given` specifies.
    pub fn new(
        given: &'a ConfigArgs,
        table: ReloadTable,
        mut config: Config,
        complete: fn(&mut Config),
    ) -> Self {
        complete(&mut config);
        Self {
            given,
            table,
            config,
            complete,
        }
    }

    /// Carries out the reload that a signal has requested, if there is one. `apply` takes the new
    /// configuration over, and returns a text on what else it has read again. The outcome is
    /// reported; a failed reload changes nothing.
    pub fn attend(
        &mut self,
        signals: &Signals,
        apply: impl FnOnce(&Config) -> Result<String, Failure>,
    ) {
        let Some(who) = signals.take_reload() else {
            return;
        };
        report_reload(&who, &self.reload(apply));
    }

    fn reload(
        &mut self,
        apply: impl FnOnce(&Config) -> Result<String, Failure>,
    ) -> Result<Changed, Refusal> {
        let failed = |e: Failure| Refusal::new(RefusalCode::Failed, e.to_string());
        let mut new = self.given.load_again().map_err(failed)?;
        (self.complete)(&mut new);
        let changes = self.table.compare(&self.config, &new)?;
        let more = apply(&new).map_err(failed)?;
        self.config = new;
        Ok(changes.outcome(&more))
    }
}
