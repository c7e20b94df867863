//! Man page of the configuration, section 5, made from `docs/config.md`. A test compares the keys
//! and defaults of that file with the types.
//!
//! Each key is an entry: its meaning, and below that the other cells of its row.

use super::{literal, title};
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use std::mem::take;

/// Markdown source of the man page of the configuration.
const REFERENCE: &str = include_str!("../../../../docs/config.md");

/// Returns the man page of the configuration, wqcap.toml(5).
pub fn page() -> Roff {
    let mut page = title("wqcap.toml", "5");
    page.control("SH", ["NAME"]);
    page.text([roman("wqcap.toml - configuration file of wqcap")]);
    page.control("SH", ["DESCRIPTION"]);
    let mut writer = RoffConverter {
        page,
        ..RoffConverter::default()
    };
    for event in Parser::new_ext(REFERENCE, Options::ENABLE_TABLES) {
        writer.event(event);
    }
    let mut page = writer.page;
    page.control("SH", ["FILES"]);
    page.control("TP", []).text([bold("/etc/wqcap/wqcap.toml")]);
    page.text([roman("Configuration of the service wqcap.")]);
    page.control("TP", []).text([bold("/etc/wqcap/PORT.toml")]);
    page.text([roman("Configuration of the service wqcap@PORT.")]);
    page.control("TP", []).text([bold("/usr/share/doc/wqcap")]);
    page.text([roman(
        "Sample configurations, and the documents that this page names.",
    )]);
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("wqcap"),
        roman("(1), "),
        bold("wqcap-check"),
        roman("(1), "),
        bold("wqcap-run"),
        roman("(1), "),
        bold("pcap-filter"),
        roman("(7)"),
    ]);
    page
}

/// Converter of Markdown events to roff.
#[derive(Default)]
struct RoffConverter {
    /// Part of the man page that is converted so far.
    page: Roff,
    /// Text converted so far of the open paragraph, list item or table cell.
    text: Vec<Inline>,
    /// Set while the converted Markdown text is emphasised.
    is_strong: bool,
    /// Cells of the header row of the current Markdown table.
    heads: Vec<String>,
    /// Cells converted so far of the current row of the Markdown table.
    row: Vec<Vec<Inline>>,
}

impl RoffConverter {
    /// Converts one Markdown event to roff.
    fn event(&mut self, event: Event) {
        match event {
            Event::Text(text) if self.is_strong => self.text.push(bold(&*text)),
            Event::Text(text) => self.text.push(roman(&*text)),
            Event::Code(text) => self.text.push(bold(&*text)),
            Event::SoftBreak => self.text.push(roman(" ")),
            Event::Start(Tag::Strong) => self.is_strong = true,
            Event::End(TagEnd::Strong) => self.is_strong = false,
            Event::Start(Tag::Item) => {
                self.page.control("IP", ["\\(bu", "2"]);
            }
            Event::End(TagEnd::Paragraph) => {
                self.page.control("PP", []);
                self.flush();
            }
            Event::End(TagEnd::Item) => self.flush(),
            Event::End(TagEnd::Heading(HeadingLevel::H1)) => self.text.clear(),
            Event::End(TagEnd::Heading(_)) => {
                let heading = plain(&take(&mut self.text));
                self.page.control("SH", [heading.as_str()]);
            }
            Event::End(TagEnd::CodeBlock) => {
                let lines = plain(&take(&mut self.text));
                literal(&mut self.page, lines.lines());
            }
            Event::End(TagEnd::TableCell) => self.row.push(take(&mut self.text)),
            Event::End(TagEnd::TableHead) => {
                self.heads = take(&mut self.row).iter().map(|it| plain(it)).collect();
            }
            Event::End(TagEnd::TableRow) => self.entry(),
            _ => {}
        }
    }

    /// Writes the man page entry of a configuration key from the current table row.
    fn entry(&mut self) {
        let mut cells = take(&mut self.row).into_iter().zip(&self.heads);
        self.page.control("TP", []);
        for (cell, _) in cells.by_ref().take(2) {
            self.page.text(cell);
        }
        for (cell, head) in cells {
            self.page.control("br", []);
            let head = [italic(head.as_str()), roman(": ")];
            self.page
                .text(head.into_iter().chain(cell).collect::<Vec<_>>());
        }
    }

    /// Writes the text of the open paragraph or list item to the man page.
    fn flush(&mut self) {
        let text = take(&mut self.text);
        self.page.text(text);
    }
}

/// Returns the text of roff inlines without their fonts.
fn plain(text: &[Inline]) -> String {
    let text = text.iter().filter_map(|it| match it {
        Inline::Roman(text) | Inline::Italic(text) | Inline::Bold(text) => Some(text.as_str()),
        Inline::LineBreak => None,
    });
    text.collect()
}
