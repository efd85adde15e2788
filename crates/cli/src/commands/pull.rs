//! `verbatim pull`: fetch a model into the store.

use std::process::ExitCode;

use crate::flags::PullArgs;
use crate::pull::{self, Request, Source, Sources};
use crate::standard_io::{self, human_bytes};
use crate::store::Store;

/// Pulls the model and prints its name, size, hash and path.
///
/// # Errors
/// When the name or source is invalid, or the model cannot be fetched.
pub fn run(args: &PullArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let source = Source::parse(&args.source)?;
    let name = match &args.name {
        Some(name) => name.parse()?,
        None => source.default_name()?,
    };
    let sha256 = args.sha256.as_deref().map(str::parse).transpose()?;
    let sources = Sources::new(&args.hub.endpoint)?;
    let entry = pull::pull(store, &sources, &Request { source, name, sha256 })?;
    let mut text = format!("{}  {}  {}\n", entry.name, human_bytes(entry.bytes), entry.path.display());
    if let Some(record) = &entry.record {
        text.push_str(&format!("from {}\nsha256 {}\n", record.source, record.sha256));
    }
    standard_io::write(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
