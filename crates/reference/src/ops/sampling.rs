//! Sampling. The bits are specified by `verbatim-sample`, whose functions every backend on a CPU shares: there is no second
//! definition to compare with here. Its own tests compare them with the chain outside the graph.

use verbatim_sample::{PART_TOKENS, PART_WORDS, PartScratch, merge_parts, sample_part};

/// What each part of a row finds.
pub(crate) fn parts(logits: &[f32], sampler: &[i32], mask: &[i32]) -> Vec<i32> {
    let (sampler, mask) = (words(sampler), words(mask));
    let mut scratch = PartScratch::default();
    let parts = logits.chunks(PART_TOKENS).enumerate().flat_map(|(part, logits)| {
        let mut found = [0; PART_WORDS];
        sample_part(&sampler, Some(&mask), part, logits, &mut scratch, &mut found);
        found
    });
    parts.map(u32::cast_signed).collect()
}

/// A row's token.
pub(crate) fn merge(sampler: &[i32], parts: &[i32]) -> i32 {
    merge_parts(&words(sampler), &words(parts), &mut PartScratch::default()).cast_signed()
}

fn words(integers: &[i32]) -> Vec<u32> {
    integers.iter().map(|word| word.cast_unsigned()).collect()
}
