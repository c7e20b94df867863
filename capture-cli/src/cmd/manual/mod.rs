//! Man pages of the commands and of the configuration, and shell completions, for packagers.

mod command;
mod config;

use crate::{
    args::{Args, ManualArgs},
    failure::Failure,
};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::roff::Roff;
use std::{fs, io, path::Path};

/// Writes man pages (`man1/wqcap*.1`, `man5/wqcap.toml.5`) and completions for bash, zsh and fish
/// (`completions/`) into a folder.
pub fn manual(args: &ManualArgs) -> Result<(), Failure> {
    write(&args.dir).map_err(|e| {
        Failure::failed(format!(
            "cannot write the manual to {}: {e}",
            args.dir.display()
        ))
    })
}

#[expect(clippy::disallowed_methods, reason = "the user chose the folder")]
fn write(dir: &Path) -> io::Result<()> {
    let folder = |name| {
        let path = dir.join(name);
        fs::create_dir_all(&path).map(|()| path)
    };
    let (commands, formats, completions) =
        (folder("man1")?, folder("man5")?, folder("completions")?);
    let mut program = Args::command();
    program.build();
    command::pages(&program, &commands)?;
    fs::write(
        formats.join("wqcap.toml.5"),
        source(config::page().render().as_bytes()),
    )?;
    let mut shown = shown(&Args::command());
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut shown, "wqcap", &completions)?;
    }
    Ok(())
}

/// Returns the command-line definition without its hidden parts, which clap_complete would offer.
fn shown(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
    let subcommands = command.get_subcommands().filter(|it| !it.is_hide_set());
    let mut shown = Command::new(command.get_name().to_owned())
        .disable_help_subcommand(true)
        .args(arguments.cloned())
        .subcommands(subcommands.map(self::shown));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    shown
}

/// Returns a man page that has only its title line.
fn title(name: &str, section: &str) -> Roff {
    let mut page = Roff::new();
    // The date is left out, so that every build makes the same page.
    let release = format!("wqcap {}", env!("CARGO_PKG_VERSION"));
    page.control("TH", [name, section, "\"\"", &release, "wqcap"]);
    // No hyphenation, so that keys and file names are never broken, and no added blanks between
    // words. The register HY applies this where a paragraph begins.
    page.control("nh", []).control("nr", ["HY", "0"]);
    page.control("ad", ["l"]);
    page
}

/// Writes lines to a man page that keep their line breaks and blanks there.
fn literal<'a>(page: &mut Roff, lines: impl IntoIterator<Item = &'a str>) {
    page.control("PP", [])
        .control("RS", ["2"])
        .control("EX", []);
    for line in lines {
        page.text([line.into()]);
    }
    page.control("EE", []).control("RE", []);
}

/// Returns a man page as roff source. Removes the repeated preamble of each part, and escapes ASCII
/// characters that roff would replace.
fn source(page: &[u8]) -> String {
    let preamble = Roff::new().render();
    let text = String::from_utf8_lossy(page).replace(&preamble, "");
    [("`", "\\(ga"), ("^", "\\(ha"), ("~", "\\(ti")]
        .iter()
        .fold(preamble + &text, |text, (of, to)| text.replace(of, to))
}
