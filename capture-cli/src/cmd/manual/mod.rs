//! Man pages and shell completions, for those who package: of what can be typed, and of the configuration.

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

/// Writes `man1/wqcap*.1`, `man5/wqcap.toml.5`, and `completions/` for bash, zsh and fish into a folder.
pub fn manual(args: &ManualArgs) -> Result<(), Failure> {
    write(&args.dir).map_err(|e| {
        Failure::failed(format!(
            "cannot write the manual to {}: {e}",
            args.dir.display()
        ))
    })
}

#[expect(clippy::disallowed_methods, reason = "the user has named the folder")]
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

/// The command without what help hides: clap_complete would offer that.
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

/// Begins a page.
fn title(name: &str, section: &str) -> Roff {
    let mut page = Roff::new();
    // Without a date, so that each build makes the same page.
    let release = format!("wqcap {}", env!("CARGO_PKG_VERSION"));
    page.control("TH", [name, section, "\"\"", &release, "wqcap"]);
    // A key or a file is never broken, from here on and where a paragraph begins; nor are blanks put between words.
    page.control("nh", []).control("nr", ["HY", "0"]);
    page.control("ad", ["l"]);
    page
}

/// Lines that keep their form.
fn literal<'a>(page: &mut Roff, lines: impl IntoIterator<Item = &'a str>) {
    page.control("PP", [])
        .control("RS", ["2"])
        .control("EX", []);
    for line in lines {
        page.text([line.into()]);
    }
    page.control("EE", []).control("RE", []);
}

/// A page as roff reads it: each part has brought the same preamble, and some characters of ASCII would become others.
fn source(page: &[u8]) -> String {
    let preamble = Roff::new().render();
    let text = String::from_utf8_lossy(page).replace(&preamble, "");
    [("`", "\\(ga"), ("^", "\\(ha"), ("~", "\\(ti")]
        .iter()
        .fold(preamble + &text, |text, (of, to)| text.replace(of, to))
}
