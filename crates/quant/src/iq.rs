//! The IQ formats. IQ4_NL and IQ4_XS index a codebook of sixteen non-linear levels; the others store groups of 4 or 8
//! elements as an index into a codebook (ggml: [grid](crate::grids)) of magnitudes, and the signs separately.

use crate::bytes::{f16_at, put_f16, put_quant, quant, round_to_f16, u16_at, u32_at};
use crate::grids::{self, unpack_4, unpack_8};
use crate::legacy::inverse_or_zero;
use crate::search::{self, LEN, Levels};

/// The levels of IQ4_NL and IQ4_XS. Source: ggml.
const IQ4_LEVELS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];
// Two bits could index a fourth level; no grid point does.
const IQ2_LEVELS: [f32; 4] = [8.0, 25.0, 43.0, f32::NAN];
const IQ3_XXS_LEVELS: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
const IQ3_S_LEVELS: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
const IQ1_LEVELS: [f32; 4] = [-1.0, 0.0, 1.0, f32::NAN];

/// Added to or subtracted from every element of a group of the IQ1 types.
const IQ1_DELTA: f32 = 0.125;

/// IQ4_NL: `d: f16, qs: [u8; 16]`.
pub(crate) fn decode_iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for i in 0..32 {
        out[i] = d * IQ4_LEVELS[usize::from(quant::<4, 16>(&block[2..], i))];
    }
}

/// IQ4_XS: `d: f16, scales_h: u16, scales_l: [u8; 4], qs: [u8; 128]`; a scale is 6 bits, minus 32.
pub(crate) fn decode_iq4_xs(block: &[u8; 136], out: &mut [f32; LEN]) {
    let d = f16_at(block, 0);
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = quant::<4, 1>(&block[4..], sub) | quant::<2, 1>(&block[2..], sub) << 4;
        let scale = d * (f32::from(scale) - 32.0);
        for i in 0..32 {
            out[i] = scale * IQ4_LEVELS[usize::from(quant::<4, 16>(&block[8..], 32 * sub + i))];
        }
    }
}

/// IQ2_XXS: `d: f16`, then per 32 elements `grid_indices: [u8; 4]` and a word of four 7-bit signs and a 4-bit scale.
pub(crate) fn decode_iq2_xxs(block: &[u8; 66], out: &mut [f32; LEN]) {
    let d = f16_at(block, 0);
    for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let at = 2 + group / 4 * 8;
        let word = u32_at(block, at + 4);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        let point = grids::IQ2_XXS[usize::from(block[at + group % 4])];
        *out = signed_group(scale, unpack_8(point, &IQ2_LEVELS), eight_signs(word >> (7 * (group % 4))));
    }
}

/// IQ2_XS: `d: f16, grid_indices_and_signs: [u16; 32]` (9 and 7 bits), `scales: [u8; 8]` (4 bits per 16 elements).
pub(crate) fn decode_iq2_xs(block: &[u8; 74], out: &mut [f32; LEN]) {
    let d = f16_at(block, 0);
    for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u16_at(block, 2 + 2 * group);
        let scale = d * (0.5 + f32::from(quant::<4, 1>(&block[66..], group / 2))) * 0.25;
        let point = grids::IQ2_XS[usize::from(word & 511)];
        *out = signed_group(scale, unpack_8(point, &IQ2_LEVELS), eight_signs(u32::from(word >> 9)));
    }
}

/// IQ2_S: `d: f16, grid_indices_low: [u8; 32], signs: [u8; 32], grid_indices_high: [u8; 8], scales: [u8; 8]`.
pub(crate) fn decode_iq2_s(block: &[u8; 82], out: &mut [f32; LEN]) {
    let d = f16_at(block, 0);
    for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let index = usize::from(block[2 + group]) | usize::from(quant::<2, 1>(&block[66..], group)) << 8;
        let scale = d * (0.5 + f32::from(quant::<4, 1>(&block[74..], group / 2))) * 0.25;
        *out = signed_group(scale, unpack_8(grids::IQ2_S[index], &IQ2_LEVELS), block[34 + group]);
    }
}

/// IQ3_XXS: `d: f16, grid_indices: [u8; 64]`, then per 32 elements a word of four 7-bit signs and a 4-bit scale.
pub(crate) fn decode_iq3_xxs(block: &[u8; 98], out: &mut [f32; LEN]) {
    let d = f16_at(block, 0);
    for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u32_at(block, 66 + group / 4 * 4);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        let points = [0, 1].map(|half| grids::IQ3_XXS[usize::from(block[2 + 2 * group + half])]);
        let magnitudes = two_groups_of_4(points, &IQ3_XXS_LEVELS);
        *out = signed_group(scale, magnitudes, eight_signs(word >> (7 * (group % 4))));
    }
}

/// IQ3_S: `d: f16, grid_indices_low: [u8; 64], grid_indices_high: [u8; 8], signs: [u8; 32], scales: [u8; 4]`.
pub(crate) fn decode_iq3_s(block: &[u8; 110], out: &mut [f32; LEN]) {
    let d = f16_at(block, 0);
    for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let scale = d * (1.0 + 2.0 * f32::from(quant::<4, 1>(&block[106..], group / 4)));
        let points = [0, 1].map(|half| {
            let at = 2 * group + half;
            grids::IQ3_S[usize::from(block[2 + at]) | usize::from(quant::<1, 1>(&block[66..], at)) << 8]
        });
        *out = signed_group(scale, two_groups_of_4(points, &IQ3_S_LEVELS), block[74 + group]);
    }
}

/// IQ1_S: `d: f16, grid_indices_low: [u8; 32]`, then per 32 elements a word of four 3-bit high parts, a 3-bit scale and the
/// sign of the delta.
pub(crate) fn decode_iq1_s(block: &[u8; 50], out: &mut [f32; LEN]) {
    let d = f16_at(block, 0);
    for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u16_at(block, 34 + group / 4 * 2);
        let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
        let delta = if word & 0x8000 == 0 { IQ1_DELTA } else { -IQ1_DELTA };
        let index = usize::from(block[2 + group]) | usize::from(word >> (3 * (group % 4)) & 7) << 8;
        *out = unpack_8(grids::IQ1[index], &IQ1_LEVELS).map(|level| scale * (level + delta));
    }
}

/// IQ1_M: `grid_indices_low: [u8; 32], high: [u8; 16]` (per group 3 bits of grid index and the sign of the delta),
/// `scales: [u16; 4]` (3 bits per 16 elements; the four bits above make up `d`, lowest quarter first).
pub(crate) fn decode_iq1_m(block: &[u8; 56], out: &mut [f32; LEN]) {
    let words = [48, 50, 52, 54].map(|at| u16_at(block, at));
    let d_bits = words.iter().rev().fold(0, |bits, word| bits << 4 | word >> 12);
    let d = half::f16::from_bits(d_bits).to_f32();
    for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let pair = group / 2;
        let scale = d * f32::from(2 * (words[pair / 4] >> (3 * (pair % 4)) & 7) + 1);
        let high = quant::<4, 1>(&block[32..], group);
        let delta = if high & 8 == 0 { IQ1_DELTA } else { -IQ1_DELTA };
        let index = usize::from(block[group]) | usize::from(high & 7) << 8;
        *out = unpack_8(grids::IQ1[index], &IQ1_LEVELS).map(|level| scale * (level + delta));
    }
}

pub(crate) fn encode_iq4_nl(input: &[f32; 32], block: &mut [u8; 18]) {
    let d = round_to_f16(search::fit_scale::<Iq4, 32>(input));
    block.fill(0);
    put_f16(block, 0, d);
    for i in 0..32 {
        put_quant::<4, 16>(&mut block[2..], i, iq4_index(Iq4::nearest(input[i] * inverse_or_zero(d))));
    }
}

pub(crate) fn encode_iq4_xs(input: &[f32; LEN], block: &mut [u8; 136]) {
    let found = search::symmetric::<Iq4, 8, 32>(input, 31.0);
    block.fill(0);
    put_f16(block, 0, found.d);
    for sub in 0..8 {
        let scale = (found.scales[sub] + 32).cast_unsigned();
        put_quant::<2, 1>(&mut block[2..], sub, scale >> 4);
        put_quant::<4, 1>(&mut block[4..], sub, scale);
    }
    for i in 0..LEN {
        put_quant::<4, 16>(&mut block[8..], i, iq4_index(found.levels[i]));
    }
}

/// [`IQ4_LEVELS`] as levels of the search.
struct Iq4;

impl Levels for Iq4 {
    const LOWEST: f32 = IQ4_LEVELS[0];
    const HIGHEST: f32 = IQ4_LEVELS[15];

    /// Visits all fifteen steps without a branch: unlike a binary search, this is vectorised.
    fn nearest(value: f32) -> f32 {
        let mut level = IQ4_LEVELS[0];
        for step in IQ4_LEVELS.windows(2) {
            let (low, high) = (step[0], step[1]);
            level += if value > (low + high) * 0.5 { high - low } else { 0.0 };
        }
        level
    }
}

fn iq4_index(level: f32) -> u8 {
    IQ4_LEVELS.partition_point(|l| *l < level) as u8
}

/// Eight signs from seven bits: the eighth makes the number of minus signs even.
fn eight_signs(bits: u32) -> u8 {
    let seven = (bits & 127) as u8;
    seven | ((seven.count_ones() & 1) as u8) << 7
}

/// `scale * magnitude`, negative where the bit in `signs` is set.
fn signed_group(scale: f32, magnitudes: [f32; 8], signs: u8) -> [f32; 8] {
    std::array::from_fn(|i| {
        let value = scale * magnitudes[i];
        if signs >> i & 1 == 0 { value } else { -value }
    })
}

fn two_groups_of_4(points: [u16; 2], levels: &[f32; 8]) -> [f32; 8] {
    let groups = points.map(|point| unpack_4(point, levels));
    std::array::from_fn(|i| groups[i / 4][i % 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_grid_point_uses_a_fourth_level() {
        let points = [&grids::IQ2_XXS[..], &grids::IQ2_XS, &grids::IQ2_S, &grids::IQ1].concat();
        assert_eq!(points.len(), 256 + 512 + 1024 + 2048);
        assert!(points.iter().all(|point| point & point >> 1 & 0x5555 == 0));
    }

    #[test]
    fn eight_signs_have_an_even_number_of_minus_signs() {
        let signs: Vec<u8> = (0..128).map(eight_signs).collect();
        assert!(
            (0..)
                .zip(&signs)
                .all(|(bits, signs): (u8, _)| signs & 127 == bits && signs.count_ones() % 2 == 0)
        );
    }

    #[test]
    fn nearest_returns_the_nearest_level() {
        for tenths in -1500..1500 {
            let value = tenths as f32 / 10.0;
            let distance = |level: f32| (level - value).abs();
            let least = IQ4_LEVELS.into_iter().map(distance).fold(f32::INFINITY, f32::min);
            assert_eq!(distance(Iq4::nearest(value)), least, "{value}");
            assert_eq!(IQ4_LEVELS[usize::from(iq4_index(Iq4::nearest(value)))], Iq4::nearest(value));
        }
    }
}
