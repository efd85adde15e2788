//! Sampling the output rows of a step, in the graph or outside it. Both draw the same tokens.

use crate::row::{Draw, NextOutput, Row, RowError, Sample};
use verbatim_backend::Outputs;
use verbatim_models::{NextOutputs, outputs};
use verbatim_sample::{Edit, NO_TOKEN, ROW_WORDS, SampleInput, SampleScratch, Sampled};

/// The samplers of a step's output rows, and buffers that are reused from step to step.
#[derive(Default)]
pub(crate) struct SamplerRows {
    /// By output row: the sampler as data, [`ROW_WORDS`] each.
    words: Vec<u32>,
    /// By output row: one bit for each token.
    masks: Vec<u32>,
    /// By output row: whether the graph samples it.
    in_graph: Vec<bool>,
    /// By output row: the position of the token to sample, which keys its noise.
    positions: Vec<u64>,
    edits: Vec<Edit>,
    scratch: SampleScratch,
}

impl SamplerRows {
    /// Begins a step.
    pub(crate) fn begin(&mut self) {
        self.words.clear();
        self.masks.clear();
        self.in_graph.clear();
        self.positions.clear();
    }

    /// Adds an output row. With `backend_sampling`, what can be sampled in the graph is.
    pub(crate) fn push(&mut self, row: &Row<'_>, position: u64, vocabulary: usize, backend_sampling: bool) {
        let start = self.words.len();
        self.words.resize(start + ROW_WORDS, 0);
        let (mut mask, mut in_graph) = (None, false);
        if let NextOutput::Token(draw) = row.want.next {
            let words = &mut self.words[start..];
            mask = draw.mask;
            in_graph = backend_sampling && draw.sampler.lower(draw.history, position, &mut self.edits, words);
        }
        if !in_graph {
            // A greedy sampler without edits, whose result nobody reads.
            self.words[start..].fill(0);
        }
        let mask_words = vocabulary.div_ceil(32);
        let given = mask.map_or(0, |mask| mask.len().min(mask_words));
        self.masks.extend_from_slice(&mask.unwrap_or_default()[..given]);
        let beyond = if mask.is_some() { 0 } else { u32::MAX };
        self.masks.extend(std::iter::repeat_n(beyond, mask_words - given));
        self.in_graph.push(in_graph);
        self.positions.push(position);
    }

    /// What the graph must return for these rows.
    pub(crate) fn next_outputs(&self) -> NextOutputs {
        NextOutputs { logits: self.in_graph.contains(&false), tokens: self.in_graph.contains(&true) }
    }

    pub(crate) fn words(&self) -> impl Iterator<Item = i32> + '_ {
        self.words.iter().map(|word| word.cast_signed())
    }

    pub(crate) fn masks(&self) -> impl Iterator<Item = i32> + '_ {
        self.masks.iter().map(|word| word.cast_signed())
    }

    /// The sample of an output row.
    pub(crate) fn sample(
        &mut self,
        draw: Draw<'_>,
        output_row: usize,
        run: &impl Outputs,
    ) -> Result<Sample, RowError> {
        let sampled = if self.in_graph[output_row] {
            let token = run.row_i32(outputs::TOKENS, output_row).and_then(|row| row.first());
            let token = token.map(|token| token.cast_unsigned()).filter(|&token| token != NO_TOKEN);
            token.map(|token| Sample { token, state: draw.state, log_probs: None, outside_graph: false })
        } else {
            let Draw { sampler, state, history, mask } = draw;
            let logits = run.row(outputs::LOGITS, output_row).unwrap_or_default();
            let input = SampleInput { logits, position: self.positions[output_row], history, mask, state };
            sampler.sample(&input, &mut self.scratch).map(|Sampled { token, state, log_probs }| Sample {
                token,
                state,
                log_probs,
                outside_graph: true,
            })
        };
        let allows_none = || draw.mask.is_some_and(|mask| mask.iter().all(|word| *word == 0));
        let error = || if allows_none() { RowError::NoTokenAllowed } else { RowError::AllNan };
        sampled.ok_or_else(error)
    }
}
