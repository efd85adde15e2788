//! Drafting with a model that reads the target's hidden states, for all requests of a step together.

use crate::row::{Draw, Row, RowInput, RowOutputs, Sample, StepError};
use crate::{MAX_ROWS, Sampler, SamplerState, SequenceId, StateError, Stepper};
use verbatim_backend::Backend;
use verbatim_models::Drafting;
use verbatim_state::ModelId;

/// A request that drafts.
#[derive(Debug)]
pub struct DraftRequest<'a> {
    /// Its sequence, without positions in flight.
    pub sequence: SequenceId,
    /// All its tokens, prompt included. Draft tokens are appended.
    pub tokens: &'a mut Vec<u32>,
    /// How many tokens at their end the target has not computed yet: at least one.
    pub pending: usize,
    /// Draws the draft tokens, with the noise of their positions: what the target will probably draw.
    pub sampler: &'a Sampler,
    /// Its state.
    pub state: SamplerState,
    /// At most so many draft tokens.
    pub max: usize,
    /// The draft ends before a token that is less likely, by the log-probabilities that the sampler returns; 0 for no such end.
    pub p_min: f32,
}

impl DraftRequest<'_> {
    fn row(&self, start: usize, index: usize, token: u32) -> Row<'_> {
        Row {
            sequence: self.sequence,
            kv_index: start + index,
            input: RowInput::Token(token),
            want: RowOutputs::NONE,
        }
    }

    /// The next token, sampled after these.
    fn draw<'a>(&'a self, history: &'a [u32]) -> RowOutputs<'a> {
        RowOutputs::token(Draw { sampler: self.sampler, state: self.state, history, mask: None })
    }

    /// Appends a sampled token; returns whether the draft continues.
    fn take(&mut self, sample: Option<Sample>) -> bool {
        let likely = |sample: &Sample| {
            let log_prob = sample.log_probs.as_ref().map_or(0.0, |log_probs| log_probs.log_prob);
            libm::expf(log_prob) >= self.p_min
        };
        let taken = sample.filter(likely).map(|sample| self.tokens.push(sample.token));
        taken.is_some()
    }
}

impl<B: Backend> Stepper<B> {
    /// Whether a draft model can draft what follows the last committed position.
    ///
    /// # Errors
    /// If the sequence does not exist.
    pub fn can_draft(&self, model: ModelId, sequence: SequenceId) -> Result<bool, StateError> {
        let (len, computed) = (self.len(sequence)?, self.computed_range(sequence, model)?);
        let draft = self.feature_draft(model);
        Ok(computed.end == len && draft.is_some_and(|draft| draft.valid_from(computed.start) <= len))
    }

    /// Appends draft tokens of an appended draft model ([`Stepper::append_draft`]) to the requests' tokens. Requests whose earlier
    /// positions it does not know get none. Sequences are left as they were.
    ///
    /// # Errors
    /// If a step fails.
    pub fn draft(&mut self, model: ModelId, requests: &mut [DraftRequest<'_>]) -> Result<(), StepError> {
        let result = match self.feature_draft(model).map(|draft| draft.drafting()) {
            None => Ok(()),
            Some(Drafting::Chain) => {
                requests.chunks_mut(MAX_ROWS).try_for_each(|requests| self.draft_chains(model, requests))
            }
            Some(Drafting::Block { mask_token, size }) => requests
                .chunks_mut((MAX_ROWS / size).max(1))
                .try_for_each(|requests| self.draft_blocks(model, requests, mask_token, size)),
        };
        for request in requests {
            self.rollback(request.sequence)?;
        }
        result
    }

    /// One token of each request at a time.
    fn draft_chains(&mut self, model: ModelId, requests: &mut [DraftRequest<'_>]) -> Result<(), StepError> {
        let mut starts = Vec::with_capacity(requests.len());
        for request in &*requests {
            // The last token needs no row.
            let rows = (request.pending + request.max).saturating_sub(1);
            starts.push(if request.max > 0 { self.append(request.sequence, rows).ok() } else { None });
        }
        let firsts: Vec<usize> =
            requests.iter().map(|request| request.tokens.len() - request.pending).collect();
        let mut active: Vec<usize> = (0..requests.len()).filter(|&i| starts[i].is_some()).collect();
        for index in 0.. {
            active.retain(|&i| index + 1 < requests[i].pending + requests[i].max);
            if active.is_empty() {
                break;
            }
            let rows = active.iter().map(|&i| {
                let request = &requests[i];
                let history = &request.tokens[..firsts[i] + index + 1];
                let row = request.row(starts[i].unwrap_or(0), index, history[history.len() - 1]);
                let is_last = history.len() == request.tokens.len();
                Row { want: if is_last { request.draw(history) } else { row.want }, ..row }
            });
            let rows: Vec<Row<'_>> = rows.collect();
            let outputs = self.step_with(model, &rows)?;
            let samples = (0..rows.len()).map(|row| outputs.sample(row).map(Option::<&Sample>::cloned));
            let samples: Vec<_> = samples.collect();
            drop(outputs);
            let mut samples = samples.into_iter();
            active.retain(|&i| match samples.next() {
                Some(Ok(None)) => true,
                Some(Ok(sample)) => requests[i].take(sample),
                Some(Err(_)) | None => false,
            });
        }
        Ok(())
    }

    /// All tokens of each request in one step.
    fn draft_blocks(
        &mut self,
        model: ModelId,
        requests: &mut [DraftRequest<'_>],
        mask_token: u32,
        size: usize,
    ) -> Result<(), StepError> {
        // For each request, the first KV index and the number of mask tokens, if it has room for a block.
        let mut blocks = Vec::with_capacity(requests.len());
        for request in &*requests {
            let masks = request.max.min(size.saturating_sub(request.pending));
            let rows = request.pending + masks;
            let start = if masks > 0 { self.append(request.sequence, rows).ok() } else { None };
            blocks.push(start.map(|start| (start, masks)));
        }
        let mut rows = Vec::new();
        for (request, block) in requests.iter().zip(&blocks) {
            let Some((start, masks)) = *block else { continue };
            let known = request.tokens[request.tokens.len() - request.pending..].iter().enumerate();
            rows.extend(known.map(|(index, &token)| request.row(start, index, token)));
            rows.extend((0..masks).map(|index| Row {
                want: request.draw(request.tokens),
                ..request.row(start, request.pending + index, mask_token)
            }));
        }
        if rows.is_empty() {
            return Ok(());
        }
        let outputs = self.step_with(model, &rows)?;
        let samples: Vec<Option<Sample>> =
            (0..rows.len()).map(|row| outputs.sample(row).ok().flatten().cloned()).collect();
        drop(outputs);
        let mut samples = samples.into_iter();
        for (request, block) in requests.iter_mut().zip(blocks) {
            let Some((_, masks)) = block else { continue };
            samples.by_ref().take(request.pending).for_each(drop);
            let mut block = samples.by_ref().take(masks).collect::<Vec<_>>().into_iter();
            while block.next().is_some_and(|sample| request.take(sample)) {}
        }
        Ok(())
    }
}
