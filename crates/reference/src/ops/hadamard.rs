//! The orthonormal Walsh-Hadamard transform (QuaRot, arXiv 2404.00456).

/// Multiplies each run of a head with the Walsh-Hadamard matrix in Sylvester's order over √n, by the definition: element
/// (i, j) is 1, or -1 if i and j share an odd number of bits. A run has n elements, the largest power of two that divides the
/// head's.
pub fn transform(head: &[f32]) -> Vec<f32> {
    let n = 1 << head.len().trailing_zeros();
    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let element = |run: &[f32], i: usize| {
        let sum: f32 = run.iter().enumerate().map(|(j, x)| sign(i, j) * x).sum();
        sum / (n as f32).sqrt()
    };
    head.chunks_exact(n).flat_map(|run| (0..n).map(move |i| element(run, i))).collect()
}
