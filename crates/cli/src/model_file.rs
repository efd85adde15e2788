//! What the commands read from a model file without loading the model.

use std::path::PathBuf;

use anyhow::Context;
use verbatim_gguf::GgufFile;
use verbatim_quant::DType;
use verbatim_text::Tokenizer;

use crate::store::Store;

/// A model file that is open.
#[derive(Debug)]
pub struct ModelFile {
    /// Its path.
    pub path: PathBuf,
    /// Its content.
    pub gguf: GgufFile,
}

/// Share of one tensor type in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeShare {
    /// The type.
    pub dtype: DType,
    /// Tensors of it.
    pub tensors: usize,
    /// Their elements.
    pub elements: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl ModelFile {
    /// Opens the model that `-m` refers to, without fetching anything.
    ///
    /// # Errors
    /// When there is no such model, or the file is truncated or corrupt.
    pub fn open(store: &Store, model: &str) -> anyhow::Result<Self> {
        let path = store.resolve(model)?;
        let gguf = GgufFile::open(&path)?;
        Ok(Self { path, gguf })
    }

    /// The file's tokenizer.
    ///
    /// # Errors
    /// When the file has none, or it is invalid or not supported.
    pub fn tokenizer(&self) -> anyhow::Result<Tokenizer> {
        Tokenizer::from_gguf(self.gguf.metadata())
            .with_context(|| format!("{} has no usable vocabulary", self.path.display()))
    }

    /// The file's chat template.
    ///
    /// # Errors
    /// When the file has none, or it is not UTF-8.
    pub fn chat_template(&self) -> anyhow::Result<&str> {
        self.gguf
            .metadata()
            .get_str("tokenizer.chat_template")
            .with_context(|| self.path.display().to_string())?
            .with_context(|| {
                format!("{} has no chat template: specify one with --template-file", self.path.display())
            })
    }
}

/// The shares of all tensor types, the largest first.
pub fn type_shares(file: &GgufFile) -> Vec<TypeShare> {
    let mut shares: Vec<TypeShare> = Vec::new();
    for tensor in file.tensors() {
        let index = shares.iter().position(|share| share.dtype == tensor.dtype()).unwrap_or_else(|| {
            shares.push(TypeShare { dtype: tensor.dtype(), tensors: 0, elements: 0, bytes: 0 });
            shares.len() - 1
        });
        let share = &mut shares[index];
        share.tensors += 1;
        share.elements += tensor.element_count();
        share.bytes += tensor.byte_len();
    }
    shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    shares
}

/// The name of the weights' format: the file's quantisation type, such as `Q4_K_M`, else the type with the most bytes.
pub fn weights_format(file: &GgufFile) -> &'static str {
    let quant = file.metadata().get_u32("general.file_type").ok().flatten().and_then(quant_type_name);
    quant.or_else(|| type_shares(file).first().map(|share| share.dtype.name())).unwrap_or("none")
}

/// Name of a value of `general.file_type`, after llama.cpp's `enum llama_ftype` (include/llama.h).
fn quant_type_name(file_type: u32) -> Option<&'static str> {
    Some(match file_type {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        19 => "IQ2_XXS",
        20 => "IQ2_XS",
        21 => "Q2_K_S",
        22 => "IQ3_XS",
        23 => "IQ3_XXS",
        24 => "IQ1_S",
        25 => "IQ4_NL",
        26 => "IQ3_S",
        27 => "IQ3_M",
        28 => "IQ2_S",
        29 => "IQ2_M",
        30 => "IQ4_XS",
        31 => "IQ1_M",
        32 => "BF16",
        36 => "TQ1_0",
        37 => "TQ2_0",
        38 => "MXFP4_MOE",
        _ => return None,
    })
}
