//! Tracks which positions in flight each model has computed.

use crate::model::ModelSet;
use crate::{ModelId, NOT_A_TOKEN, SequenceId, State, StateError};
use verbatim_backend::StateStore;

impl<S: StateStore> State<S> {
    /// Marks these KV indices in flight, and their descendants, as not computed by a model that is about to compute them, until
    /// [`State::computed`] reports that the run has succeeded. Call it after [`State::batch`].
    ///
    /// # Errors
    /// If the sequence does not exist or the KV index is not in flight.
    pub fn begin_compute(
        &mut self,
        model: ModelId,
        rows: impl IntoIterator<Item = (SequenceId, usize)>,
    ) -> Result<(), StateError> {
        let is_recurrent = self.models[model.0].is_recurrent();
        let mut rows = rows.into_iter().peekable();
        while let Some((id, kv_index)) = rows.next() {
            let sequence = self.sequence_mut(id)?;
            let first = sequence.in_flight_index(kv_index)?;
            sequence.in_flight[first].is_stale = true;
            let (mut min_index, mut missing) = (first, None);
            while let Some((_, kv_index)) = rows.next_if(|&(other, _)| other == id) {
                match sequence.in_flight_index(kv_index) {
                    Ok(index) => {
                        sequence.in_flight[index].is_stale = true;
                        min_index = min_index.min(index);
                    }
                    Err(error) => missing = Some(error),
                }
            }
            sequence.invalidate_stale(min_index, ModelSet::from_model(model), is_recurrent);
            missing.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Marks these KV indices in flight as computed by a model, in this order: `(sequence, kv_index, token)`. The token is `None`
    /// if the input was an embedding ([`NOT_A_TOKEN`]); only the target's is used. If it differs from the target's previous token,
    /// the draft models' results there and in descendants are invalidated.
    ///
    /// # Errors
    /// If the sequence does not exist or the KV index is not in flight.
    pub fn computed(
        &mut self,
        model: ModelId,
        rows: impl IntoIterator<Item = (SequenceId, usize, Option<u32>)>,
    ) -> Result<(), StateError> {
        let is_recurrent = self.models[model.0].is_recurrent();
        for (id, kv_index, token) in rows {
            let sequence = self.sequence_mut(id)?;
            let index = sequence.in_flight_index(kv_index)?;
            if model == ModelId::TARGET {
                sequence.set_token(index, token.unwrap_or(NOT_A_TOKEN));
            }
            sequence.set_computed(index, model, is_recurrent);
        }
        Ok(())
    }
}
