//! `verbatim list`: the models in the store, or those that `pull` knows by name.

use std::process::ExitCode;

use serde_json::{Value, json};
use verbatim_gguf::GgufFile;

use crate::catalogue::{self, KnownModel};
use crate::flags::ListArgs;
use crate::model_file;
use crate::standard_io::{self, escape, human_bytes, json_text};
use crate::store::{Entry, ModelName, PartialEntry, Store};

/// Prints the list.
///
/// # Errors
/// When the store cannot be read.
pub fn run(args: &ListArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let text = match (args.known, args.output.json) {
        (true, true) => json_text(&catalogue::models().iter().map(known_as_json).collect()),
        (true, false) => known_table(store)?,
        (false, true) => {
            let entries = store.list()?.iter().map(entry_as_json).collect::<Vec<_>>();
            let partial = store.partial_downloads()?;
            json_text(&entries.into_iter().chain(partial.iter().map(partial_as_json)).collect())
        }
        (false, false) => table(&store.list()?, &store.partial_downloads()?),
    };
    standard_io::write(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn table(entries: &[Entry], partial: &[PartialEntry]) -> String {
    let complete = entries.iter().map(|entry| {
        let source = entry.record.as_ref().map_or("-", |record| record.source.as_str());
        [entry.name.to_string(), human_bytes(entry.bytes), weights(entry).into(), date(entry), escape(source)]
    });
    let partial = partial.iter().map(|entry| {
        let size = match entry.total_bytes {
            Some(total) => format!("{} of {}", human_bytes(entry.bytes), human_bytes(total)),
            None => human_bytes(entry.bytes),
        };
        let source = entry.url.as_deref().unwrap_or("-");
        [entry.name.to_string(), size, "incomplete".into(), "-".into(), escape(source)]
    });
    align(["NAME", "SIZE", "TYPE", "DATE", "SOURCE"], complete.chain(partial).collect())
}

/// The day on which the model was pulled, or its file changed.
fn date(entry: &Entry) -> String {
    let changed = || {
        let changed = std::fs::metadata(&entry.path).and_then(|file| file.modified()).ok()?;
        jiff::Timestamp::try_from(changed).ok()
    };
    let date = entry.record.as_ref().map(|record| record.date).or_else(changed);
    date.map_or("-".to_owned(), |date| date.strftime("%Y-%m-%d").to_string())
}

/// The format of the model's weights. A file that is not a model is still listed, so that it can be
/// removed.
fn weights(entry: &Entry) -> &'static str {
    GgufFile::open(&entry.path).map_or("unreadable", |file| model_file::weights_format(&file))
}

/// The models of the catalogue, as a table that shows which of them are in the store.
///
/// # Errors
/// When the store cannot be read.
pub fn known_table(store: &Store) -> anyhow::Result<String> {
    let present = store.names()?;
    let rows = catalogue::models().iter().map(|model| {
        let is_present = model
            .name
            .parse()
            .is_ok_and(|name: ModelName| present.iter().any(|other| other == name.as_str()));
        [
            model.name.clone(),
            model.parameters.clone(),
            model.bytes.map_or("-".to_owned(), human_bytes),
            model.quant.clone(),
            model.license.clone(),
            if is_present { "in the store".to_owned() } else { String::new() },
        ]
    });
    Ok(align(["NAME", "PARAMETERS", "SIZE", "TYPE", "LICENCE", ""], rows.collect()))
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
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn entry_as_json(entry: &Entry) -> Value {
    json!({
        "name": entry.name.as_str(),
        "path": entry.path.to_string_lossy(),
        "files": entry.parts,
        "bytes": entry.bytes,
        "weights": weights(entry),
        "record": entry.record,
    })
}

fn partial_as_json(entry: &PartialEntry) -> Value {
    json!({
        "name": entry.name.as_str(),
        "bytes": entry.bytes,
        "total_bytes": entry.total_bytes,
        "url": entry.url,
        "incomplete": true,
    })
}

fn known_as_json(model: &KnownModel) -> Value {
    json!({
        "name": model.name,
        "aliases": model.aliases,
        "parameters": model.parameters,
        "architecture": model.architecture,
        "quant": model.quant,
        "bytes": model.bytes,
        "sha256": model.sha256,
        "license": model.license,
        "source": model.hub_file,
    })
}
