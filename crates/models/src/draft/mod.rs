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
    Drafting, FeatureDraft, Follower, HiddenOutput, Hyperparameters, KvShape, Model, ModelError, PairError,
    SharedWeights, StepShape, WeightSpec,
};
use dflash::DFlash;
use eagle3::Eagle3;
use parts::Opened;
use verbatim_gguf::{BytesArray, GgufFile};
use verbatim_graph::{Graph, GraphError, ValueId};

/// A parsed and validated draft model that reads hidden states of its target.
pub struct OpenedDraft(Opened<Method>);

enum Method {
    Eagle3(Eagle3),
    DFlash(DFlash),
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
) -> Result<OpenedDraft, ModelError> {
    let name = file.metadata().require_str("general.architecture")?;
    let keys = MetadataReader::new(file, name);
    match name {
        eagle3::ARCHITECTURE | dflash::ARCHITECTURE => {}
        _ => return Err(ModelError::NotADraft { name: name.into() }),
    }
    check_vocabulary(file, target_file)?;
    Ok(OpenedDraft(match name {
        eagle3::ARCHITECTURE => eagle3::open(file, &keys, target)?.map(Method::Eagle3),
        _ => dflash::open(file, &keys, target)?.map(Method::DFlash),
    }))
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

impl FeatureDraft for OpenedDraft {
    fn method(&self) -> &'static str {
        match self.0.method {
            Method::Eagle3(_) => "draft-eagle3",
            Method::DFlash(_) => "draft-dflash",
        }
    }

    fn drafting(&self) -> Drafting {
        match &self.0.method {
            Method::Eagle3(_) => Drafting::Chain,
            Method::DFlash(dflash) => dflash.drafting(),
        }
    }

    fn features(&self) -> &[HiddenOutput] {
        &self.0.features
    }

    fn vocabulary(&self) -> Option<&[i32]> {
        self.0.vocabulary.as_deref()
    }

    fn trained_context(&self) -> usize {
        self.0.hyperparameters.context
    }

    fn valid_from(&self, computed_from: usize) -> usize {
        match self.0.method {
            // What it stores for a position needs the hidden states of the one before it.
            Method::Eagle3(_) => computed_from + 1,
            Method::DFlash(_) => computed_from,
        }
    }

    fn specs(&self) -> &[WeightSpec] {
        &self.0.specs
    }

    fn follow(&self, ctx: &mut GraphContext<'_>, features: ValueId) -> Result<ValueId, GraphError> {
        match &self.0.method {
            Method::Eagle3(eagle3) => eagle3.follow(ctx, features),
            Method::DFlash(dflash) => dflash.follow(ctx, features),
        }
    }
}

impl Model for OpenedDraft {
    fn hyperparameters(&self) -> &Hyperparameters {
        &self.0.hyperparameters
    }

    fn weights(&self) -> &[WeightSpec] {
        &self.0.specs
    }

    fn kv_shapes(&self, _context: usize) -> Vec<KvShape> {
        match &self.0.method {
            Method::Eagle3(eagle3) => eagle3.kv_shapes(self.0.hyperparameters.hidden),
            Method::DFlash(dflash) => dflash.kv_shapes(),
        }
    }

    fn shared_weights(&self) -> SharedWeights {
        unreachable!("a draft model has no draft models")
    }

    fn feature_draft(&self) -> Option<&dyn FeatureDraft> {
        Some(self)
    }

    fn build(&self, shape: &StepShape, _followers: &[Follower<'_>]) -> Result<Graph, GraphError> {
        let Opened { hyperparameters, vocabulary, method, .. } = &self.0;
        let mut ctx = GraphContext::new(&self.0.specs, shape)?;
        let vocabulary = (vocabulary.as_ref().map(Vec::len), hyperparameters.vocabulary);
        match method {
            Method::Eagle3(eagle3) => eagle3.build(&mut ctx, hyperparameters.hidden, vocabulary)?,
            Method::DFlash(dflash) => dflash.build(&mut ctx, vocabulary)?,
        }
        Ok(ctx.finish())
    }
}
