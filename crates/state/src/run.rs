//! The parts of a state that a run borrows.

use crate::{Group, State};
use verbatim_backend::StateStore;

/// The page tables of all KV cache groups, while a run borrows the store.
pub struct PageTables<'a>(&'a [Group]);

impl<'a> PageTables<'a> {
    /// A group's page table, as [`State::page_table`].
    pub fn for_group(&self, group: usize) -> &'a [i32] {
        &self.0[group].table
    }
}

impl<S: StateStore> State<S> {
    /// Borrows the backend's memory mutably, for a run, together with the page tables that are among its inputs.
    pub fn store_and_page_tables(&mut self) -> (&mut S, PageTables<'_>) {
        (&mut self.store, PageTables(&self.groups))
    }
}
