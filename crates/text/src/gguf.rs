//! Reads a vocabulary from the metadata of a GGUF file.

use crate::error::TokenizerError;
use crate::tokenizer::Tokenizer;
use crate::vocab::{SpecialIds, VocabSource};
use verbatim_gguf::Metadata;

impl Tokenizer {
    /// Builds the tokenizer that a model file describes.
    ///
    /// # Errors
    /// Metadata of the wrong type, and all errors of [`Tokenizer::new`].
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TokenizerError> {
        Self::new(&VocabSource::from_gguf(metadata)?)
    }
}

impl VocabSource {
    /// Copies the `tokenizer.*` keys of a model file. Nothing but their types is checked.
    ///
    /// # Errors
    /// `tokenizer.ggml.model` or `tokenizer.ggml.tokens` is absent, or a key has the wrong type.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let text = |key| Ok::<_, TokenizerError>(metadata.get_str(key)?.map(str::to_owned));
        // Some writers store "none" as a signed -1; as an unsigned number it is outside every vocabulary, too.
        let id = |key| {
            let id = metadata.get_i64(key)?;
            Ok::<_, TokenizerError>(id.map(|id| u32::try_from(id).unwrap_or(u32::MAX)))
        };
        let merges = metadata.get_str_array("tokenizer.ggml.merges")?;
        Ok(Self {
            name: text("general.name")?,
            model: metadata.require_str("tokenizer.ggml.model")?.to_owned(),
            pre: text("tokenizer.ggml.pre")?,
            tokens: metadata
                .require_bytes_array("tokenizer.ggml.tokens")?
                .iter()
                .map(<[u8]>::to_vec)
                .collect(),
            scores: metadata.get_f32_array("tokenizer.ggml.scores")?,
            token_types: metadata.get_i32_array("tokenizer.ggml.token_type")?,
            merges: merges.map(|merges| merges.iter().map(str::to_owned).collect()),
            special: SpecialIds {
                bos: id("tokenizer.ggml.bos_token_id")?,
                eos: id("tokenizer.ggml.eos_token_id")?,
                eot: id("tokenizer.ggml.eot_token_id")?,
                eom: id("tokenizer.ggml.eom_token_id")?,
                unk: id("tokenizer.ggml.unknown_token_id")?,
                // The key is spelled like this.
                sep: id("tokenizer.ggml.seperator_token_id")?,
                pad: id("tokenizer.ggml.padding_token_id")?,
                mask: id("tokenizer.ggml.mask_token_id")?,
            },
            add_bos: metadata.get_bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.get_bool("tokenizer.ggml.add_eos_token")?,
            add_sep: metadata.get_bool("tokenizer.ggml.add_sep_token")?,
            lowercase: metadata.get_bool("tokenizer.ggml.normalizer.lowercase")?,
            strip_accents: metadata.get_bool("tokenizer.ggml.normalizer.strip_accents")?,
            add_space_prefix: metadata.get_bool("tokenizer.ggml.add_space_prefix")?,
            chat_template: text("tokenizer.chat_template")?,
        })
    }
}
