//! The matmul: batch invariance on every format, batch size, thread count and instruction set; exactness of the packed weights;
//! accuracy against double precision. Needs golden data: blocks of every format with sane scales.

#![allow(unsafe_code)] // One test calls one thread's part of a matmul directly.

use std::path::Path;

use safetensors::SafeTensors;
use verbatim_backend::PackError;
use verbatim_matrix::{
    Epilogue, ExpertPairs, Input, PackedExperts, PackedMatrix, Residual, SharedOutput, activation_row_bytes,
    matmul, matmul_expert_groups, matmul_groups, quantize_row,
};
use verbatim_quant::{ALL, DType, dequantize};
use verbatim_simd::Isa;
use verbatim_team::Team;

const BATCH_SIZES: [usize; 19] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 31, 64, 130];

#[test]
fn packed_weights_decode_to_the_values_of_the_file() {
    for weights in every_format().into_iter().flat_map(|dtype| shapes(dtype).map(|s| Weights::new(dtype, s)))
    {
        let expected = weights.decoded();
        let mut row = vec![0.0; weights.cols];
        for (index, expected) in expected.chunks_exact(weights.cols).enumerate() {
            weights.packed.dequantize_row(index, &mut row);
            // `==` and not bits: a zero may lose its sign when a format is transcoded.
            assert_eq!(row, expected, "{:?} row {index}", weights.packed);
        }
    }
}

#[test]
fn outputs_do_not_depend_on_batch_size_threads_or_instruction_set() {
    for dtype in every_format() {
        for shape in shapes(dtype) {
            let weights = Weights::new(dtype, shape);
            let rows = Activations::new(BATCH_SIZES[BATCH_SIZES.len() - 1], weights.cols);
            let expected: Vec<Vec<u32>> = (0..rows.tokens)
                .map(|token| {
                    bits(&weights.matmul(Isa::scalar(), &mut Team::single_threaded(), &rows.slice(token, 1)))
                })
                .collect();
            for threads in [1, 2, 3, 8] {
                let mut team = Team::new(threads).unwrap();
                for isa in Isa::supported() {
                    for tokens in BATCH_SIZES {
                        let first = rows.tokens - tokens;
                        let output = bits(&weights.matmul(isa, &mut team, &rows.slice(first, tokens)));
                        let expected = expected[first..].concat();
                        assert!(
                            output == expected,
                            "{:?} on {}, {threads} threads, {tokens} tokens: {} of {} elements differ",
                            weights.packed,
                            isa.name(),
                            output.iter().zip(&expected).filter(|(a, b)| a != b).count(),
                            expected.len(),
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_batch_of_512_tokens_equals_512_batches_of_one() {
    let mut team = Team::new(2).unwrap();
    for dtype in [DType::Q4_1, DType::Q4_K, DType::Q6_K, DType::F16] {
        let weights = Weights::new(dtype, [33, 1536]);
        let rows = Activations::new(512, weights.cols);
        for isa in Isa::supported() {
            let together = weights.matmul(isa, &mut team, &rows);
            for (token, output) in together.chunks_exact(weights.rows).enumerate() {
                let alone = weights.matmul(isa, &mut Team::single_threaded(), &rows.slice(token, 1));
                assert_eq!(bits(output), bits(&alone), "{dtype} on {}, token {token}", isa.name());
            }
        }
    }
}

/// Relative to Σ |weight · activation|, the scale of a dot product's rounding error.
const ARITHMETIC_TOLERANCE: f64 = 2e-6;

#[test]
fn matmuls_agree_with_double_precision_on_the_same_operands() {
    for dtype in every_format() {
        for shape in shapes(dtype) {
            let weights = Weights::new(dtype, shape);
            let rows = Activations::new(3, weights.cols);
            let inputs =
                if weights.packed.takes_quantized() { rows.dequantized() } else { rows.values.clone() };
            let output = weights.matmul(Isa::best(), &mut Team::single_threaded(), &rows);
            let decoded = weights.decoded();
            for (token, input) in inputs.chunks_exact(weights.cols).enumerate() {
                for (row, decoded) in decoded.chunks_exact(weights.cols).enumerate() {
                    let (exact, magnitude) = exact_dot(decoded, input);
                    // Golden blocks of BF16 have values that overflow any sum.
                    if magnitude > f64::from(f32::MAX) {
                        continue;
                    }
                    let error = (f64::from(output[token * weights.rows + row]) - exact).abs();
                    assert!(
                        error <= ARITHMETIC_TOLERANCE * magnitude,
                        "{:?}, token {token}, row {row}: off by {error:e} of {magnitude:e}",
                        weights.packed,
                    );
                }
            }
        }
    }
}

#[test]
fn float_weights_stay_accurate_on_long_rows() {
    let weights = Weights::new(DType::F32, [16, 4096]);
    let rows = Activations::new(2, 4096);
    let output = weights.matmul(Isa::best(), &mut Team::single_threaded(), &rows);
    let decoded = weights.decoded();
    for (index, &value) in output.iter().enumerate() {
        let (token, row) = (index / 16, index % 16);
        let (exact, magnitude) =
            exact_dot(&decoded[row * 4096..][..4096], &rows.values[token * 4096..][..4096]);
        assert!(
            (f64::from(value) - exact).abs() <= 2e-7 * magnitude,
            "token {token}, row {row}: {value} for {exact}"
        );
    }
}

#[test]
fn instruction_sets_agree_on_random_bytes_as_weights() {
    let mut random = Random(7);
    for dtype in every_format() {
        let cols = dtype.block_len().max(32);
        let bytes: Vec<u8> = (0..20 * dtype.row_bytes(cols).unwrap()).map(|_| random.next() as u8).collect();
        let weights = Weights::from_bytes(dtype, [20, cols], bytes);
        let rows = Activations::new(5, cols);
        let expected = weights.matmul(Isa::scalar(), &mut Team::single_threaded(), &rows);
        for isa in Isa::supported() {
            let output = weights.matmul(isa, &mut Team::single_threaded(), &rows);
            assert_eq!(bits(&output), bits(&expected), "{dtype} on {}", isa.name());
        }
    }
}

#[test]
fn activations_quantise_to_the_same_bytes_on_every_instruction_set() {
    for (name, values) in activation_cases() {
        let mut expected = vec![0; activation_row_bytes(values.len())];
        quantize_row(Isa::scalar(), &values, &mut expected);
        for isa in Isa::supported() {
            let mut bytes = vec![0xee; expected.len()];
            quantize_row(isa, &values, &mut bytes);
            for (block, (bytes, expected)) in
                bytes.chunks_exact(48).zip(expected.chunks_exact(48)).enumerate()
            {
                if f32_at(expected, 32).is_nan() {
                    assert!(f32_at(bytes, 32).is_nan(), "{name}: block {block} on {}", isa.name());
                    assert_eq!((&bytes[..32], &bytes[36..]), (&expected[..32], &expected[36..]));
                } else {
                    assert_eq!(bytes, expected, "{name}: block {block} on {}", isa.name());
                }
            }
        }
    }
}

#[test]
fn activation_sums_are_those_of_the_values() {
    for (name, values) in activation_cases() {
        for block in quantized(&values).chunks_exact(48) {
            let quants: Vec<i32> = block[..32].iter().map(|&q| i32::from(q.cast_signed())).collect();
            assert!(quants.iter().all(|q| (-127..=127).contains(q)), "{name}: {quants:?}");
            let sum = |quants: &[i32]| quants.iter().sum::<i32>() as f32;
            assert_eq!(
                [f32_at(block, 36), f32_at(block, 40), f32_at(block, 44)],
                [sum(&quants), sum(&quants[..16]), sum(&quants[16..])],
                "{name}"
            );
        }
    }
}

#[test]
fn activation_error_is_a_tenth_below_that_of_absmax_scales() {
    let rows = Activations::new(64, 2048);
    let absmax: Vec<f32> = rows
        .values
        .chunks_exact(32)
        .flat_map(|block| {
            let scale = block.iter().fold(0.0f32, |absmax, x| absmax.max(x.abs())) / 127.0;
            block.iter().map(move |x| (x / scale).round_ties_even() * scale)
        })
        .collect();
    let (ours, theirs) = (rms_error(&rows.dequantized(), &rows.values), rms_error(&absmax, &rows.values));
    assert!(ours < 0.9 * theirs, "rms error {ours:e} against {theirs:e}");
}

#[test]
fn a_non_finite_activation_affects_only_its_own_token() {
    for dtype in [DType::Q4_0, DType::Q6_K, DType::F32] {
        let weights = Weights::new(dtype, [17, 512]);
        for non_finite in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut rows = Activations::new(6, 512);
            let clean = weights.matmul(Isa::best(), &mut Team::single_threaded(), &rows);
            rows.values[2 * 512 + 77] = non_finite;
            for isa in Isa::supported() {
                let output = weights.matmul(isa, &mut Team::single_threaded(), &rows);
                for (token, (output, clean)) in output.chunks(17).zip(clean.chunks(17)).enumerate() {
                    if token == 2 {
                        assert!(
                            output.iter().any(|value| !value.is_finite()),
                            "{dtype} {non_finite} {}",
                            isa.name()
                        );
                    } else {
                        assert_eq!(
                            bits(output),
                            bits(clean),
                            "{dtype} {non_finite} {} token {token}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn bias_then_residual_are_added_to_the_finished_sum() {
    for dtype in [DType::Q4_K, DType::BF16] {
        let weights = Weights::new(dtype, [41, 256]);
        let rows = Activations::new(7, 256);
        let (bias, residual) = (Random(3).floats(41), Random(4).floats(7 * 50));
        for isa in Isa::supported() {
            let plain = weights.matmul(isa, &mut Team::single_threaded(), &rows);
            let expected = |index: usize, residual: &[f32]| {
                plain[index] + bias[index % 41] + residual[index / 41 * 50 + index % 41]
            };
            let mut team = Team::new(2).unwrap();

            let mut output = vec![0.0; 7 * 41];
            let from_rows = Residual::Rows { values: &residual, stride: 50 };
            let epilogue = Epilogue { bias: Some(&bias), residual: from_rows };
            rows.with_input(isa, &weights.packed, |input| {
                matmul(&mut team, isa, &weights.packed, input, &mut output, 41, epilogue);
            });
            let sums: Vec<f32> = (0..output.len()).map(|index| expected(index, &residual)).collect();
            assert_eq!(bits(&output), bits(&sums), "{dtype} on {}", isa.name());

            let mut in_place = residual.clone();
            let epilogue = Epilogue { bias: Some(&bias), residual: Residual::InPlace };
            rows.with_input(isa, &weights.packed, |input| {
                matmul(&mut team, isa, &weights.packed, input, &mut in_place, 50, epilogue);
            });
            for (token, row) in in_place.chunks_exact(50).enumerate() {
                assert_eq!(
                    bits(&row[..41]),
                    bits(&sums[token * 41..][..41]),
                    "{dtype} in place on {}",
                    isa.name()
                );
                assert_eq!(row[41..], residual[token * 50 + 41..][..9], "{dtype}: wrote beyond the row");
            }
        }
    }
}

#[test]
fn matmul_groups_writes_only_the_columns_of_its_row_groups() {
    let weights = Weights::new(DType::Q5_0, [70, 64]);
    let rows = Activations::new(3, 64);
    for isa in Isa::supported() {
        let whole = weights.matmul(isa, &mut Team::single_threaded(), &rows);
        let mut output = vec![-1.5; 3 * 70];
        rows.with_input(isa, &weights.packed, |input| {
            let output = SharedOutput::new(&mut output, 70);
            // SAFETY: no other thread uses the output.
            unsafe { matmul_groups(isa, &weights.packed, input, &output, 1..3, Epilogue::default()) };
        });
        for (index, value) in output.into_iter().enumerate() {
            let is_mine = (16..48).contains(&(index % 70));
            assert_eq!(value, if is_mine { whole[index] } else { -1.5 }, "element {index} on {}", isa.name());
        }
    }
}

#[test]
fn matmul_expert_groups_computes_the_pairs_of_the_list_and_writes_no_others() {
    const USED: usize = 3;
    let lists: [&[u32]; 5] = [&[], &[5], &[38, 0], &[1, 5, 8, 9, 14, 17, 20, 21, 26, 29, 31], &[2, 3, 4]];
    for dtype in every_format() {
        let shape = shapes(dtype)[1];
        let [rows, cols] = shape;
        let weights = Weights::new(dtype, shape);
        let bias = Random(5).floats(rows);
        // The separate result of each part of each token, in either reading of the input.
        let parts = Activations::new(13 * USED, cols);
        for isa in Isa::supported() {
            let expected = weights.matmul(isa, &mut Team::single_threaded(), &parts);
            for input_per_pair in [true, false] {
                // The same values as rows of three parts, or as rows that are shared by the experts of three top-k indices.
                let tokens = if input_per_pair { 13 } else { 13 * USED };
                let row = if input_per_pair { USED * cols } else { cols };
                let input = Activations { tokens, cols: row, values: parts.values.clone() };
                for list in lists {
                    let mut output = vec![-1.5; tokens * USED * rows];
                    input.with_input(isa, &weights.packed, |input| {
                        let output = SharedOutput::new(&mut output, USED * rows);
                        let pairs = ExpertPairs { list, experts_used: USED, input_per_pair };
                        let bias = Some(&bias[..]);
                        // SAFETY: no other thread uses the output.
                        unsafe {
                            matmul_expert_groups(isa, &weights.packed, input, &output, pairs, 0..2, bias);
                        }
                    });
                    for (index, value) in output.into_iter().enumerate() {
                        let (choice, column) = (index / rows, index % rows);
                        let part = if input_per_pair { choice } else { choice / USED };
                        let wanted = if list.contains(&(choice as u32)) {
                            expected[part * rows + column] + bias[column]
                        } else {
                            -1.5
                        };
                        let same = value.to_bits() == wanted.to_bits() || value.is_nan() && wanted.is_nan();
                        assert!(same, "{dtype} on {}: {list:?} {index}", isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn experts_are_matrices_of_one_shape() {
    let (rows, cols) = (16, 256);
    let one = Weights::new(DType::IQ2_S, [rows, cols]);
    let team = &mut Team::new(2).unwrap();
    let twice = [&one.bytes[..], &one.bytes].concat();
    let experts = PackedExperts::pack_with(team, DType::IQ2_S, 2, rows, cols, &twice).unwrap();
    assert!(experts.takes_quantized() && experts.packed_bytes() == 2 * one.packed.packed_bytes());
    let mut decoded = vec![0.0; cols];
    experts.matrices()[1].dequantize_row(3, &mut decoded);
    assert_eq!(decoded, one.decoded()[3 * cols..4 * cols]);

    let short = PackedExperts::pack_with(team, DType::IQ2_S, 3, rows, cols, &twice).unwrap_err();
    assert!(matches!(short, PackError::Size { rows: 48, .. }), "{short}");
    let none = PackedExperts::pack_with(team, DType::IQ2_S, 0, rows, cols, &[0u8; 0]).unwrap_err();
    assert!(matches!(none, PackError::Empty { .. }), "{none}");
}

#[test]
fn packing_does_not_depend_on_the_number_of_threads() {
    for dtype in [DType::Q4_K, DType::IQ2_S, DType::F16] {
        let alone = Weights::new(dtype, [100, 256]);
        let together =
            PackedMatrix::pack_with(&mut Team::new(3).unwrap(), dtype, 100, 256, &alone.bytes).unwrap();
        let rows = Activations::new(2, 256);
        let expected = alone.matmul(Isa::best(), &mut Team::single_threaded(), &rows);
        let output =
            Weights { packed: together, ..alone }.matmul(Isa::best(), &mut Team::single_threaded(), &rows);
        assert_eq!(bits(&output), bits(&expected), "{dtype}");
    }
}

#[test]
fn packed_size_is_close_to_the_size_in_the_file() {
    use DType::*;
    let common =
        [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, F16, BF16, F32];
    for dtype in every_format() {
        let weights = Weights::new(dtype, [1024, 2048]);
        let ratio = weights.packed.packed_bytes() as f64 / weights.bytes.len() as f64;
        let most = if common.contains(&dtype) { 1.06 } else { 1.12 };
        assert!(ratio <= most, "{dtype}: {ratio:.3} times the file");
    }
}

#[test]
fn invalid_matrices_are_rejected_with_a_clear_message() {
    let message = |dtype, rows, cols, bytes: usize| {
        PackedMatrix::pack(dtype, rows, cols, &vec![0; bytes]).unwrap_err().to_string()
    };
    assert!(
        message(DType::Q4_K, 2, 300, 500)
            .contains("a row of 300 columns is not a multiple of the Q4_K block size, 256")
    );
    assert!(message(DType::Q8_0, 2, 64, 100).contains("take 136 bytes, not 100"));
    assert!(message(DType::F32, 0, 64, 0).contains("empty"));
    assert!(message(DType::I32, 1, 1, 4).contains("I32 is not a weight format"));
    let too_large = PackedMatrix::pack(DType::F32, usize::MAX, usize::MAX / 4, &[]);
    assert!(matches!(too_large, Err(PackError::Size { expected: usize::MAX, .. })), "{too_large:?}");
}

// Test helpers.

/// Every type that holds weights.
fn every_format() -> Vec<DType> {
    ALL.into_iter().filter(|&dtype| dequantize(dtype, &[], &mut []).is_ok()).collect()
}

/// A single short row, a ragged last group, and a shape of a small model.
fn shapes(dtype: DType) -> [[usize; 2]; 4] {
    let block = dtype.block_len();
    // Float types take any number of columns.
    let least = if block == 1 { 37 } else { block.max(32) };
    [[1, least], [17, 576usize.next_multiple_of(block)], [31, 2 * block.max(32)], [48, 1536]]
}

struct Weights {
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
    packed: PackedMatrix,
}

impl Weights {
    /// Golden blocks in random order.
    fn new(dtype: DType, [rows, cols]: [usize; 2]) -> Weights {
        let blocks = golden_blocks(dtype);
        let blocks: Vec<&[u8]> = blocks.chunks_exact(dtype.block_bytes()).collect();
        let mut random = Random(u64::from(dtype.id()) + 1);
        let count = rows * cols / dtype.block_len();
        let bytes = (0..count).flat_map(|_| blocks[random.next() as usize % blocks.len()]).copied().collect();
        Weights::from_bytes(dtype, [rows, cols], bytes)
    }

    fn from_bytes(dtype: DType, [rows, cols]: [usize; 2], bytes: Vec<u8>) -> Weights {
        let packed = PackedMatrix::pack(dtype, rows, cols, &bytes).unwrap();
        assert_eq!((packed.dtype(), packed.rows(), packed.cols()), (dtype, rows, cols));
        Weights { dtype, rows, cols, bytes, packed }
    }

    fn decoded(&self) -> Vec<f32> {
        let mut decoded = vec![0.0; self.rows * self.cols];
        dequantize(self.dtype, &self.bytes, &mut decoded).unwrap();
        decoded
    }

    fn matmul(&self, isa: Isa, team: &mut Team, rows: &Activations) -> Vec<f32> {
        let mut output = vec![f32::NAN; rows.tokens * self.rows];
        rows.with_input(isa, &self.packed, |input| {
            matmul(team, isa, &self.packed, input, &mut output, self.rows, Epilogue::default());
        });
        output
    }
}

struct Activations {
    tokens: usize,
    cols: usize,
    values: Vec<f32>,
}

impl Activations {
    fn new(tokens: usize, cols: usize) -> Activations {
        Activations { tokens, cols, values: Random(99).floats(tokens * cols) }
    }

    fn slice(&self, first: usize, tokens: usize) -> Activations {
        let values = self.values[first * self.cols..(first + tokens) * self.cols].to_vec();
        Activations { tokens, cols: self.cols, values }
    }

    fn with_input(&self, isa: Isa, weights: &PackedMatrix, then: impl FnOnce(Input<'_>)) {
        if !weights.takes_quantized() {
            return then(Input::Floats { values: &self.values, stride: self.cols, tokens: self.tokens });
        }
        let stride_bytes = activation_row_bytes(self.cols);
        let mut bytes = vec![0; self.tokens * stride_bytes];
        for (row, out) in self.values.chunks_exact(self.cols).zip(bytes.chunks_exact_mut(stride_bytes)) {
            quantize_row(isa, row, out);
        }
        then(Input::Quantized { bytes: &bytes, stride_bytes, tokens: self.tokens, terms: 1 });
    }

    fn dequantized(&self) -> Vec<f32> {
        let bytes = quantized(&self.values);
        let value = |block: &[u8], i: usize| f32::from(block[i].cast_signed()) * f32_at(block, 32);
        bytes.chunks_exact(48).flat_map(|block| (0..32).map(move |i| value(block, i))).collect()
    }
}

fn quantized(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; activation_row_bytes(values.len())];
    quantize_row(Isa::best(), values, &mut bytes);
    bytes
}

fn activation_cases() -> Vec<(&'static str, Vec<f32>)> {
    let ordinary = Random(5).floats(32 * 500);
    let mut one_outlier = ordinary.clone();
    one_outlier.iter_mut().step_by(32).for_each(|value| *value *= 1000.0);
    let with = |at: usize, value: f32| {
        let mut values = ordinary[..64].to_vec();
        values[at] = value;
        values
    };
    vec![
        ("ordinary", ordinary.clone()),
        ("one outlier", one_outlier),
        ("integers", (0..320).map(|i| (i % 255) as f32 - 127.0).collect()),
        ("halves", (0..320).map(|i| (i % 253) as f32 / 2.0 - 63.0).collect()),
        ("zeros", vec![0.0; 32]),
        ("negative zeros", vec![-0.0; 32]),
        ("constant", vec![-3.25; 32]),
        ("tiny", ordinary.iter().map(|x| x * 1e-38).collect()),
        ("at the threshold", ordinary.iter().map(|x| x * 3e-31).collect()),
        ("huge", ordinary.iter().map(|x| x * 5e37).collect()),
        ("NaN", with(40, f32::NAN)),
        ("infinity", with(3, f32::INFINITY)),
        ("negative infinity", with(63, f32::NEG_INFINITY)),
        ("largest", with(17, f32::MAX)),
    ]
}

fn golden_blocks(dtype: DType) -> Vec<u8> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/quants/dequant.safetensors"));
    let file = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    match tensors.tensor(&format!("{}.bytes", dtype.name())) {
        Ok(tensor) => tensor.data().to_vec(),
        // Float types may be missing in the file.
        Err(_) if dtype == DType::F32 => {
            Random(1).floats(4096).into_iter().flat_map(|value| value.to_le_bytes()).collect()
        }
        Err(error) => panic!("no blocks of {dtype}: {error}"),
    }
}

fn exact_dot(a: &[f32], b: &[f32]) -> (f64, f64) {
    let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
    products.fold((0.0, 0.0), |(sum, magnitude), product| (sum + product, magnitude + product.abs()))
}

fn rms_error(values: &[f32], exact: &[f32]) -> f64 {
    let squares: f64 = values.iter().zip(exact).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (squares / exact.len() as f64).sqrt()
}

fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Bits, with every NaN as one.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

/// A small generator (SplitMix64), so that every run tests the same values.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Close to normally distributed: sums of uniform values.
    fn floats(&mut self, count: usize) -> Vec<f32> {
        let uniform = |random: &mut Random| (random.next() >> 40) as f32 / (1u32 << 24) as f32 - 0.5;
        (0..count).map(|_| (0..6).map(|_| uniform(self)).sum::<f32>() * std::f32::consts::SQRT_2).collect()
    }
}
