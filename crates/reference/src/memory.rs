//! Allocation that returns `None` on failure instead of aborting.

/// `len` zeros; `None` if the allocation fails.
pub(crate) fn zeros<T: Copy + Default>(len: usize) -> Option<Vec<T>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len).ok()?;
    zeros.resize(len, T::default());
    Some(zeros)
}
