//! Reference-counted pages of one KV cache group, or recurrent state slots.

/// Pages or slots 0 to n - 1, each free or referenced by sequences and at most once by the prefix tree.
#[derive(Default)]
pub(crate) struct Pool {
    ref_count: Vec<u32>,
    in_tree: Vec<bool>,
    free: Vec<i32>,
    /// Number of those that only the tree references.
    cached: usize,
    /// Those from here on were never taken: their memory was never written.
    fresh_from: usize,
}

impl Pool {
    /// `None` if the count does not fit an i32.
    pub(crate) fn new(count: usize) -> Option<Pool> {
        let end = i32::try_from(count).ok()?;
        let (ref_count, in_tree) = (vec![0; count], vec![false; count]);
        Some(Pool { ref_count, in_tree, free: (0..end).rev().collect(), cached: 0, fresh_from: 0 })
    }

    pub(crate) fn len(&self) -> usize {
        self.ref_count.len()
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn cached(&self) -> usize {
        self.cached
    }

    /// How many of the next `count` to be taken were never taken before.
    pub(crate) fn fresh_of(&self, count: usize) -> usize {
        let used_before = self.free() - (self.len() - self.fresh_from);
        count.min(self.free()).saturating_sub(used_before)
    }

    /// Allocates a free one, with a reference count of 1: one that was used before, if there is one, since its memory is there.
    pub(crate) fn take(&mut self) -> Option<i32> {
        let id = self.free.pop()?;
        self.fresh_from = self.fresh_from.max(id as usize + 1);
        self.ref_count[id as usize] = 1;
        Some(id)
    }

    pub(crate) fn acquire(&mut self, id: i32) {
        self.change(id, |pool, id| pool.ref_count[id] += 1);
    }

    pub(crate) fn release(&mut self, id: i32) {
        self.change(id, |pool, id| pool.ref_count[id] -= 1);
        if self.ref_count[id as usize] == 0 {
            self.free.push(id);
        }
    }

    pub(crate) fn acquire_in_tree(&mut self, id: i32) {
        debug_assert!(!self.in_tree[id as usize]);
        self.change(id, |pool, id| {
            pool.ref_count[id] += 1;
            pool.in_tree[id] = true;
        });
    }

    pub(crate) fn release_from_tree(&mut self, id: i32) {
        debug_assert!(self.in_tree[id as usize]);
        self.change(id, |pool, id| pool.in_tree[id] = false);
        self.release(id);
    }

    pub(crate) fn in_tree(&self, id: i32) -> bool {
        self.in_tree[id as usize]
    }

    /// References, the tree's included.
    pub(crate) fn ref_count(&self, id: i32) -> u32 {
        self.ref_count[id as usize]
    }

    /// Whether only the tree references it.
    pub(crate) fn is_cached(&self, id: i32) -> bool {
        self.in_tree(id) && self.ref_count(id) == 1
    }

    fn change(&mut self, id: i32, change: impl FnOnce(&mut Pool, usize)) {
        let before = self.is_cached(id);
        change(self, id as usize);
        let after = self.is_cached(id);
        self.cached = self.cached + usize::from(after) - usize::from(before);
    }

    /// Whether the counts match the actual references: `held` by sequences, `in_tree` by the tree.
    pub(crate) fn check(
        &self,
        what: &str,
        held: impl Iterator<Item = i32>,
        in_tree: impl Iterator<Item = i32>,
    ) -> Result<(), String> {
        let mut counts = vec![0u32; self.len()];
        let mut trees = vec![0u32; self.len()];
        for id in held {
            *counts.get_mut(id as usize).ok_or_else(|| format!("there is no {what} {id}"))? += 1;
        }
        for id in in_tree {
            *trees.get_mut(id as usize).ok_or_else(|| format!("there is no {what} {id}"))? += 1;
        }
        for &id in &self.free {
            if counts[id as usize] + trees[id as usize] > 0 {
                return Err(format!("{what} {id} is free and in use"));
            }
        }
        for id in 0..self.len() {
            let (ref_count, tree) = (counts[id] + trees[id], trees[id]);
            if ref_count != self.ref_count[id] || tree != u32::from(self.in_tree[id]) {
                let counted = (self.ref_count[id], self.in_tree[id]);
                return Err(format!(
                    "{what} {id} has {ref_count} references, {tree} of them by the tree, not {counted:?}"
                ));
            }
        }
        let free = self.ref_count.iter().filter(|&&ref_count| ref_count == 0).count();
        if free != self.free.len() {
            return Err(format!("{free} {what}s are unused and {} are free", self.free.len()));
        }
        let cached = (0..self.len()).filter(|&id| self.is_cached(id as i32)).count();
        if cached != self.cached {
            return Err(format!("{cached} {what}s are referenced by the tree only, not {}", self.cached));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_accepts_exactly_the_actual_references() {
        // 0 is referenced twice, 1 by the tree alone, 2 by the tree and a sequence; 3 and 4 are free.
        let mut pool = Pool::new(5).unwrap();
        let ids = [0, 1, 2].map(|id| (id, pool.take()));
        assert!(ids.iter().all(|&(id, taken)| taken == Some(id)), "in order");
        pool.acquire(0);
        for id in [1, 2] {
            pool.acquire_in_tree(id);
        }
        pool.release(1);
        assert_eq!((pool.len(), pool.free(), pool.cached()), (5, 2, 1));
        let verdict = |pool: &Pool, held: &[i32], in_tree: &[i32]| {
            pool.check("page", held.iter().copied(), in_tree.iter().copied())
        };
        assert_eq!(verdict(&pool, &[0, 0, 2], &[1, 2]), Ok(()));
        let wrong: [(&[i32], &[i32], &str); 8] = [
            (&[0, 0, 2, 5], &[1, 2], "there is no page 5"),
            (&[0, 0, 2], &[1, 2, 5], "there is no page 5"),
            (&[0, 0, 2, 3], &[1, 2], "page 3 is free and in use"),
            (&[0, 0, 2], &[1, 2, 4], "page 4 is free and in use"),
            (&[0, 2], &[1, 2], "page 0 has 1 references, 0 of them by the tree, not (2, false)"),
            (&[0, 0, 0, 2], &[1, 2], "page 0 has 3 references, 0 of them by the tree, not (2, false)"),
            (&[0, 2], &[0, 1, 2], "page 0 has 2 references, 1 of them by the tree, not (2, false)"),
            (&[0, 0, 2, 2], &[1], "page 2 has 2 references, 0 of them by the tree, not (2, true)"),
        ];
        for (held, in_tree, what) in wrong {
            assert_eq!(verdict(&pool, held, in_tree), Err(what.to_owned()));
        }
        let free = pool.free.pop();
        assert_eq!(verdict(&pool, &[0, 0, 2], &[1, 2]), Err("2 pages are unused and 1 are free".to_owned()));
        pool.free.extend(free);
        pool.cached = 2;
        let what = "1 pages are referenced by the tree only, not 2";
        assert_eq!(verdict(&pool, &[0, 0, 2], &[1, 2]), Err(what.to_owned()));
    }

    #[test]
    fn those_used_before_are_taken_first() {
        let mut pool = Pool::new(4).unwrap();
        assert_eq!([0, 1, 4, 5].map(|count| pool.fresh_of(count)), [0, 1, 4, 4]);
        let [a, b] = [0, 1].map(|_| pool.take().unwrap());
        assert_eq!([1, 2, 3].map(|count| pool.fresh_of(count)), [1, 2, 2]);
        pool.release(a);
        assert_eq!([1, 2, 3, 4].map(|count| pool.fresh_of(count)), [0, 1, 2, 2]);
        pool.release(b);
        assert_eq!([2, 3].map(|count| pool.fresh_of(count)), [0, 1]);
        assert_eq!([0, 1, 2].map(|_| pool.take()), [Some(b), Some(a), Some(2)]);
        assert_eq!(pool.fresh_of(1), 1);
    }

    #[test]
    fn entries_that_only_the_tree_references_are_counted() {
        let mut pool = Pool::new(2).unwrap();
        let id = pool.take().unwrap();
        pool.acquire_in_tree(id);
        assert_eq!(
            (pool.ref_count(id), pool.in_tree(id), pool.is_cached(id), pool.cached()),
            (2, true, false, 0)
        );
        pool.release(id);
        assert_eq!(
            (pool.ref_count(id), pool.in_tree(id), pool.is_cached(id), pool.cached()),
            (1, true, true, 1)
        );
        pool.acquire(id);
        assert_eq!((pool.is_cached(id), pool.cached(), pool.free()), (false, 0, 1));
        pool.release_from_tree(id);
        assert_eq!(
            (pool.ref_count(id), pool.in_tree(id), pool.is_cached(id), pool.free()),
            (1, false, false, 1)
        );
        pool.release(id);
        assert_eq!((pool.ref_count(id), pool.free()), (0, 2));
        assert!(Pool::new(i32::MAX as usize + 1).is_none());
    }
}
