//! Man pages and shell completions: they cover all commands of the help and all keys of the
//! configuration reference. Hidden commands are not offered. Pages keep tables and examples on a
//! terminal of 80 columns.

use std::{fs, path::PathBuf};
use wqcap_tests::{Dir, Done, Program, binaries::root, skip, wqcap::wqcap};

/// Option for the line length that man passes to groff on a terminal of 80 columns.
const LINE: &str = "-rLL=78n";

/// Generates the pages and completions with `wqcap manual`.
fn generate() -> Dir {
    let dir = Dir::new();
    let made = wqcap(["manual".as_ref(), dir.path().as_os_str()]);
    let _ = made.run().expect(0);
    dir
}

/// Returns the help of a command, without line wraps.
fn help(command: &[&str]) -> String {
    let args = command.iter().chain(&["--help"]);
    wqcap(args).env("COLUMNS", "500").run().expect(0).stdout
}

/// Returns the names of the commands in `wqcap --help`.
fn commands() -> Vec<String> {
    let help = help(&[]);
    let commands: Vec<_> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    assert!(commands.iter().any(|it| it == "run"), "{help}");
    commands
}

/// Formats a page with groff for a terminal without bold and underline, and asserts that groff does
/// not warn.
fn render(page: &PathBuf) -> Done {
    let options = ["-ww", "-k", "-man", "-Tutf8", LINE, "-P-cbou"];
    let done = Program::new("groff")
        .args(options)
        .arg(page)
        .run()
        .expect(0);
    assert_eq!(done.stderr, "", "{}", page.display());
    done
}

fn pages(dir: &Dir) -> Vec<PathBuf> {
    let folders = [dir.join("man1"), dir.join("man5")];
    let listed = folders
        .iter()
        .map(|it| fs::read_dir(it).expect("the directory was generated"));
    let pages: Vec<_> = listed
        .flatten()
        .map(|it| it.expect("the directory is readable").path())
        .collect();
    assert!(pages.len() > 30, "{pages:?}");
    pages
}

#[test]
fn every_command_has_a_page_and_the_configuration_has_one() {
    let dir = generate();
    for command in commands() {
        let page = dir.join("man1").join(format!("wqcap-{command}.1"));
        let text = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
        assert!(text.contains(".SH SYNOPSIS"), "{text}");
    }
    let page = fs::read_to_string(dir.join("man5/wqcap.toml.5")).expect("the page was generated");
    let reference =
        fs::read_to_string(root().join("docs/config.md")).expect("the reference exists");
    let keys = reference
        .lines()
        .filter_map(|line| line.strip_prefix("| `"));
    let keys: Vec<_> = keys
        .map(|rest| rest.split('`').next().expect("a key is quoted"))
        .collect();
    assert!(keys.len() > 80, "{keys:?}");
    for key in keys {
        assert!(
            page.contains(&format!(".TP\n\\fB{key}\\fR\n")),
            "{key}: {page}"
        );
    }
}

#[test]
fn pages_fit_a_terminal_and_keep_tables_and_examples() {
    let found = Program::new("sh").args(["-c", "command -v groff"]).run();
    if !found.status.success() {
        skip!("groff is not installed (Debian package groff-base)");
    }
    let dir = generate();
    for page in pages(&dir) {
        let done = render(&page);
        for line in done.stdout.lines() {
            let fits = line.chars().count() <= 80 && !line.ends_with('‐');
            assert!(fits, "{}: {line}", page.display());
        }
    }
    let mut kept = 0;
    for command in commands() {
        let page = render(&dir.join("man1").join(format!("wqcap-{command}.1"))).stdout;
        let help = help(&[&command]);
        let after = |heading| help.split_once(heading).map_or("", |(_, rest)| rest);
        let (examples, wires) = (after("\nExamples:\n"), after("\nWIRE is one of"));
        let lines = examples.lines().chain(wires.lines());
        for line in lines.filter(|line| line.starts_with("  ")) {
            assert!(
                page.contains(&format!("\n       {line}\n")),
                "{line}\n{page}"
            );
            kept += 1;
        }
    }
    assert!(kept > 50, "only {kept} lines of tables and examples");
}

#[test]
fn completions_offer_the_commands_that_help_shows() {
    let dir = generate();
    let bash = dir.join("completions/wqcap.bash");
    let offered = |typed: &str| {
        let script = format!(
            ". {} && COMP_WORDS=(wqcap {typed}) COMP_CWORD=1 && _wqcap wqcap '{typed}' wqcap && echo ${{COMPREPLY[@]}}",
            bash.display()
        );
        Program::new("bash")
            .args(["-c", &script])
            .run()
            .expect(0)
            .stdout
    };
    assert_eq!(offered("re").trim(), "recover");
    let all = offered("");
    for command in commands() {
        assert!(
            all.split_whitespace().any(|it| it == command),
            "{command}: {all}"
        );
    }
    for shell in ["wqcap.bash", "_wqcap", "wqcap.fish"] {
        let script = fs::read_to_string(dir.join("completions").join(shell)).expect("generated");
        assert!(script.contains("selftest"), "{shell}");
        let words = || script.split(|c: char| !c.is_alphanumeric());
        for hidden in ["manual", "hooks", "outside"] {
            assert!(!words().any(|it| it == hidden), "{shell} offers {hidden}");
        }
    }
}
