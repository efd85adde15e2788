//! KV cells and recurrent state slots: written by ops, read, copied, moved, saved.

mod common;

use common::{Case, assert_near, exact, random_values, rounded};
use verbatim_backend::{
    Backend, KShift, KvSpec, KvType, PAGE_CELLS, RecurrentSpec, StateLayers, StateMemoryError, StateStore,
};
use verbatim_graph::random::Random;
use verbatim_graph::{DeltaHeads, F32Bits, Op, RopeLayout, RopeScaling, RopeTable};
use verbatim_quant::dequantize;
use verbatim_reference::{Reference, State};

/// Each type of K with a different one of V, and head sizes that are and are not multiples of the block size.
fn specs() -> impl Iterator<Item = KvSpec> {
    let kinds = KvType::ALL.into_iter().enumerate();
    kinds.flat_map(|(i, k)| {
        [1, 24, 32, 80].map(|head_dim| {
            let v = KvType::ALL[(i + head_dim) % KvType::ALL.len()];
            KvSpec { kv_heads: 3, head_dim, k, v }
        })
    })
}

fn kv(spec: KvSpec, pages: usize) -> StateLayers {
    StateLayers { kv: vec![(spec, pages)], ..StateLayers::default() }
}

/// A state of one layer in whose cells these rows of K and V were stored.
fn stored(spec: KvSpec, pages: usize, cells: &[i32], k: &[f32], v: &[f32]) -> State {
    let mut case = Case::new(cells.len());
    let operands = [case.layer(&kv(spec, pages)), case.floats(k), case.floats(v), case.integers(cells)];
    case.apply(Op::KvWrite { kv_heads: spec.kv_heads, head_dim: spec.head_dim }, &operands);
    case.run_graph();
    case.state
}

fn read(state: &State, cells: &[usize]) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.read_cells(0, &mut cells.iter().copied(), &mut bytes);
    bytes
}

/// The heads of a cell, first K and then V, from the bytes that it is read as.
fn decoded(spec: KvSpec, bytes: &[u8]) -> [Vec<f32>; 2] {
    let KvSpec { kv_heads, head_dim, k, v } = spec;
    let k_bytes = kv_heads * k.head_bytes(head_dim).expect("small");
    let heads = |kind: KvType, bytes: &[u8]| {
        let mut head = vec![0.0; head_dim.next_multiple_of(kind.dtype().block_len())];
        let heads = bytes.chunks(kind.head_bytes(head_dim).expect("small")).flat_map(|bytes| {
            dequantize(kind.dtype(), bytes, &mut head).expect("whole blocks");
            head[..head_dim].to_vec()
        });
        heads.collect()
    };
    [heads(k, &bytes[..k_bytes]), heads(v, &bytes[k_bytes..])]
}

/// What a type makes of a row of heads, each padded with zeros to a multiple of the block size.
fn rounded_heads(kind: KvType, head_dim: usize, x: &[f32]) -> Vec<f32> {
    let heads = x.chunks(head_dim).flat_map(|head| {
        let mut padded = head.to_vec();
        padded.resize(head_dim.next_multiple_of(kind.dtype().block_len()), 0.0);
        rounded(kind.dtype(), &padded)[..head_dim].to_vec()
    });
    heads.collect()
}

#[test]
fn cells_hold_the_written_values_rounded_to_their_types() {
    let mut random = Random(31);
    for spec in specs() {
        let width = spec.kv_heads * spec.head_dim;
        let (k, v) = (random_values(&mut random, 2 * width), random_values(&mut random, 2 * width));
        let state = stored(spec, 2, &[100, 3], &k, &v);
        for (row, cell) in [100, 3].into_iter().enumerate() {
            let bytes = read(&state, &[cell]);
            assert_eq!(bytes.len(), spec.cell_bytes().expect("small"));
            let row = row * width..(row + 1) * width;
            let wanted = [(spec.k, &k[row.clone()]), (spec.v, &v[row])];
            assert_eq!(
                decoded(spec, &bytes),
                wanted.map(|(kind, x)| rounded_heads(kind, spec.head_dim, x)),
                "{spec:?}"
            );
        }
        assert!(read(&state, &[0, 2, 4, 99, 101, 127]).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn only_a_block_with_a_non_finite_value_becomes_nan() {
    for kind in KvType::ALL.into_iter().filter(|kind| kind.is_quantized()) {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            let spec = KvSpec { kv_heads: 1, head_dim: 80, k: kind, v: kind };
            let mut x: Vec<f32> = (0..80).map(|i| i as f32 - 40.0).collect();
            x[40] = bad;
            let state = stored(spec, 1, &[5], &x, &x);
            for found in decoded(spec, &read(&state, &[5])) {
                assert!((0..80).all(|i| found[i].is_nan() == (32..64).contains(&i)), "{kind:?} {bad}");
            }
        }
    }
}

#[test]
fn cells_and_pages_are_copied_bit_for_bit() {
    let mut random = Random(32);
    for spec in specs() {
        let width = spec.kv_heads * spec.head_dim;
        let cells: Vec<i32> = (0..PAGE_CELLS as i32).collect();
        let [k, v] = [0, 1].map(|_| random_values(&mut random, PAGE_CELLS * width));
        let mut state = stored(spec, 3, &cells, &k, &v);
        state.copy_page(&[0], 0, 2);
        let page = |page: usize| (page * PAGE_CELLS..(page + 1) * PAGE_CELLS).collect::<Vec<_>>();
        assert_eq!(read(&state, &page(0)), read(&state, &page(2)));
        assert!(read(&state, &page(1)).iter().all(|&byte| byte == 0));

        // In the order given: the second move copies what the first has stored.
        let moved = read(&state, &[7]);
        state.move_cells(&[0], &[(7, 70), (70, 71), (8, 7)], None);
        assert_eq!(read(&state, &[70]), moved);
        assert_eq!(read(&state, &[71]), moved);
        assert_eq!(read(&state, &[7]), read(&state, &[8]));

        let mut other = Reference.new_state();
        other.append(&kv(spec, 1)).expect("small");
        other.write_cells(0, &mut [40, 2].into_iter(), &read(&state, &[71, 9]));
        assert_eq!(read(&other, &[2, 40]), read(&state, &[9, 71]));
    }
}

#[test]
fn only_the_given_layers_are_changed() {
    let spec = KvSpec { kv_heads: 1, head_dim: 4, k: KvType::F32, v: KvType::F32 };
    let mut state = stored(spec, 2, &[0], &[1.0; 4], &[2.0; 4]);
    state.append(&kv(spec, 2)).expect("small");
    let bytes = read(&state, &[0]);
    state.write_cells(1, &mut [0].into_iter(), &bytes);
    state.copy_page(&[1], 0, 1);
    state.move_cells(&[0], &[(0, 1)], None);
    let of = |layer: usize, cell: usize| {
        let mut bytes = Vec::new();
        state.read_cells(layer, &mut [cell].into_iter(), &mut bytes);
        bytes.iter().any(|&byte| byte != 0)
    };
    assert_eq!([0, 1, 64].map(|cell| of(0, cell)), [true, true, false]);
    assert_eq!([0, 1, 64].map(|cell| of(1, cell)), [true, false, true]);
}

/// A row of heads of 80 elements, the first 48 of each rotated by a number of positions; pairs are half of that apart.
fn rotated(x: &[f32], positions: f64, freq_factors: &[f32]) -> Vec<f64> {
    let mut out = exact(x);
    for head in out.chunks_mut(80) {
        for i in 0..24 {
            let angle = positions * 1e4f64.powf(-2.0 * i as f64 / 48.0) / f64::from(freq_factors[i]);
            let (a, b) = (head[i], head[i + 24]);
            head[i] = a * angle.cos() - b * angle.sin();
            head[i + 24] = a * angle.sin() + b * angle.cos();
        }
    }
    out
}

#[test]
fn k_shift_moves_keys_to_their_positions() {
    let scaling = RopeScaling::Long { attention_factor: F32Bits(1.3) };
    let freq_factors: Vec<f32> = (0..24).map(|i| 1.0 + i as f32 / 8.0).collect();
    let mut random = Random(33);
    for (spec, hadamard) in specs().flat_map(|spec| [(spec, false), (spec, true)]) {
        let spec = KvSpec { head_dim: 80, ..spec };
        let width = spec.kv_heads * spec.head_dim;
        let (k, v) = (random_values(&mut random, width), random_values(&mut random, width));
        // The stored rows, and the rows read back, with keys before the Hadamard transform.
        let transform = |x: &[f32]| -> Vec<f32> {
            let head = |head: &[f32]| verbatim_reference::ops::hadamard::transform(head);
            if hadamard { x.chunks(80).flat_map(head).collect() } else { x.to_vec() }
        };
        let mut state = stored(spec, 2, &[3], &transform(&k), &v);
        let shift = KShift {
            table: RopeTable { rotary_dim: 48, base: F32Bits(1e4), scaling },
            layout: RopeLayout::NeoX,
            freq_factors: Some(freq_factors.clone()),
            positions: -12,
            hadamard,
        };
        state.move_cells(&[0], &[(3, 77)], Some(&shift));
        let [found, value] = decoded(spec, &read(&state, &[77]));
        let found = transform(&found);
        let wanted = rotated(&k, -12.0, &freq_factors);
        if spec.k == KvType::F32 {
            assert_near(&found, &wanted, 2e-6);
        }
        let squares = found.iter().zip(&wanted).map(|(&a, b)| (f64::from(a) - b).powi(2));
        let error = (squares.sum::<f64>() / width as f64).sqrt();
        assert!(error < 0.12, "{spec:?} {hadamard}: {error}");
        // V does not depend on positions.
        assert_eq!(value, decoded(spec, &read(&state, &[3]))[1]);
    }
}

fn recurrent(layers: usize, slots: usize) -> StateLayers {
    let heads = DeltaHeads { key_heads: 1, value_heads: 2, key_dim: 3, value_dim: 4 };
    let spec = |layer| RecurrentSpec { kernel: 4, channels: 5 + layer, heads };
    StateLayers { kv: Vec::new(), recurrent: (0..layers).map(spec).collect(), slots }
}

#[test]
fn slots_are_stored_layer_by_layer() {
    let mut state = Reference.new_state();
    state.append(&recurrent(2, 3)).expect("small");
    state.append(&recurrent(1, 3)).expect("small");
    let layers = recurrent(2, 3);
    let spec_bytes = |layer: usize| layers.recurrent[layer].slot_bytes().expect("small");
    assert_eq!(state.slot_bytes(0..2), spec_bytes(0) + spec_bytes(1));
    assert_eq!(state.slot_bytes(0..3), 2 * spec_bytes(0) + spec_bytes(1));
    assert_eq!(state.slot_bytes(1..1), 0);

    let bytes: Vec<u8> = (0..state.slot_bytes(0..3)).map(|i| (i % 120) as u8).collect();
    state.write_slot(0..3, 1, &bytes);
    let read = |layers, slot| {
        let mut bytes = Vec::new();
        state.read_slot(layers, slot, &mut bytes);
        bytes
    };
    assert_eq!(read(0..3, 1), bytes);
    assert_eq!(read(1..2, 1), bytes[spec_bytes(0)..][..spec_bytes(1)]);
    assert!([0, 2].into_iter().all(|slot| read(0..3, slot).iter().all(|&byte| byte == 0)));
}

#[test]
fn too_large_states_are_rejected_and_change_nothing() {
    let mut state = Reference.new_state();
    for kind in KvType::ALL {
        let spec = KvSpec { kv_heads: 4, head_dim: usize::MAX / 8, k: kind, v: KvType::Q8_0 };
        assert_eq!(state.append(&kv(spec, 1)), Err(StateMemoryError::Kv { pages: 1, layers: 1 }));
        let (spec, pages) = (KvSpec { head_dim: 64, ..spec }, usize::MAX / 64);
        assert_eq!(state.append(&kv(spec, pages)), Err(StateMemoryError::Kv { pages, layers: 1 }));
    }
    let slots = usize::MAX / 1024;
    let mut layers = recurrent(1, slots);
    let spec = KvSpec { kv_heads: 1, head_dim: 4, k: KvType::F32, v: KvType::F32 };
    layers.kv.push((spec, 1));
    assert_eq!(state.append(&layers), Err(StateMemoryError::Recurrent { slots, layers: 1 }));
    // The first layer is still to come.
    state.append(&kv(spec, 1)).expect("small");
    assert_eq!(read(&state, &[63]).len(), 32);
}

#[test]
fn the_numerics_version_is_the_reference_backends_own() {
    assert_eq!(Reference.new_state().numerics_version(), 0x5245_0001);
}
