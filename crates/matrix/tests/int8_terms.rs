//! Activations in two int8 terms: matmuls nearly as accurate as with f32 activations, with the same bits at every batch size and on
//! every instruction set.

use verbatim_graph::random::Random;
use verbatim_matrix::{
    Epilogue, Input, PackedMatrix, Residual, SharedOutput, activation_row_bytes, matmul_groups,
    quantize_terms,
};
use verbatim_quant::{DType, dequantize, quantize};
use verbatim_simd::Isa;

const ROWS: usize = 37;
const COLS: usize = 512;
const TOKENS: usize = 11;

fn output(isa: Isa, weights: &PackedMatrix, terms: usize, x: &[f32], residual: Option<&[f32]>) -> Vec<f32> {
    let stride_bytes = terms * activation_row_bytes(COLS);
    let tokens = x.len() / COLS;
    let mut bytes = vec![0; tokens * stride_bytes];
    for (row, out) in x.chunks(COLS).zip(bytes.chunks_mut(stride_bytes)) {
        let mut terms: Vec<&mut [u8]> = out.chunks_mut(activation_row_bytes(COLS)).collect();
        quantize_terms(isa, row, &mut terms);
    }
    let mut out = vec![0.0; tokens * ROWS];
    let output = SharedOutput::new(&mut out, ROWS);
    let residual = residual.map_or(Residual::None, |values| Residual::Rows { values, stride: ROWS });
    let input = Input::Quantized { bytes: &bytes, stride_bytes, tokens, terms };
    let groups = 0..weights.row_groups();
    // SAFETY: `out` is borrowed mutably, by this call only.
    #[allow(unsafe_code)]
    unsafe {
        matmul_groups(isa, weights, input, &output, groups, Epilogue { bias: None, residual })
    };
    out
}

#[test]
fn two_terms_are_nearly_exact_and_independent_of_batch_size_and_instruction_set() {
    let mut random = Random(9);
    let mut random_values =
        |count: usize| -> Vec<f32> { (0..count).map(|_| random.unit().powi(3)).collect() };
    let (plain, x, residual) =
        (random_values(ROWS * COLS), random_values(TOKENS * COLS), random_values(TOKENS * ROWS));
    for dtype in [DType::Q4_1, DType::Q8_0, DType::Q4_K, DType::Q6_K] {
        let mut bytes = vec![0; ROWS * dtype.row_bytes(COLS).expect("whole blocks")];
        quantize(dtype, &plain, &mut bytes).expect("finite");
        let mut decoded = vec![0.0; ROWS * COLS];
        dequantize(dtype, &bytes, &mut decoded).expect("whole blocks");
        let weights = PackedMatrix::pack(dtype, ROWS, COLS, &bytes).expect("fits");
        let exact = |token: usize, row: usize| -> f64 {
            let (w, x) = (&decoded[row * COLS..][..COLS], &x[token * COLS..][..COLS]);
            w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
        };
        let error = |given: &[f32]| -> f64 {
            let square = |i: usize| (f64::from(given[i]) - exact(i / ROWS, i % ROWS)).powi(2);
            ((0..given.len()).map(square).sum::<f64>() / given.len() as f64).sqrt()
        };
        let one = output(Isa::scalar(), &weights, 1, &x, None);
        let two = output(Isa::scalar(), &weights, 2, &x, None);
        assert!(error(&two) * 100.0 < error(&one), "{dtype}: {:e} {:e}", error(&two), error(&one));

        let reference = output(Isa::scalar(), &weights, 2, &x, Some(&residual));
        for isa in Isa::supported() {
            assert_eq!(output(isa, &weights, 2, &x, Some(&residual)), reference, "{dtype} {}", isa.name());
            for token in 0..TOKENS {
                let (x, residual) = (&x[token * COLS..][..COLS], &residual[token * ROWS..][..ROWS]);
                let alone = output(isa, &weights, 2, x, Some(residual));
                assert_eq!(alone, reference[token * ROWS..][..ROWS], "{dtype} {} token {token}", isa.name());
            }
        }
    }
}
