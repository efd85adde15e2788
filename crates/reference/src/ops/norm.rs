//! Norms over a row.

/// Each of `groups` equal parts of a row divided by its root mean square and multiplied by the weight (arXiv 1910.07467):
/// x / √(mean(x²) + eps) · weight.
pub fn rms_norm(x: &[f32], weight: &[f32], groups: usize, eps: f32) -> Vec<f32> {
    let norm = |x: &[f32]| {
        let mean_square = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
        let rms = (mean_square + eps).sqrt();
        x.iter().zip(weight).map(|(x, weight)| x / rms * weight).collect::<Vec<_>>()
    };
    x.chunks_exact(x.len() / groups).flat_map(norm).collect()
}
