//! Man pages of the commands, section 1: those of clap_mangen, with the text that follows the
//! options in the help added.
//!
//! That text consists of paragraphs, one line each, of indented lines, which keep their form, and
//! of [`HEADINGS`].

use super::{literal, source, title};
use clap::Command;
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};
use std::{fs, io, path::Path};

/// Section headings in the help texts of commands. A heading is a line by itself, or precedes its
/// first sentence.
const HEADINGS: [&str; 2] = ["Examples", "Exit status"];

/// Writes the man pages of a command and of all its visible subcommands.
#[expect(clippy::disallowed_methods, reason = "the user chose the folder")]
pub fn pages(command: &Command, dir: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        pages(below, dir)?;
    }
    let name = command
        .get_display_name()
        .unwrap_or_else(|| command.get_name());
    fs::write(dir.join(format!("{name}.1")), page(command, name)?)
}

/// Returns the man page of a command.
fn page(command: &Command, name: &str) -> io::Result<String> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    let (description, ends) = after_help(command);
    title(name, "1").to_writer(&mut page)?;
    man.render_name_section(&mut page)?;
    synopsis(command).to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    description.to_writer(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    ends.to_writer(&mut page)?;
    see_also(name).to_writer(&mut page)?;
    Ok(source(&page))
}

/// Returns the synopsis section of a command's man page, as in its help. The options have a
/// separate section.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let name = command.get_bin_name().unwrap_or_default();
    let mut section = Roff::new();
    section.control("SH", ["SYNOPSIS"]);
    section.text([bold(name), roman(usage.strip_prefix(name).unwrap_or(usage))]);
    section
}

/// Splits a command's help text after the options into additions to the description, and sections
/// that follow the options in the man page.
fn after_help(command: &Command) -> (Roff, Roff) {
    let text = command.get_after_help().map(ToString::to_string);
    let text = text.unwrap_or_default();
    let (mut description, mut ends) = (Roff::new(), Roff::new());
    let mut at = &mut description;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let heading = HEADINGS.iter().find_map(|heading| {
            let rest = line.strip_prefix(heading)?.strip_prefix(':')?;
            Some((heading.to_uppercase(), rest.trim()))
        });
        if let Some((heading, rest)) = heading {
            at = &mut ends;
            at.control("SH", [heading.as_str()]);
            if !rest.is_empty() {
                at.text([roman(rest)]);
            }
        } else if let Some(first) = line.strip_prefix("  ") {
            let more = std::iter::from_fn(|| lines.next_if(|it| it.starts_with("  ")));
            literal(at, std::iter::once(first).chain(more.map(|it| &it[2..])));
        } else if !line.is_empty() {
            at.control("PP", []).text([roman(line)]);
        }
    }
    (description, ends)
}

/// Returns the section of a man page with references to other man pages.
fn see_also(name: &str) -> Roff {
    let mut section = Roff::new();
    section.control("SH", ["SEE ALSO"]);
    let mut pages = vec![("wqcap.toml", "(5), "), ("pcap-filter", "(7), ")];
    if name != "wqcap" {
        pages.insert(0, ("wqcap", "(1), "));
    }
    let pages = pages
        .into_iter()
        .flat_map(|(page, section)| [bold(page), roman(section)]);
    section.text(
        pages
            .chain([roman("/usr/share/doc/wqcap/docs")])
            .collect::<Vec<_>>(),
    );
    section
}
