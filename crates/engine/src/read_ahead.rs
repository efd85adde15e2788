//! Read-ahead while weights are packed: the next bytes of the file are prefetched, and packed ones are released. Disk reads and
//! packing overlap, and memory holds the packed weights but little of the file.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec;
use verbatim_gguf::Tensor;

/// Bytes to prefetch: what a fast disk reads in a few tens of milliseconds.
const AHEAD_BYTES: usize = 64 << 20;

/// The tensors of a file, in the order in which they are packed.
pub(crate) struct ReadAhead<'a> {
    rest: Mutex<Rest<'a>>,
    /// Bytes that may be prefetched: those that were packed since the last prefetch.
    credit: AtomicUsize,
}

/// The part that has not been prefetched.
struct Rest<'a> {
    /// Starting at byte `at`.
    first: Option<Tensor<'a>>,
    at: usize,
    others: vec::IntoIter<Tensor<'a>>,
}

impl<'a> ReadAhead<'a> {
    /// Prefetches the beginning of the tensors.
    pub(crate) fn new(tensors: Vec<Tensor<'a>>) -> ReadAhead<'a> {
        let mut others = tensors.into_iter();
        let rest = Mutex::new(Rest { first: others.next(), at: 0, others });
        let read_ahead = ReadAhead { rest, credit: AtomicUsize::new(AHEAD_BYTES) };
        read_ahead.prefetch();
        read_ahead
    }

    /// Releases a range of a tensor that was packed, and prefetches more.
    pub(crate) fn done(&self, tensor: Tensor<'_>, range: Range<usize>) {
        self.credit.fetch_add(range.len(), Ordering::Relaxed);
        tensor.release(range);
        self.prefetch();
    }

    /// Prefetches as much as the credit allows, unless another thread is doing so: prefetching may block on the disk.
    fn prefetch(&self) {
        let Ok(mut rest) = self.rest.try_lock() else { return };
        let mut credit = self.credit.swap(0, Ordering::Relaxed);
        while let Some(tensor) = rest.first {
            let end = tensor.byte_len().min(rest.at.saturating_add(credit));
            credit -= end - rest.at;
            tensor.prefetch(rest.at..end);
            rest.at = end;
            if end < tensor.byte_len() {
                break;
            }
            (rest.first, rest.at) = (rest.others.next(), 0);
        }
    }
}
