//! What holds for any input: bounds on the error of a round trip, independence of blocks, and no panic on bad input.

use proptest::collection::vec;
use proptest::prelude::*;
use verbatim_quant::{ALL, DType, QuantError, can_quantize, dequantize, quantize};

/// A multiple of the block size of every type.
const LEN: usize = 256;

/// The formats with a quantiser, and the bound on the root mean square error of a round trip in units of the largest
/// magnitude in the input.
const BOUNDS: [(DType, f64); 18] = [
    (DType::F32, 0.0),
    (DType::F16, 0.0005),
    (DType::BF16, 0.004),
    (DType::Q4_0, 0.1),
    (DType::Q4_1, 0.07),
    (DType::Q5_0, 0.05),
    (DType::Q5_1, 0.035),
    (DType::Q8_0, 0.005),
    (DType::Q2_K, 0.28),
    (DType::Q3_K, 0.14),
    (DType::Q4_K, 0.06),
    (DType::Q5_K, 0.03),
    (DType::Q6_K, 0.015),
    (DType::IQ4_NL, 0.08),
    (DType::IQ4_XS, 0.08),
    (DType::TQ1_0, 0.501),
    (DType::TQ2_0, 0.501),
    (DType::MXFP4, 0.26),
];

/// Blocks of very different size in one row, now and then an outlier or zeros.
fn weights() -> impl Strategy<Value = Vec<f32>> {
    let element = prop_oneof![20 => -1.0f32..1.0, 1 => Just(0.0f32), 1 => -30.0f32..30.0];
    (vec(element, LEN), -1i32..4, vec(-2i32..=0, LEN / 32)).prop_map(
        |(mut row, exponent, block_exponents)| {
            for (i, x) in row.iter_mut().enumerate() {
                *x *= 10f32.powi(exponent + block_exponents[i / 32]);
            }
            row
        },
    )
}

proptest! {
    #[test]
    fn a_round_trip_errs_within_bounds(row in weights()) {
        let largest = row.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        for (dtype, bound) in BOUNDS {
            let decoded = round_trip(dtype, &row);
            let squares = row.iter().zip(&decoded).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
            let error = (squares / LEN as f64).sqrt();
            prop_assert!(error <= bound * f64::from(largest), "{dtype}: {error} of {largest}");
        }
    }

    #[test]
    fn a_block_does_not_depend_on_its_neighbours(first in weights(), second in weights()) {
        let both = [first.clone(), second.clone()].concat();
        for (dtype, _) in BOUNDS {
            prop_assert_eq!(encode(dtype, &both), [encode(dtype, &first), encode(dtype, &second)].concat());
        }
    }

    #[test]
    fn any_finite_input_in_range_decodes_to_finite_values(bits in vec(any::<u32>(), LEN)) {
        for (dtype, _) in BOUNDS {
            let limit = limit(dtype);
            let in_range = |x: f32| if x.is_finite() { x.clamp(-limit, limit) } else { 0.0 };
            let row: Vec<f32> = bits.iter().map(|b| in_range(f32::from_bits(*b))).collect();
            prop_assert!(round_trip(dtype, &row).iter().all(|x| x.is_finite()), "{dtype}");
        }
    }

    #[test]
    fn any_bytes_decode(bytes in vec(any::<u8>(), 4 * LEN)) {
        for dtype in ALL {
            let used = dtype.row_bytes(LEN).unwrap();
            let mut out = vec![0.0; LEN];
            match dequantize(dtype, bytes.get(..used).unwrap_or_default(), &mut out) {
                Ok(()) | Err(QuantError::NoDecoder { .. }) => {}
                // I64, F64 and Q8_K take more bytes than there are here; they have no decoder either.
                Err(error) => prop_assert!(used > bytes.len(), "{error}"),
            }
        }
    }
}

#[test]
fn bounds_cover_every_quantiser() {
    for dtype in ALL {
        assert_eq!(can_quantize(dtype), BOUNDS.iter().any(|(t, _)| *t == dtype), "{dtype}");
    }
}

#[test]
fn zeros_stay_zero() {
    for (dtype, _) in BOUNDS {
        assert!(round_trip(dtype, &[0.0; LEN]).iter().all(|x| *x == 0.0), "{dtype}");
        assert!(round_trip(dtype, &[-0.0; LEN]).iter().all(|x| *x == 0.0), "{dtype}");
    }
}

#[test]
fn values_at_the_limits_of_the_range_decode_to_finite_values() {
    for (dtype, _) in BOUNDS {
        let limit = limit(dtype);
        for magnitude in [limit, limit / 3.0, 1e-8, f32::MIN_POSITIVE, f32::from_bits(1)] {
            for pattern in [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [1.0, 0.0], [0.0, -1.0]] {
                let row: Vec<f32> = (0..LEN).map(|i| magnitude * pattern[i % 2]).collect();
                let decoded = round_trip(dtype, &row);
                let largest = decoded.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                assert!(decoded.iter().all(|x| x.is_finite()), "{dtype} {magnitude:e} {pattern:?}");
                assert!(largest <= 1.51 * magnitude, "{dtype} {magnitude:e} {pattern:?}: {largest:e}");
            }
        }
    }
}

#[test]
fn positive_blocks_are_quantised_as_well_as_negative_ones() {
    let above: Vec<f32> = (0..LEN).map(|i| 2.0 + (i * 37 % LEN) as f32 / LEN as f32).collect();
    let below: Vec<f32> = above.iter().map(|x| -x).collect();
    for dtype in [DType::Q2_K, DType::Q4_K, DType::Q5_K] {
        let mirrored: Vec<f32> = round_trip(dtype, &below).iter().map(|x| -x).collect();
        assert_eq!(round_trip(dtype, &above), mirrored, "{dtype}");
    }
}

#[test]
fn values_that_cannot_be_quantised_are_reported_with_their_index() {
    for (dtype, _) in BOUNDS {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            match quantize_with(dtype, value) {
                Err(QuantError::NotFinite { index: 77, value: reported }) => {
                    assert_eq!(reported.to_bits(), value.to_bits());
                }
                other => panic!("{dtype}: {other:?}"),
            }
        }
        let beyond = limit(dtype).next_up();
        if beyond.is_finite() {
            let limit = limit(dtype);
            let expected = QuantError::OutOfRange { dtype, index: 77, value: -beyond, limit };
            assert_eq!(quantize_with(dtype, -beyond), Err(expected));
        }
    }
}

#[test]
fn wrong_sizes_are_reported() {
    for dtype in ALL.into_iter().filter(|t| can_quantize(*t)) {
        let expected = dtype.row_bytes(LEN).unwrap();
        for actual in [0, expected - 1, expected + 1] {
            let error = QuantError::WrongByteCount { dtype, elements: LEN, expected, actual };
            assert_eq!(dequantize(dtype, &vec![0; actual], &mut [0.0; LEN]), Err(error.clone()));
            assert_eq!(quantize(dtype, &[0.0; LEN], &mut vec![0; actual]), Err(error));
        }
        if dtype.block_len() > 1 {
            let elements = LEN - 1;
            let error = QuantError::PartialBlock { dtype, elements };
            assert_eq!(dequantize(dtype, &vec![0; expected], &mut vec![0.0; elements]), Err(error.clone()));
            assert_eq!(quantize(dtype, &vec![0.0; elements], &mut vec![0; expected]), Err(error));
        }
        assert_eq!(dequantize(dtype, &[], &mut []), Ok(()));
        assert_eq!(quantize(dtype, &[], &mut []), Ok(()));
    }
}

#[test]
fn types_without_a_codec_are_rejected() {
    use DType::*;
    for dtype in [Q8_1, Q8_K, I8, I16, I32, I64, F64] {
        let bytes = vec![0; dtype.row_bytes(LEN).unwrap()];
        assert_eq!(dequantize(dtype, &bytes, &mut [0.0; LEN]), Err(QuantError::NoDecoder { dtype }));
    }
    for dtype in [Q8_1, Q8_K, I32, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, NVFP4, Q1_0, Q2_0] {
        let mut bytes = vec![0; dtype.row_bytes(LEN).unwrap()];
        let result = quantize(dtype, &[0.0; LEN], &mut bytes);
        assert!(
            matches!(result, Err(QuantError::NoQuantizer { dtype: of, .. }) if of == dtype),
            "{result:?}"
        );
        let message = result.unwrap_err().to_string();
        assert!(message.contains(dtype.name()) && message.contains("Q4_K"), "{message}");
    }
}

fn encode(dtype: DType, row: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xa5; dtype.row_bytes(row.len()).unwrap()];
    quantize(dtype, row, &mut bytes).unwrap();
    bytes
}

fn round_trip(dtype: DType, row: &[f32]) -> Vec<f32> {
    let mut decoded = vec![f32::NAN; row.len()];
    dequantize(dtype, &encode(dtype, row), &mut decoded).unwrap();
    decoded
}

/// A row of zeros with one other value, at 77.
fn quantize_with(dtype: DType, value: f32) -> Result<(), QuantError> {
    let mut row = [0.0; LEN];
    row[77] = value;
    quantize(dtype, &row, &mut vec![0; dtype.row_bytes(LEN).unwrap()])
}

/// The largest magnitude that the quantiser accepts, from its error.
fn limit(dtype: DType) -> f32 {
    match quantize_with(dtype, f32::MAX) {
        Err(QuantError::OutOfRange { limit, .. }) => limit,
        other => other.map(|()| f32::MAX).unwrap(),
    }
}
