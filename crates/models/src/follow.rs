//! Follow passes: the part of a target's step that stores what a draft model needs of the target's hidden states.

use crate::graph_context::GraphContext;
use crate::{HadamardKv, HiddenOutput, ModelOffsets, WeightSpec};
use verbatim_graph::{Graph, GraphError, ValueId};

/// A draft model that reads hidden states of its target.
pub trait FeatureDraft: Send + Sync {
    /// The method, by llama.cpp's name for it.
    fn method(&self) -> &'static str;

    /// How it proposes tokens.
    fn drafting(&self) -> Drafting;

    /// The hidden states that it reads, in the order in which they are concatenated.
    fn features(&self) -> &[HiddenOutput];

    /// The target's ids of its vocabulary; `None` if it is the target's.
    fn vocabulary(&self) -> Option<&[i32]>;

    /// Positions that it was trained for.
    fn trained_context(&self) -> usize;

    /// The first position that a row attends to, if the follow pass has been computed from `computed_from` on.
    fn valid_from(&self, computed_from: usize) -> usize;

    /// Its weights.
    fn specs(&self) -> &[WeightSpec];

    /// The follow pass: stores what is needed of the features. Returns the fused features.
    ///
    /// # Errors
    /// Sizes that exceed the address space.
    fn follow(&self, ctx: &mut GraphContext<'_>, features: ValueId) -> Result<ValueId, GraphError>;
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

/// A draft model whose follow pass is part of a target's step.
#[derive(Clone, Copy)]
pub struct Follower<'a> {
    /// The draft model.
    pub draft: &'a dyn FeatureDraft,
    /// Offsets of its weights and layers.
    pub offsets: ModelOffsets,
    /// Whether its K and V are stored Hadamard-transformed.
    pub hadamard: HadamardKv,
}

/// Adds the follow passes to a target's graph, and finishes it.
pub(crate) fn finish<'a>(
    mut ctx: GraphContext<'a>,
    followers: &'a [Follower<'a>],
) -> Result<Graph, GraphError> {
    for (follower, index) in followers.iter().zip(0..) {
        let &Follower { draft, offsets, hadamard } = follower;
        let features = draft.features().iter().map(|feature| ctx.hidden_state(*feature));
        let features = features.collect::<Result<Vec<_>, _>>()?;
        ctx.set_model(draft.specs(), offsets, hadamard);
        let features = ctx.concat(&features)?;
        let fused = draft.follow(&mut ctx, features)?;
        ctx.hidden_output(HiddenOutput::Fused(index), fused)?;
    }
    Ok(ctx.finish())
}
