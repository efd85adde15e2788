//! Sampling: the parts of a row are tasks, and a row merges what they have found.

use super::Run;
use crate::program::PreparedOp;
use std::sync::PoisonError;
use verbatim_sample::{PART_TOKENS, PART_WORDS, PartScratch, merge_parts, parts, sample_part};
use verbatim_simd::{Kernel, Simd, dispatch};
use verbatim_team::ThreadContext;

impl Run<'_> {
    pub(super) fn sample_parts(&self, prepared: &PreparedOp, thread: &ThreadContext<'_>) {
        let [logits, samplers, masks] = [0, 1, 2].map(|i| prepared.operands[i].view());
        let out = prepared.output.view();
        let parts = parts(logits.shape.cols);
        let tasks = parts * out.shape.rows.at(self.rows);
        let mut scratch = self.sampling[thread.index()].lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(taken) = prepared.tasks.take(1, tasks) {
            for (row, part) in taken.map(|task| (task / parts, task % parts)) {
                let tokens = part * PART_TOKENS..((part + 1) * PART_TOKENS).min(logits.shape.cols);
                let words = part * PART_WORDS..(part + 1) * PART_WORDS;
                let kernel = SamplePart {
                    sampler: samplers.row(self.arena, row),
                    mask: masks.row(self.arena, row),
                    part,
                    logits: logits.columns(self.arena, row, tokens),
                    scratch: &mut scratch,
                    // SAFETY: the counter hands out each part of each row to only one thread.
                    found: unsafe { out.columns_mut(self.arena, row, words) },
                };
                dispatch(self.isa, kernel);
            }
        }
    }

    pub(super) fn sample_merge(&self, prepared: &PreparedOp, row: usize, thread: &ThreadContext<'_>) {
        let [sampler, parts] = [0, 1].map(|i| prepared.operands[i].view().row(self.arena, row));
        let mut scratch = self.sampling[thread.index()].lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: a row is one unit, which one thread computes.
        let token: &mut [u32] = unsafe { prepared.output.view().columns_mut(self.arena, row, 0..1) };
        token[0] = merge_parts(sampler, parts, &mut scratch);
    }
}

/// Portable code, compiled for each instruction set.
struct SamplePart<'a> {
    sampler: &'a [u32],
    mask: &'a [u32],
    part: usize,
    logits: &'a [f32],
    scratch: &'a mut PartScratch,
    found: &'a mut [u32],
}

impl Kernel for SamplePart<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let SamplePart { sampler, mask, part, logits, scratch, found } = self;
        sample_part(sampler, Some(mask), part, logits, scratch, found);
    }
}
