//! `verbatim rm`: remove models from the store.

use std::process::ExitCode;

use crate::flags::RmArgs;
use crate::standard_io::{self, notify};
use crate::store::{Store, StoreError};

/// Removes the models. One that cannot be removed does not keep the others.
///
/// # Errors
/// When there is none of a name, or it is being pulled.
pub fn run(args: &RmArgs, store: &Store) -> anyhow::Result<ExitCode> {
    // A malformed name is a typing error: nothing is removed.
    let names = args.names.iter().map(|name| name.parse()).collect::<Result<Vec<_>, StoreError>>()?;
    let mut last_error = None;
    for name in &names {
        match store.remove(name) {
            Ok(()) => standard_io::write(format!("removed {name}\n").as_bytes())?,
            Err(error) => {
                if let Some(earlier) = last_error.replace(error) {
                    notify(&format!("error: {earlier}"));
                }
            }
        }
    }
    match last_error {
        Some(error) => Err(error.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}
