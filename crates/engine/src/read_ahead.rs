//! Read-ahead while weights are packed: the next bytes of the file are prefetched, so that disk reads and packing overlap.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec;
use verbatim_backend::{ReadError, WeightBytes};
use verbatim_gguf::Tensor;

/// Bytes to prefetch: what a fast disk reads in a few tens of milliseconds.
const AHEAD_BYTES: usize = 64 << 20;

/// The tensors of a file, in the order in which they are packed.
pub(crate) struct ReadAhead<'a> {
    rest: Mutex<Rest<'a>>,
    /// Bytes that may be prefetched: those that were read since the last prefetch.
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

    /// Prefetches more, in place of bytes that were read.
    fn advance(&self, bytes: usize) {
        self.credit.fetch_add(bytes, Ordering::Relaxed);
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

/// One of the tensors: reading it prefetches what follows.
pub(crate) struct ReadTensor<'a> {
    pub(crate) tensor: Tensor<'a>,
    pub(crate) read_ahead: &'a ReadAhead<'a>,
}

impl WeightBytes for ReadTensor<'_> {
    fn byte_len(&self) -> usize {
        self.tensor.byte_len()
    }

    fn read(&self, start: usize, into: &mut [u8]) -> Result<(), ReadError> {
        self.tensor.read(start, into)?;
        self.read_ahead.advance(into.len());
        Ok(())
    }
}
