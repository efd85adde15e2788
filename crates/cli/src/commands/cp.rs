//! `verbatim cp`: another name for a model in the store.

use std::process::ExitCode;

use crate::flags::CpArgs;
use crate::standard_io;
use crate::store::Store;

/// Adds the name.
///
/// # Errors
/// When there is no such model, or the new name is in use.
pub fn run(args: &CpArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let entry = store.copy(&args.from.parse()?, &args.to.parse()?)?;
    standard_io::write(format!("{}  {}\n", entry.name, entry.path.display()).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
