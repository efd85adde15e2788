//! Which places in flight are computed, and by whom.

use crate::owner::OwnerSet;
use crate::{NOT_A_TOKEN, OwnerId, SequenceId, State, StateError};
use verbatim_backend::StateStore;

impl<S: StateStore> State<S> {
    /// Says that an owner is about to compute these places in flight: what it has computed of them, and of those that follow
    /// them, is lost until [`State::computed`] says that the run has ended well. Is called after [`State::batch`].
    ///
    /// # Errors
    /// If there is no such sequence or place.
    pub fn begin_compute(
        &mut self,
        owner: OwnerId,
        rows: impl IntoIterator<Item = (SequenceId, usize)>,
    ) -> Result<(), StateError> {
        let recurs = self.owners[owner.0].recurs();
        let mut rows = rows.into_iter().peekable();
        while let Some((id, place)) = rows.next() {
            let sequence = self.sequence_mut(id)?;
            let first = sequence.in_flight(place)?;
            sequence.flight[first].is_stale = true;
            let (mut least, mut missing) = (first, None);
            while let Some((_, place)) = rows.next_if(|&(other, _)| other == id) {
                match sequence.in_flight(place) {
                    Ok(index) => {
                        sequence.flight[index].is_stale = true;
                        least = least.min(index);
                    }
                    Err(error) => missing = Some(error),
                }
            }
            sequence.lose_stale(least, OwnerSet::of(owner), recurs);
            missing.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Says that an owner has computed these places in flight, in this order: `(sequence, place, token)`. The token is `None`
    /// where the input was an embedding ([`NOT_A_TOKEN`]); only the target's is looked at. If it is another than the target was
    /// given there before, what drafts have computed of the place and of those that follow it is lost.
    ///
    /// # Errors
    /// If there is no such sequence or place.
    pub fn computed(
        &mut self,
        owner: OwnerId,
        rows: impl IntoIterator<Item = (SequenceId, usize, Option<u32>)>,
    ) -> Result<(), StateError> {
        let recurs = self.owners[owner.0].recurs();
        for (id, place, token) in rows {
            let sequence = self.sequence_mut(id)?;
            let index = sequence.in_flight(place)?;
            if owner == OwnerId::TARGET {
                sequence.set_token(index, token.unwrap_or(NOT_A_TOKEN));
            }
            sequence.set_computed(index, owner, recurs);
        }
        Ok(())
    }
}
