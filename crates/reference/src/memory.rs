//! Memory whose absence is an answer and not the end of the process.

/// So many zeros; `None` if there is no memory for them.
pub(crate) fn zeros<T: Copy + Default>(len: usize) -> Option<Vec<T>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len).ok()?;
    zeros.resize(len, T::default());
    Some(zeros)
}
