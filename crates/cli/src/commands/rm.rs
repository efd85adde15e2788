//! `verbatim rm`: remove a model from the store.

use std::process::ExitCode;

use crate::flags::RmArgs;
use crate::standard_io;
use crate::store::Store;

/// Removes the model.
///
/// # Errors
/// When there is none of this name, or it is being pulled.
pub fn run(args: &RmArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let name = args.name.parse()?;
    store.remove(&name)?;
    standard_io::write(format!("removed {name}\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
