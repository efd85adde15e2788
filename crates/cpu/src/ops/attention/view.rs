//! Locates the keys and values of a query.

use super::shape::STORED_BYTES;
use crate::kv::{HeadPage, KvLayer};
use std::ops::Range;
use verbatim_backend::PAGE_CELLS;
use verbatim_team::AlignedBytes;

/// The K and V of one KV head that some rows attend to.
pub(crate) struct KvView<'a> {
    pub(crate) layer: &'a KvLayer,
    pub(crate) kv_head: usize,
    /// The sequence's pages, by block of positions.
    pub(crate) pages: &'a [i32],
    /// The positions that are not in the pages, but in the cells of a tree path.
    pub(crate) path: Option<Path<'a>>,
}

impl<'a> KvView<'a> {
    pub(super) fn head_dim(&self) -> usize {
        self.layer.spec().head_dim
    }

    /// The page of a position.
    fn page(&self, position: usize) -> usize {
        usize::try_from(self.pages[position / PAGE_CELLS]).expect("a page of the sequence")
    }

    /// K and V of the block of positions that begins at `start`, of which the `visible` ones are read.
    pub(super) fn block<'g>(
        &self,
        start: usize,
        visible: &Range<usize>,
        gathered: &'g mut AlignedBytes,
    ) -> (HeadPage<'g>, HeadPage<'g>)
    where
        'a: 'g,
    {
        match &self.path {
            Some(path) if start + PAGE_CELLS > path.tree_start => path.gather(self, start, visible, gathered),
            _ => {
                let (page, layer) = (self.page(start), self.layer);
                (layer.k().head_page(page, self.kv_head), layer.v().head_page(page, self.kv_head))
            }
        }
    }

    /// The keys of the block that begins at `start`, if they are in a page.
    pub(super) fn keys_in_page(&self, start: usize) -> Option<HeadPage<'a>> {
        let page = usize::try_from(*self.pages.get(start / PAGE_CELLS)?).ok()?;
        self.path.is_none().then(|| self.layer.k().head_page(page, self.kv_head))
    }
}

/// The cells of the positions >= `tree_start`: those of one root-to-row path in the tree of rows in flight.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    /// The first position of the path.
    pub(crate) tree_start: usize,
    /// Cells of the positions >= `tree_start`.
    pub(crate) cells: &'a [i32],
}

impl Path<'_> {
    /// K and V of the `visible` keys of the block of positions that begins at `start`, gathered in the layout of a
    /// page.
    fn gather<'g>(
        &self,
        keys: &KvView<'_>,
        start: usize,
        visible: &Range<usize>,
        gathered: &'g mut AlignedBytes,
    ) -> (HeadPage<'g>, HeadPage<'g>) {
        let visible = start + visible.start..start + visible.end;
        let sides = [(keys.layer.k(), 0), (keys.layer.v(), STORED_BYTES)];
        for (side, at) in sides {
            let page = &mut gathered.bytes_mut()[at..];
            if visible.start < self.tree_start {
                side.copy_head_page(keys.page(start), keys.kv_head, page);
            }
            for position in visible.start.max(self.tree_start)..visible.end {
                let cell =
                    usize::try_from(self.cells[position - self.tree_start]).expect("a cell of the path");
                side.copy_head(cell, keys.kv_head, page, position - start);
            }
        }
        let [k, v] = sides.map(|(side, at)| side.layout().view(gathered, at));
        (k, v)
    }
}
