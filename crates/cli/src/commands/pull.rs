//! `verbatim pull`: fetch a model into the store.

use std::process::ExitCode;

use verbatim_gguf::GgufFile;

use super::list;
use crate::flags::PullArgs;
use crate::pull::{self, Request, Source, Sources};
use crate::standard_io::{self, human_bytes, notify};
use crate::store::{Entry, Store};

/// Pulls the model and prints its name, size, hash and path. Without an argument, prints the known models.
///
/// # Errors
/// When the name or source is invalid, or the model cannot be fetched.
pub fn run(args: &PullArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let Some(source) = &args.source else {
        notify("`verbatim pull NAME` fetches one of these; hf:OWNER/REPO, ms:OWNER/REPO and URLs work too");
        standard_io::write(list::known_table(store)?.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    };
    let sources = Sources::new(&args.hub.endpoint, &args.hub.modelscope)?;
    let source = Source::parse(source, store, &sources)?;
    let name = match &args.name {
        Some(name) => name.parse()?,
        None => source.default_name()?,
    };
    let sha256 = args.sha256.as_deref().map(str::parse).transpose()?;
    let entry = pull::pull(store, &sources, &Request { source, name, sha256 })?;
    let mut text = format!("{}  {}  {}\n", entry.name, human_bytes(entry.bytes), entry.path.display());
    if let Some(record) = &entry.record {
        text.push_str(&format!("from {}\nsha256 {}\n", record.source, record.sha256));
    }
    standard_io::write(text.as_bytes())?;
    warn_if_unsupported(&entry);
    Ok(ExitCode::SUCCESS)
}

/// A model that was pulled but will not load is better known now than when it is needed.
fn warn_if_unsupported(entry: &Entry) {
    let Ok(file) = GgufFile::open(&entry.path) else { return };
    if let Err(error) = verbatim_engine::read_hyperparameters(&file) {
        notify(&format!("warning: {} cannot be loaded: {error}", entry.name));
    }
}
