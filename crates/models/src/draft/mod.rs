//! Draft models that read hidden states of their target, one file per method: EAGLE-3 and DFlash.
//!
//! Such a model has two graphs. Its *follow pass* is part of every step of the target: it fuses the features, which are hidden
//! states of some layers, and stores what drafting will need in the cells of the step's positions. Its own step drafts.

mod dflash;
mod eagle3;
mod parts;

use crate::graph_context::GraphContext;
use crate::metadata::MetadataReader;
use crate::{
    Follower, HiddenOutput, Hyperparameters, KvShape, Model, ModelError, PairError, SharedWeights, StepShape,
    WeightSpec,
};
use dflash::DFlash;
use eagle3::Eagle3;
use verbatim_gguf::{BytesArray, GgufFile};
use verbatim_graph::{Graph, GraphError, ValueId};

/// A parsed and validated draft model that reads hidden states of its target.
pub struct FeatureDraft {
    hyperparameters: Hyperparameters,
    specs: Vec<WeightSpec>,
    /// The hidden states that it reads, in order.
    features: Vec<HiddenOutput>,
    /// The target's ids of its vocabulary; `None` if it is the target's.
    vocabulary: Option<Vec<i32>>,
    method: Method,
}

enum Method {
    Eagle3(Eagle3),
    DFlash(DFlash),
}

/// How a draft model proposes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafting {
    /// A step drafts one token, after the row's; the next step continues from it.
    Chain,
    /// One step drafts all tokens: a block of the last token and then the mask token, each row of which becomes the token in its
    /// place.
    Block {
        /// Stands for a token that is to be drafted.
        mask_token: u32,
        /// Rows of the block, the last token's included.
        size: usize,
    },
}

/// Opens a draft model for a target: parses and validates its metadata and tensor table, and that it fits. Reads no weights.
///
/// # Errors
/// As for [`open`](crate::open); a file that is not such a draft model; and what does not fit: vocabulary, tokenizer, hidden size
/// or feature layers.
pub fn open_draft(
    file: &GgufFile,
    target: &dyn Model,
    target_file: &GgufFile,
) -> Result<FeatureDraft, ModelError> {
    let name = file.metadata().require_str("general.architecture")?;
    let keys = MetadataReader::new(file, name);
    match name {
        eagle3::ARCHITECTURE | dflash::ARCHITECTURE => {}
        _ => return Err(ModelError::NotADraft { name: name.into() }),
    }
    check_vocabulary(file, target_file)?;
    match name {
        eagle3::ARCHITECTURE => eagle3::open(file, &keys, target),
        _ => dflash::open(file, &keys, target),
    }
}

/// Checks that two files have the same tokens.
fn check_vocabulary(file: &GgufFile, target: &GgufFile) -> Result<(), ModelError> {
    fn tokens<'a>(file: &'a GgufFile, which: &'static str) -> Result<BytesArray<'a>, ModelError> {
        let tokens = file.metadata().get_bytes_array("tokenizer.ggml.tokens")?;
        Ok(tokens.ok_or(PairError::NoTokenizer(which))?)
    }
    let (draft, target) = (tokens(file, "draft model")?, tokens(target, "target")?);
    if draft.len() != target.len() {
        return Err(PairError::Vocabulary { draft: draft.len(), target: target.len() }.into());
    }
    let mut pairs = draft.iter().zip(target.iter());
    let text = |token: &[u8]| String::from_utf8_lossy(token).into_owned();
    match pairs.position(|(draft, target)| draft != target) {
        None => Ok(()),
        Some(token) => {
            let texts = draft.iter().zip(target.iter()).nth(token);
            let (draft, target) = texts.map(|(a, b)| (text(a), text(b))).unwrap_or_default();
            Err(PairError::Tokenizer { token, draft, target }.into())
        }
    }
}

impl FeatureDraft {
    /// The hidden states that it reads, in the order in which they are concatenated.
    pub fn features(&self) -> &[HiddenOutput] {
        &self.features
    }

    /// The method, by llama.cpp's name for it.
    pub fn method(&self) -> &'static str {
        match self.method {
            Method::Eagle3(_) => "draft-eagle3",
            Method::DFlash(_) => "draft-dflash",
        }
    }

    /// How it proposes tokens.
    pub fn drafting(&self) -> Drafting {
        match &self.method {
            Method::Eagle3(_) => Drafting::Chain,
            Method::DFlash(dflash) => dflash.drafting(),
        }
    }

    /// The first position that a row attends to, if the follow pass has been computed from `computed_from` on: what an EAGLE-3
    /// draft stores for a position needs the hidden states of the one before it.
    pub fn valid_from(&self, computed_from: usize) -> usize {
        match self.method {
            Method::Eagle3(_) => computed_from + 1,
            Method::DFlash(_) => computed_from,
        }
    }

    /// The target's ids of its vocabulary; `None` if it is the target's.
    pub fn vocabulary(&self) -> Option<&[i32]> {
        self.vocabulary.as_deref()
    }

    pub(crate) fn specs(&self) -> &[WeightSpec] {
        &self.specs
    }

    /// The follow pass: stores what is needed of the features. Returns the fused features.
    pub(crate) fn follow(
        &self,
        ctx: &mut GraphContext<'_>,
        features: ValueId,
    ) -> Result<ValueId, GraphError> {
        match &self.method {
            Method::Eagle3(eagle3) => eagle3.follow(ctx, features),
            Method::DFlash(dflash) => dflash.follow(ctx, features),
        }
    }
}

impl Model for FeatureDraft {
    fn hyperparameters(&self) -> &Hyperparameters {
        &self.hyperparameters
    }

    fn weights(&self) -> &[WeightSpec] {
        &self.specs
    }

    fn kv_shapes(&self, _context: usize) -> Vec<KvShape> {
        match &self.method {
            Method::Eagle3(eagle3) => eagle3.kv_shapes(self.hyperparameters.hidden),
            Method::DFlash(dflash) => dflash.kv_shapes(),
        }
    }

    fn shared_weights(&self) -> SharedWeights {
        unreachable!("a draft model has no draft models")
    }

    fn feature_draft(&self) -> Option<&FeatureDraft> {
        Some(self)
    }

    fn build(&self, shape: &StepShape, _followers: &[Follower<'_>]) -> Result<Graph, GraphError> {
        let ctx = GraphContext::new(&self.specs, shape, &[])?;
        let vocabulary = (self.vocabulary.as_ref().map(Vec::len), self.hyperparameters.vocabulary);
        match &self.method {
            Method::Eagle3(eagle3) => eagle3.build(ctx, self.hyperparameters.hidden, vocabulary),
            Method::DFlash(dflash) => dflash.build(ctx, vocabulary),
        }
    }
}
