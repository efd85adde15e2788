//! What draft models have in common: feature layers, and matrices that are their own or the target's.

use crate::graph_context::GraphContext;
use crate::metadata::MetadataReader;
use crate::table::{Linear, Table, WeightId};
use crate::{HiddenOutput, Hyperparameters, Model, ModelError, PairError, WeightSpec};
use verbatim_graph::{F32Bits, GraphError, ValueId};

/// What every draft model has, and its method.
pub(super) struct Opened<M> {
    pub(super) hyperparameters: Hyperparameters,
    pub(super) specs: Vec<WeightSpec>,
    /// The hidden states that it reads, in order.
    pub(super) features: Vec<HiddenOutput>,
    /// The target's ids of its vocabulary; `None` if it is the target's.
    pub(super) vocabulary: Option<Vec<i32>>,
    pub(super) method: M,
}

impl<M> Opened<M> {
    pub(super) fn map<N>(self, to: impl FnOnce(M) -> N) -> Opened<N> {
        let Opened { hyperparameters, specs, features, vocabulary, method } = self;
        Opened { hyperparameters, specs, features, vocabulary, method: to(method) }
    }
}

/// A matrix of the draft model or of its target.
pub(super) enum Matrix {
    Own(WeightId),
    Target { index: u32, spec: WeightSpec },
}

impl Matrix {
    fn of_target(target: &dyn Model, index: u32) -> Matrix {
        Matrix::Target { index, spec: target.weights()[index as usize].clone() }
    }

    pub(super) fn value(&self, ctx: &mut GraphContext<'_>) -> Result<ValueId, GraphError> {
        match self {
            Matrix::Own(weight) => ctx.weight(*weight),
            Matrix::Target { index, spec } => ctx.weight_of(*index, spec),
        }
    }
}

/// The hyperparameters of a draft model for this target.
pub(super) fn hyperparameters(
    keys: &MetadataReader<'_>,
    architecture: &str,
    target: &dyn Model,
) -> Result<Hyperparameters, ModelError> {
    Ok(Hyperparameters {
        architecture: architecture.into(),
        layers: keys.require_count("block_count")?,
        hidden: keys.require_count("embedding_length")?,
        vocabulary: target.hyperparameters().vocabulary,
        context: keys.require_count("context_length")?,
    })
}

/// Checks that the hidden size of a key is the target's.
pub(super) fn check_hidden_size(
    keys: &MetadataReader<'_>,
    name: &str,
    draft: usize,
    target: &dyn Model,
) -> Result<(), PairError> {
    let target = target.hyperparameters().hidden;
    match draft == target {
        true => Ok(()),
        false => Err(PairError::HiddenSize { draft, key: keys.key(name), target }),
    }
}

/// The hidden states that enter the layers of `target_layers`; 0 is the embeddings.
pub(super) fn features(
    keys: &MetadataReader<'_>,
    target: &dyn Model,
) -> Result<Vec<HiddenOutput>, ModelError> {
    let layers = target.hyperparameters().layers;
    let entering = keys.require_counts("target_layers")?;
    let feature = |layer: usize| match layer.checked_sub(1) {
        None => Ok(HiddenOutput::Embedding),
        Some(before) if layer <= layers => Ok(HiddenOutput::Layer(before as u32)),
        Some(_) => Err(PairError::FeatureLayer { layer, layers }),
    };
    Ok(entering.into_iter().map(feature).collect::<Result<_, _>>()?)
}

/// The token embeddings: the file's, or else the target's.
pub(super) fn embedding(
    table: &mut Table<'_>,
    keys: &MetadataReader<'_>,
    hyperparameters: &Hyperparameters,
    target: &dyn Model,
) -> Result<Matrix, ModelError> {
    let name = "token_embd.weight";
    if table.has(name) {
        let &Hyperparameters { vocabulary, hidden, .. } = hyperparameters;
        return Ok(Matrix::Own(table.matrix(name, vocabulary, hidden)?));
    }
    check_hidden_size(keys, "embedding_length", hyperparameters.hidden, target)?;
    Ok(Matrix::of_target(target, target.shared_weights().embedding))
}

/// The LM head of a draft model: its own over `rows` tokens, or else the target's.
pub(super) struct Head {
    pub(super) matrix: Matrix,
    pub(super) scale: F32Bits,
}

pub(super) fn head(
    table: &mut Table<'_>,
    keys: &MetadataReader<'_>,
    hyperparameters: &Hyperparameters,
    reduced: Option<usize>,
    target: &dyn Model,
) -> Result<Head, ModelError> {
    let rows = reduced.unwrap_or(hyperparameters.vocabulary);
    if table.has("output.weight") {
        let Linear { weight, scale, .. } = table.unbiased_linear("output", rows, hyperparameters.hidden)?;
        return Ok(Head { matrix: Matrix::Own(weight), scale });
    }
    if reduced.is_some() {
        return Err(PairError::NotShared("output.weight for its draft vocabulary").into());
    }
    check_hidden_size(keys, "embedding_length", hyperparameters.hidden, target)?;
    let shared = target.shared_weights();
    let head = shared.head.ok_or(PairError::NotShared("output.weight"))?;
    Ok(Head { matrix: Matrix::of_target(target, head), scale: shared.head_scale })
}
