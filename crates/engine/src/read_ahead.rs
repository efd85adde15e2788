//! How a file is read while its weights are packed: what comes next is asked for ahead, what was packed is given back. So the
//! disk works while the threads do, and memory holds the packed weights and little of the file.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec;
use verbatim_gguf::Tensor;

/// Bytes that are asked for before they are needed: what a fast disk reads in some hundredths of a second.
const AHEAD_BYTES: usize = 64 << 20;

/// Tensors on their way from the file, in the order in which they are wanted.
pub(crate) struct ReadAhead<'a> {
    rest: Mutex<Rest<'a>>,
    /// Bytes that may be asked for: as many as were packed since.
    credit: AtomicUsize,
}

/// What has not been asked for.
struct Rest<'a> {
    /// From byte `at` on.
    first: Option<Tensor<'a>>,
    at: usize,
    others: vec::IntoIter<Tensor<'a>>,
}

impl<'a> ReadAhead<'a> {
    /// Asks for the first of the tensors.
    pub(crate) fn of(tensors: Vec<Tensor<'a>>) -> ReadAhead<'a> {
        let mut others = tensors.into_iter();
        let rest = Mutex::new(Rest { first: others.next(), at: 0, others });
        let read_ahead = ReadAhead { rest, credit: AtomicUsize::new(AHEAD_BYTES) };
        read_ahead.ask();
        read_ahead
    }

    /// Takes note that a range of a tensor is not needed any more.
    pub(crate) fn done(&self, tensor: Tensor<'_>, range: Range<usize>) {
        self.credit.fetch_add(range.len(), Ordering::Relaxed);
        tensor.release(range);
        self.ask();
    }

    /// Asks for as much as there is credit for, unless another thread is about it: asking may wait for the disk.
    fn ask(&self) {
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
