//! Which KV indices in flight are computed, and by whom.

use crate::owner::OwnerSet;
use crate::{NOT_A_TOKEN, OwnerId, SequenceId, State, StateError};
use verbatim_backend::StateStore;

impl<S: StateStore> State<S> {
    /// Says that an owner is about to compute these KV indices in flight: what it has computed of them, and of those that follow
    /// them, is lost until [`State::computed`] says that the run has ended well. Is called after [`State::batch`].
    ///
    /// # Errors
    /// If there is no such sequence or KV index.
    pub fn begin_compute(
        &mut self,
        owner: OwnerId,
        rows: impl IntoIterator<Item = (SequenceId, usize)>,
    ) -> Result<(), StateError> {
        let is_recurrent = self.owners[owner.0].is_recurrent();
        let mut rows = rows.into_iter().peekable();
        while let Some((id, kv_index)) = rows.next() {
            let sequence = self.sequence_mut(id)?;
            let first = sequence.in_flight(kv_index)?;
            sequence.flight[first].is_stale = true;
            let (mut least, mut missing) = (first, None);
            while let Some((_, kv_index)) = rows.next_if(|&(other, _)| other == id) {
                match sequence.in_flight(kv_index) {
                    Ok(index) => {
                        sequence.flight[index].is_stale = true;
                        least = least.min(index);
                    }
                    Err(error) => missing = Some(error),
                }
            }
            sequence.lose_stale(least, OwnerSet::of(owner), is_recurrent);
            missing.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Says that an owner has computed these KV indices in flight, in this order: `(sequence, kv_index, token)`. The token is `None`
    /// where the input was an embedding ([`NOT_A_TOKEN`]); only the target's is looked at. If it is another than the target was
    /// given there before, what drafts have computed of the KV index and of those that follow it is lost.
    ///
    /// # Errors
    /// If there is no such sequence or KV index.
    pub fn computed(
        &mut self,
        owner: OwnerId,
        rows: impl IntoIterator<Item = (SequenceId, usize, Option<u32>)>,
    ) -> Result<(), StateError> {
        let is_recurrent = self.owners[owner.0].is_recurrent();
        for (id, kv_index, token) in rows {
            let sequence = self.sequence_mut(id)?;
            let index = sequence.in_flight(kv_index)?;
            if owner == OwnerId::TARGET {
                sequence.set_token(index, token.unwrap_or(NOT_A_TOKEN));
            }
            sequence.set_computed(index, owner, is_recurrent);
        }
        Ok(())
    }
}
