//! Man pages and shell completions, made from what can be typed, for those who package.

use crate::{
    args::{Args, ManualArgs},
    failure::Failure,
};
use clap::CommandFactory;
use clap_complete::Shell;
use std::{fs, io, path::Path};

/// Writes `man1/wqcap*.1` and `completions/` for bash, zsh and fish into a folder.
pub fn manual(args: &ManualArgs) -> Result<(), Failure> {
    write(&args.dir).map_err(|e| {
        Failure::failed(format!(
            "cannot write the manual to {}: {e}",
            args.dir.display()
        ))
    })
}

fn write(dir: &Path) -> io::Result<()> {
    let (pages, completions) = (dir.join("man1"), dir.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    clap_mangen::generate_to(Args::command(), &pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Args::command(), "wqcap", &completions)?;
    }
    Ok(())
}
