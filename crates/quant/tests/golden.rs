//! Every decoder and quantiser against golden data: bytes and values that llama.cpp (build 11434, October 2026) and its
//! `gguf` package 0.19 produced, in `tests/data/quants`. Its README names the rows of the quantisers' input.

use safetensors::SafeTensors;
use std::{fs, ops::Range};
use verbatim_quant::{DType, dequantize, quantize};

const DEQUANT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/quants/dequant.safetensors");
const QUANTISE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/quants/quantise.safetensors");

const ROW: usize = 256;

#[test]
fn every_decoder_gives_the_golden_bits() {
    let file = fs::read(DEQUANT).unwrap();
    let golden = SafeTensors::deserialize(&file).unwrap();
    let mut types = 0;
    for name in golden.names().into_iter().filter_map(|name| name.strip_suffix(".bytes")) {
        let dtype = DType::from_name(name).unwrap();
        let expected = floats(&golden, &format!("{name}.expected"));
        let mut decoded = vec![f32::NAN; expected.len()];
        dequantize(dtype, bytes(&golden, &format!("{name}.bytes")), &mut decoded).unwrap();
        if let Some(i) = (0..expected.len()).find(|&i| expected[i].to_bits() != decoded[i].to_bits()) {
            panic!("{name} element {i}: {:?} instead of {:?}", decoded[i], expected[i]);
        }
        types += 1;
    }
    assert_eq!(types, 27);
}

#[test]
fn simple_quantisers_give_the_golden_bytes() {
    use DType::*;
    let file = fs::read(QUANTISE).unwrap();
    let golden = SafeTensors::deserialize(&file).unwrap();
    let input = floats(&golden, "input_f32");
    for dtype in [F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, TQ1_0, TQ2_0, MXFP4] {
        let encoded = encode(dtype, &input);
        let expected = bytes(&golden, &format!("{dtype}.bytes"));
        if let Some(i) = (0..expected.len()).find(|&i| expected[i] != encoded[i]) {
            panic!("{dtype} row {}: byte {i} differs", i / dtype.row_bytes(ROW).unwrap());
        }
    }
}

#[test]
fn searching_quantisers_are_no_worse_than_llama_cpp() {
    use DType::*;
    // Rows of ordinary weights; the rows before them are extreme ones.
    const ORDINARY: Range<usize> = 16 * ROW..40 * ROW;
    let file = fs::read(QUANTISE).unwrap();
    let golden = SafeTensors::deserialize(&file).unwrap();
    let input = floats(&golden, "input_f32");
    for dtype in [Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS] {
        let mut ours = vec![f32::NAN; input.len()];
        dequantize(dtype, &encode(dtype, &input), &mut ours).unwrap();
        let theirs = floats(&golden, &format!("{dtype}.dequantised"));
        let (our_error, their_error) =
            (rms_error(&ours[ORDINARY], &input[ORDINARY]), rms_error(&theirs[ORDINARY], &input[ORDINARY]));
        println!("{dtype}: {our_error:.4e}, llama.cpp {their_error:.4e}");
        assert!(our_error <= their_error, "{dtype}: error {our_error:.4e}, llama.cpp's is {their_error:.4e}");
        for row in 0..input.len() / ROW {
            let at = row * ROW..(row + 1) * ROW;
            let ours = rms_error(&ours[at.clone()], &input[at.clone()]);
            let theirs = rms_error(&theirs[at.clone()], &input[at.clone()]);
            // The error of a constant row depends only on how f16 rounds the scale.
            let is_constant = input[at.clone()].iter().all(|x| *x == input[at.start]);
            let rounding = if is_constant { f64::from(input[at.start].abs()) / 4096.0 } else { 0.0 };
            assert!(
                ours <= 1.002 * theirs + rounding,
                "{dtype} row {row}: {ours:.4e}, llama.cpp's is {theirs:.4e}"
            );
        }
    }
}

fn rms_error(values: &[f32], exact: &[f32]) -> f64 {
    let squares = values.iter().zip(exact).map(|(v, x)| (f64::from(*v) - f64::from(*x)).powi(2));
    (squares.sum::<f64>() / exact.len() as f64).sqrt()
}

fn encode(dtype: DType, input: &[f32]) -> Vec<u8> {
    let mut encoded = vec![0xa5; dtype.row_bytes(input.len()).unwrap()];
    quantize(dtype, input, &mut encoded).unwrap();
    encoded
}

fn bytes<'a>(golden: &SafeTensors<'a>, name: &str) -> &'a [u8] {
    golden.tensor(name).unwrap().data()
}

fn floats(golden: &SafeTensors, name: &str) -> Vec<f32> {
    let (elements, _) = bytes(golden, name).as_chunks::<4>();
    elements.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
