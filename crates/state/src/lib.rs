//! Sequence state: which positions of which sequence live in which cells of the backend's memory.
//!
//! A sequence grows in two steps. [`State::append`] reserves cells for positions in flight, a run stores their K and
//! V, and [`State::commit`] keeps the first n of them; [`State::rollback`] drops them. Nothing that was committed is
//! touched by either, so a step that fails, or drafts that are rejected, leave a sequence as it was.
//!
//! Layers that recur have no cells. What they carry from a position to the next lies in slots: the state after the last
//! committed position in one, and those after positions in flight in others ([`State::slots`]), so that any of the last
//! [`CHECKPOINTS`] positions in flight can be the one that is kept. An older one cannot: its state has been overwritten.
//!
//! Pages are owned by one sequence each and are given back when it ends. A sequence that cannot be given a page is
//! told so; the others go on.

use std::ops::Range;
use verbatim_cpu::{KvMemory, KvMemoryError, KvSpec, PAGE_CELLS, StateMemory};
use verbatim_cpu::{RecurrentMemory, RecurrentMemoryError, RecurrentSpec};

/// Positions in flight of one sequence whose recurrent states are kept apart.
pub const CHECKPOINTS: usize = 16;
/// One slot for the committed state, the others for positions in flight.
const SLOTS_PER_SEQUENCE: usize = CHECKPOINTS + 1;

/// Why there is no memory for sequences.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StateMemoryError {
    /// Not for K and V.
    #[error(transparent)]
    Kv(#[from] KvMemoryError),
    /// Not for recurrent states.
    #[error(transparent)]
    Recurrent(#[from] RecurrentMemoryError),
}

/// Names a sequence of one [`State`]. It is also the sequence's row in the page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(usize);

impl SequenceId {
    /// The sequence's row in the page table.
    pub fn index(self) -> usize {
        self.0
    }
}

/// Why an operation on a sequence was refused. The state is as it was before.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StateError {
    /// As many sequences as there can be are in use.
    #[error("all {0} sequences are in use; wait for one to end")]
    NoSequence(usize),
    /// The sequence would grow past the context.
    #[error(
        "{wanted} positions are more than the context of {context}; use a larger --ctx or a shorter prompt"
    )]
    ContextFull {
        /// Positions that the sequence would have.
        wanted: usize,
        /// Positions that one may have.
        context: usize,
    },
    /// All pages are in use by other sequences.
    #[error(
        "{wanted} more pages of {PAGE_CELLS} positions are needed and {free} are free; wait for a sequence to end"
    )]
    NoPages {
        /// Pages needed.
        wanted: usize,
        /// Pages free.
        free: usize,
    },
    /// The sequence has ended or never was.
    #[error("sequence {0} does not exist")]
    NoSuchSequence(usize),
    /// More positions are to be committed than are in flight.
    #[error("{wanted} positions are to be committed but {in_flight} are in flight")]
    NotInFlight {
        /// Positions to commit.
        wanted: usize,
        /// Positions in flight.
        in_flight: usize,
    },
    /// More positions are to be in flight than can be kept apart, on top of some that are.
    #[error(
        "{wanted} positions in flight are more than the {CHECKPOINTS} that a recurrent model keeps apart; commit first"
    )]
    TooManyInFlight {
        /// Positions that would be in flight.
        wanted: usize,
    },
    /// The state after the position to be kept has been overwritten by later ones.
    #[error(
        "of {in_flight} positions in flight of a recurrent model {wanted} cannot be kept; keep none, or {least} or more"
    )]
    NoCheckpoint {
        /// Positions to commit.
        wanted: usize,
        /// Positions in flight.
        in_flight: usize,
        /// The fewest, but for none, that can be committed.
        least: usize,
    },
    /// Positions are to be committed whose states were never computed.
    #[error("{wanted} positions are to be committed but only {computed} of them are computed")]
    NotComputed {
        /// Positions to commit.
        wanted: usize,
        /// Positions in flight that a step has computed.
        computed: usize,
    },
    /// The state after an earlier position is gone.
    #[error(
        "a recurrent model cannot go back from position {committed} to {wanted}; go back to 0 and compute again"
    )]
    CannotGoBack {
        /// Positions to keep.
        wanted: usize,
        /// Positions committed.
        committed: usize,
    },
}

#[derive(Debug, Default)]
struct Sequence {
    committed: usize,
    in_flight: usize,
    /// Positions in flight whose recurrent states are in their slots.
    computed: usize,
    /// The slot, of the sequence's own, with the state after the last committed position.
    slot: usize,
    pages: usize,
}

impl Sequence {
    /// The first position in flight, counted from 0, whose state is kept apart from the ones before it.
    fn first_checkpoint(&self) -> usize {
        self.in_flight.saturating_sub(CHECKPOINTS)
    }

    /// The slot, of the sequence's own, of a position in flight: never that of the committed state. Positions before the
    /// first checkpoint share the first slot, one after the other.
    fn slot_of(&self, in_flight: usize) -> usize {
        let nth = in_flight.saturating_sub(self.first_checkpoint());
        if nth < self.slot { nth } else { nth + 1 }
    }
}

/// The state of all sequences.
pub struct State {
    memory: StateMemory,
    recurs: bool,
    context: usize,
    sequences: Vec<Option<Sequence>>,
    /// \[sequence, block of positions\] → page; -1 where there is none.
    page_table: Vec<i32>,
    free_pages: Vec<i32>,
}

impl State {
    /// State for at most `sequences` sequences of at most `context` positions each, in `pages` pages shared by all.
    ///
    /// # Errors
    /// If there is no memory for so many pages, or for the recurrent states of so many sequences.
    pub fn new(
        specs: &[KvSpec],
        recurrent: &[RecurrentSpec],
        sequences: usize,
        context: usize,
        pages: usize,
    ) -> Result<State, StateMemoryError> {
        let too_many = || KvMemoryError { pages, layers: specs.len() };
        let slots = if recurrent.is_empty() { 0 } else { sequences.saturating_mul(SLOTS_PER_SEQUENCE) };
        // Slots are i32 in graphs.
        if i32::try_from(slots).is_err() {
            return Err(RecurrentMemoryError { slots, layers: recurrent.len() }.into());
        }
        let memory = StateMemory {
            kv: KvMemory::new(&specs.iter().map(|&spec| (spec, pages)).collect::<Vec<_>>())?,
            recurrent: RecurrentMemory::new(recurrent, slots)?,
        };
        let entries = sequences.checked_mul(context.div_ceil(PAGE_CELLS)).ok_or_else(too_many)?;
        let last_page = i32::try_from(pages).map_err(|_| too_many())?;
        Ok(State {
            memory,
            recurs: !recurrent.is_empty(),
            context,
            sequences: (0..sequences).map(|_| None).collect(),
            page_table: vec![-1; entries],
            free_pages: (0..last_page).rev().collect(),
        })
    }

    /// Pages that hold one sequence of `context` positions.
    pub fn pages_for(context: usize) -> usize {
        context.div_ceil(PAGE_CELLS)
    }

    /// The most positions of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The backend's memory, for a run.
    pub fn memory_mut(&mut self) -> &mut StateMemory {
        &mut self.memory
    }

    /// Sequences, and pages of each, of [`State::page_table`].
    pub fn page_table_shape(&self) -> [usize; 2] {
        [self.sequences.len(), self.blocks()]
    }

    /// For each sequence the page of each block of [`PAGE_CELLS`] positions; -1 where there is none.
    pub fn page_table(&self) -> &[i32] {
        &self.page_table
    }

    fn blocks(&self) -> usize {
        Self::pages_for(self.context)
    }

    /// A new, empty sequence.
    pub fn begin(&mut self) -> Result<SequenceId, StateError> {
        let free = self.sequences.iter().position(Option::is_none);
        let index = free.ok_or(StateError::NoSequence(self.sequences.len()))?;
        self.sequences[index] = Some(Sequence::default());
        Ok(SequenceId(index))
    }

    /// Ends a sequence and gives its pages back.
    pub fn end(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.sequence(id)?;
        self.keep_pages(id, 0);
        self.sequences[id.0] = None;
        Ok(())
    }

    /// Positions committed.
    pub fn len(&self, id: SequenceId) -> Result<usize, StateError> {
        self.sequence(id).map(|sequence| sequence.committed)
    }

    /// Whether nothing is committed.
    pub fn is_empty(&self, id: SequenceId) -> Result<bool, StateError> {
        self.len(id).map(|len| len == 0)
    }

    /// Reserves `count` more positions in flight and returns them.
    ///
    /// # Errors
    /// If the context or the pages do not suffice; for a recurrent model, if some positions are in flight already and
    /// together they are more than [`CHECKPOINTS`].
    pub fn append(&mut self, id: SequenceId, count: usize) -> Result<Range<usize>, StateError> {
        let (context, recurs) = (self.context, self.recurs);
        let sequence = self.sequence(id)?;
        let start = sequence.committed + sequence.in_flight;
        let pages = sequence.pages;
        let end = start.saturating_add(count);
        if end > context {
            return Err(StateError::ContextFull { wanted: end, context });
        }
        // Which slot a position has depends on how many are in flight, unless all are kept apart.
        let in_flight = sequence.in_flight + count;
        if recurs && sequence.in_flight > 0 && count > 0 && in_flight > CHECKPOINTS {
            return Err(StateError::TooManyInFlight { wanted: in_flight });
        }
        let wanted = Self::pages_for(end).saturating_sub(pages);
        if wanted > self.free_pages.len() {
            return Err(StateError::NoPages { wanted, free: self.free_pages.len() });
        }
        let row = id.0 * self.blocks();
        for block in pages..pages + wanted {
            self.page_table[row + block] = self.free_pages.pop().expect("counted above");
        }
        let sequence = self.sequence_mut(id)?;
        sequence.pages += wanted;
        sequence.in_flight += count;
        Ok(start..end)
    }

    /// The cell of a position that is committed or in flight.
    pub fn cell(&self, id: SequenceId, position: usize) -> Option<usize> {
        let sequence = self.sequence(id).ok()?;
        if position >= sequence.committed + sequence.in_flight {
            return None;
        }
        let page = self.page_table[id.0 * self.blocks() + position / PAGE_CELLS];
        usize::try_from(page).ok().map(|page| page * PAGE_CELLS + position % PAGE_CELLS)
    }

    /// Whether layers carry a state from position to position.
    pub fn recurs(&self) -> bool {
        self.recurs
    }

    /// For a position in flight of a recurrent model: the slot with the state before it (-1 if there is no position
    /// before), and the one for the state after it.
    pub fn slots(&self, id: SequenceId, position: usize) -> Option<[i32; 2]> {
        let sequence = self.sequence(id).ok()?;
        let in_flight = position.checked_sub(sequence.committed).filter(|&i| i < sequence.in_flight)?;
        let slot = |own: usize| (id.0 * SLOTS_PER_SEQUENCE + own) as i32;
        let before = match in_flight {
            0 if sequence.committed == 0 => -1,
            0 => slot(sequence.slot),
            _ => slot(sequence.slot_of(in_flight - 1)),
        };
        Some([before, slot(sequence.slot_of(in_flight))])
    }

    /// Whether a step of a recurrent model can begin with this position of the sequence: it is in flight, and the state
    /// before it is there.
    pub fn can_compute(&self, id: SequenceId, position: usize) -> bool {
        let Ok(sequence) = self.sequence(id) else { return false };
        let Some(in_flight) = position.checked_sub(sequence.committed) else { return false };
        let is_next = in_flight == sequence.computed;
        let is_again =
            in_flight < sequence.computed && (in_flight == 0 || in_flight > sequence.first_checkpoint());
        in_flight < sequence.in_flight && (is_next || is_again)
    }

    /// Says that the states after the positions before this one, and no others in flight, are in their slots.
    pub fn set_computed(&mut self, id: SequenceId, before: usize) -> Result<(), StateError> {
        let sequence = self.sequence_mut(id)?;
        sequence.computed = before.saturating_sub(sequence.committed).min(sequence.in_flight);
        Ok(())
    }

    /// Keeps the first `count` positions in flight and drops the others.
    ///
    /// # Errors
    /// If so many are not in flight; for a recurrent model, also if the state after the last of them is not there.
    pub fn commit(&mut self, id: SequenceId, count: usize) -> Result<(), StateError> {
        let recurs = self.recurs;
        let sequence = self.sequence_mut(id)?;
        let Sequence { in_flight, computed, .. } = *sequence;
        if count > in_flight {
            return Err(StateError::NotInFlight { wanted: count, in_flight });
        }
        if recurs && count > 0 {
            let least = sequence.first_checkpoint() + 1;
            if count > computed {
                return Err(StateError::NotComputed { wanted: count, computed });
            }
            if count < least {
                return Err(StateError::NoCheckpoint { wanted: count, in_flight, least });
            }
            sequence.slot = sequence.slot_of(count - 1);
        }
        sequence.committed += count;
        sequence.in_flight = 0;
        sequence.computed = 0;
        let committed = sequence.committed;
        self.keep_pages(id, committed);
        Ok(())
    }

    /// Drops all positions in flight.
    pub fn rollback(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.commit(id, 0)
    }

    /// Forgets all positions from `len` on, and those in flight.
    ///
    /// # Errors
    /// For a recurrent model, if that leaves some of the committed positions but not all.
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        let recurs = self.recurs;
        let sequence = self.sequence_mut(id)?;
        if recurs && len > 0 && len < sequence.committed {
            return Err(StateError::CannotGoBack { wanted: len, committed: sequence.committed });
        }
        sequence.committed = sequence.committed.min(len);
        sequence.in_flight = 0;
        sequence.computed = 0;
        let committed = sequence.committed;
        self.keep_pages(id, committed);
        Ok(())
    }

    /// Gives back the pages that `positions` positions do not need.
    fn keep_pages(&mut self, id: SequenceId, positions: usize) {
        let row = id.0 * self.blocks();
        if let Some(sequence) = &mut self.sequences[id.0] {
            while sequence.pages > Self::pages_for(positions) {
                sequence.pages -= 1;
                let page = std::mem::replace(&mut self.page_table[row + sequence.pages], -1);
                self.free_pages.push(page);
            }
        }
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, StateError> {
        self.sequences.get(id.0).and_then(Option::as_ref).ok_or(StateError::NoSuchSequence(id.0))
    }

    fn sequence_mut(&mut self, id: SequenceId) -> Result<&mut Sequence, StateError> {
        self.sequences.get_mut(id.0).and_then(Option::as_mut).ok_or(StateError::NoSuchSequence(id.0))
    }

    /// Whether every page is owned exactly once and every sequence has the pages of its positions. For tests.
    pub fn integrity(&self) -> Result<(), String> {
        let mut owners = vec![0usize; self.memory.kv.layers()[0].pages()];
        for &page in self.free_pages.iter().chain(self.page_table.iter().filter(|&&page| page >= 0)) {
            owners[page as usize] += 1;
        }
        if let Some(page) = owners.iter().position(|&count| count != 1) {
            return Err(format!("page {page} has {} owners", owners[page]));
        }
        for (index, row) in self.page_table.chunks(self.blocks().max(1)).enumerate() {
            let sequence = self.sequences.get(index).and_then(Option::as_ref);
            let wanted = sequence.map_or(0, |s| Self::pages_for(s.committed + s.in_flight));
            let held = row.iter().take_while(|&&page| page >= 0).count();
            if held != wanted || row[held..].iter().any(|&page| page >= 0) {
                return Err(format!("sequence {index} needs {wanted} pages and has {row:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_cpu::KvType;
    use verbatim_graph::DeltaHeads;
    use verbatim_graph::random::Random;

    fn state(sequences: usize, context: usize, pages: usize) -> State {
        let spec = KvSpec { kv_heads: 1, head_dim: 4, k: KvType::F32, v: KvType::F16 };
        State::new(&[spec], &[], sequences, context, pages).expect("small")
    }

    #[test]
    fn positions_are_appended_committed_and_rolled_back() {
        let mut state = state(2, 200, 4);
        let id = state.begin().unwrap();
        assert_eq!(state.append(id, 70), Ok(0..70));
        assert_eq!(state.append(id, 2), Ok(70..72));
        assert!(state.cell(id, 71).is_some() && state.cell(id, 72).is_none());
        state.commit(id, 60).unwrap();
        assert_eq!(state.len(id), Ok(60));
        assert!(state.cell(id, 60).is_none());
        assert_eq!(state.commit(id, 1), Err(StateError::NotInFlight { wanted: 1, in_flight: 0 }));
        assert_eq!(state.append(id, 5), Ok(60..65));
        state.rollback(id).unwrap();
        assert_eq!(state.len(id), Ok(60));
        state.integrity().unwrap();
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut state = state(2, 128, 3);
        let (a, b) = (state.begin().unwrap(), state.begin().unwrap());
        assert_eq!(state.begin(), Err(StateError::NoSequence(2)));
        assert_eq!(state.append(a, 129), Err(StateError::ContextFull { wanted: 129, context: 128 }));
        assert_eq!(
            state.append(a, usize::MAX),
            Err(StateError::ContextFull { wanted: usize::MAX, context: 128 })
        );
        state.append(a, 128).unwrap();
        assert_eq!(state.append(b, 65), Err(StateError::NoPages { wanted: 2, free: 1 }));
        assert_eq!(state.append(b, 64), Ok(0..64));
        state.end(a).unwrap();
        assert_eq!(state.end(a), Err(StateError::NoSuchSequence(0)));
        assert_eq!(state.append(b, 1), Ok(64..65));
        state.integrity().unwrap();
    }

    fn recurrent(sequences: usize) -> State {
        let heads = DeltaHeads { key_heads: 1, value_heads: 1, key_dim: 4, value_dim: 4 };
        let spec = RecurrentSpec { kernel: 4, channels: 12, heads };
        State::new(&[], &[spec], sequences, 1000, 40).expect("small")
    }

    #[test]
    fn recurrent_states_of_positions_that_can_be_kept_are_never_overwritten() {
        let mut random = Random(8);
        let mut state = recurrent(2);
        let other = state.begin().unwrap();
        let id = state.begin().unwrap();
        // What each slot holds: how many positions its state is after, by a history of commits; -1 for nothing.
        let mut slots: Vec<Option<Vec<usize>>> = vec![None; 2 * SLOTS_PER_SEQUENCE];
        let mut committed: Vec<usize> = Vec::new();
        for round in 0..4000 {
            if committed.len() > 900 {
                state.truncate(id, 0).unwrap();
                committed.clear();
            }
            let most = [3, 20, 60][random.below(3)];
            let count = 1 + random.below(most);
            let positions = state.append(id, count).unwrap();
            let tokens: Vec<usize> = positions.clone().map(|position| position * 7919 + round).collect();
            for (position, token) in positions.clone().zip(&tokens) {
                assert!(state.can_compute(id, position) && !state.can_compute(id, position + 1));
                let [read, write] = state.slots(id, position).unwrap();
                let mut text = match usize::try_from(read) {
                    Ok(read) => slots[read].clone().expect("written before"),
                    Err(_) => Vec::new(),
                };
                assert_eq!(text, [&committed[..], &tokens[..position - positions.start]].concat());
                text.push(*token);
                slots[write as usize] = Some(text);
                state.set_computed(id, position + 1).unwrap();
            }
            let keep = random.below(count + 1);
            let least = count.saturating_sub(CHECKPOINTS) + 1;
            if keep > 0 && keep < least {
                let refused = StateError::NoCheckpoint { wanted: keep, in_flight: count, least };
                assert_eq!(state.commit(id, keep), Err(refused));
                state.rollback(id).unwrap();
            } else {
                state.commit(id, keep).unwrap();
                committed.extend(&tokens[..keep]);
            }
            assert_eq!(state.len(id), Ok(committed.len()));
            state.integrity().unwrap();
        }
        assert!(slots[..SLOTS_PER_SEQUENCE].iter().all(Option::is_none) && state.is_empty(other).unwrap());
    }

    #[test]
    fn recurrent_models_refuse_what_their_states_cannot_give() {
        let mut state = recurrent(1);
        let id = state.begin().unwrap();
        state.append(id, 10).unwrap();
        assert_eq!(state.append(id, 7), Err(StateError::TooManyInFlight { wanted: 17 }));
        assert_eq!(state.append(id, 6), Ok(10..16));
        assert_eq!(state.commit(id, 5), Err(StateError::NotComputed { wanted: 5, computed: 0 }));
        state.set_computed(id, 5).unwrap();
        assert!(state.can_compute(id, 5) && state.can_compute(id, 2) && !state.can_compute(id, 6));
        state.commit(id, 5).unwrap();
        assert!(!state.can_compute(id, 4), "committed");
        assert_eq!(state.truncate(id, 4), Err(StateError::CannotGoBack { wanted: 4, committed: 5 }));
        state.truncate(id, 5).unwrap();
        state.append(id, 1).unwrap();
        assert!(state.slots(id, 5).unwrap()[0] >= 0);
        state.truncate(id, 0).unwrap();
        state.append(id, 1).unwrap();
        assert_eq!(state.slots(id, 0).unwrap()[0], -1);
    }

    #[test]
    fn random_operations_keep_the_books_right() {
        let mut random = Random(3);
        let mut state = state(3, 300, 9);
        let mut live: Vec<(SequenceId, usize, usize)> = Vec::new();
        for _ in 0..20_000 {
            match random.below(6) {
                0 => live.extend(state.begin().map(|id| (id, 0, 0))),
                1 if !live.is_empty() => {
                    let (id, ..) = live.swap_remove(random.below(live.len()));
                    state.end(id).unwrap();
                }
                op if !live.is_empty() => {
                    let at = random.below(live.len());
                    let (id, committed, in_flight) = &mut live[at];
                    match op {
                        2 | 3 => {
                            let count = random.below(90);
                            if let Ok(range) = state.append(*id, count) {
                                assert_eq!(range.start, *committed + *in_flight);
                                *in_flight += count;
                            }
                        }
                        4 => {
                            let count = random.below(*in_flight + 1);
                            state.commit(*id, count).unwrap();
                            (*committed, *in_flight) = (*committed + count, 0);
                        }
                        _ => {
                            let len = random.below(300);
                            state.truncate(*id, len).unwrap();
                            (*committed, *in_flight) = ((*committed).min(len), 0);
                        }
                    }
                }
                _ => {}
            }
            state.integrity().unwrap();
            for &(id, committed, _) in &live {
                assert_eq!(state.len(id), Ok(committed));
            }
        }
    }
}
