//! `verbatim tokenize`: text on standard input to token ids, or ids to bytes.

use std::process::ExitCode;

use anyhow::{Context, bail};
use verbatim_text::{SpecialTokens, Tokenizer};

use crate::flags::TokenizeArgs;
use crate::model_file::ModelFile;
use crate::standard_io;
use crate::store::Store;

/// Writes the ids of the text as a JSON array and a newline; with `--decode`, the bytes of the ids and
/// nothing else.
///
/// The text is taken exactly, a newline at its end included. Special tokens in it are recognised unless
/// `--no-special` is given. BOS and EOS are added only with `--add-bos`, and then as the file asks.
///
/// # Errors
/// When the file has no usable vocabulary, the input is not text or not an array of ids, or an id is not in the
/// vocabulary.
pub fn run(args: &TokenizeArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let tokenizer = ModelFile::open(store, &args.vocabulary.model)?.tokenizer()?;
    if args.decode {
        standard_io::write(&decode(&tokenizer, &standard_io::read_bytes()?, !args.no_special)?)?;
    } else {
        let special = if args.no_special { SpecialTokens::Ignore } else { SpecialTokens::Parse };
        let ids = tokenizer.encode(&standard_io::read_text()?, special, args.add_bos);
        standard_io::write(format!("{}\n", serde_json::to_string(&ids)?).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn decode(tokenizer: &Tokenizer, json: &[u8], render_special: bool) -> anyhow::Result<Vec<u8>> {
    let ids: Vec<u32> =
        serde_json::from_slice(json).context("standard input is not a JSON array of token ids")?;
    if let Some(id) = ids.iter().find(|id| **id as usize >= tokenizer.vocab_len()) {
        bail!(
            "there is no token {id}: the vocabulary has the ids 0 to {}",
            tokenizer.vocab_len().saturating_sub(1)
        );
    }
    Ok(tokenizer.decode(&ids, render_special))
}
