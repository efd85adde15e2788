//! `verbatim man`: the manual, made from the definitions of the flags.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap_mangen::Man;

use crate::flags::{Cli, ManArgs};
use crate::standard_io;

/// Writes the page of `verbatim` to standard output, or every page into a folder.
///
/// # Errors
/// When the folder or a page cannot be written.
pub fn run(args: &ManArgs) -> anyhow::Result<ExitCode> {
    match &args.out {
        None => standard_io::write(&page(Cli::command())?)?,
        Some(folder) => write_pages(folder)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write_pages(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    // Building propagates the global flags (--home) to the subcommands.
    let mut program = Cli::command();
    program.build();
    write_page(folder, "verbatim", Cli::command())?;
    for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
        let name = format!("verbatim-{}", command.get_name());
        write_page(folder, &name, command.clone().display_name(&name))?;
    }
    Ok(())
}

fn write_page(folder: &Path, name: &str, command: clap::Command) -> anyhow::Result<()> {
    let path = folder.join(format!("{name}.1"));
    fs::write(&path, page(command)?).with_context(|| format!("cannot write {}", path.display()))
}

fn page(command: clap::Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page).context("the manual page cannot be made")?;
    Ok(page)
}
