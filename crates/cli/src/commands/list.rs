//! `verbatim list`: the models in the store, or those that `pull` knows by name.

use std::process::ExitCode;

use serde_json::{Value, json};
use verbatim_gguf::GgufFile;

use crate::catalogue::{KNOWN_MODELS, KnownModel};
use crate::flags::ListArgs;
use crate::model_file;
use crate::standard_io::{self, human_bytes, json_text};
use crate::store::{Entry, Store};

/// Prints the list.
///
/// # Errors
/// When the store cannot be read.
pub fn run(args: &ListArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let text = match (args.known, args.output.json) {
        (true, true) => json_text(&KNOWN_MODELS.iter().map(known_as_json).collect()),
        (true, false) => known_table(),
        (false, true) => json_text(&store.list()?.iter().map(entry_as_json).collect()),
        (false, false) => table(&store.list()?),
    };
    standard_io::write(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn table(entries: &[Entry]) -> String {
    let rows = entries.iter().map(|entry| {
        let source = entry.record.as_ref().map_or("-", |record| record.source.as_str());
        [entry.name.to_string(), human_bytes(entry.bytes), weights(entry).into(), standard_io::escape(source)]
    });
    align(["NAME", "SIZE", "TYPE", "SOURCE"], rows.collect())
}

/// The format of the model's weights. A file that is not a model is still listed, so that it can be
/// removed.
fn weights(entry: &Entry) -> &'static str {
    GgufFile::open(&entry.path).map_or("unreadable", |file| model_file::weights_format(&file))
}

fn known_table() -> String {
    let rows = KNOWN_MODELS.iter().map(|model| {
        [model.name.to_owned(), human_bytes(model.bytes), model.license.to_owned(), model.hub_file.to_owned()]
    });
    align(["NAME", "SIZE", "LICENCE", "SOURCE"], rows.collect())
}

/// Columns as wide as their widest cell; the last one is not padded.
fn align<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    let rows: Vec<[String; N]> = std::iter::once(header.map(str::to_owned)).chain(rows).collect();
    let widths: [usize; N] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        for (cell, width) in row.iter().zip(widths).take(N - 1) {
            text.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(&row[N - 1]);
        text.push('\n');
    }
    text
}

fn entry_as_json(entry: &Entry) -> Value {
    json!({
        "name": entry.name.as_str(),
        "path": entry.path.to_string_lossy(),
        "bytes": entry.bytes,
        "weights": weights(entry),
        "record": entry.record,
    })
}

fn known_as_json(model: &KnownModel) -> Value {
    json!({
        "name": model.name,
        "bytes": model.bytes,
        "sha256": model.sha256,
        "license": model.license,
        "source": model.hub_file,
    })
}
