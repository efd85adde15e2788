use super::shape::SPLIT;
use super::*;
use crate::kv::{KvLayer, KvMemory};
use verbatim_backend::{KvSpec, KvType, PAGE_CELLS};
use verbatim_graph::random::Random;
use verbatim_simd::Isa;

fn memory(spec: KvSpec, positions: usize, random: &mut Random) -> (KvMemory, Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let memory = KvMemory::new(&[(spec, positions.div_ceil(PAGE_CELLS) + 1)]).expect("small");
    let (mut ks, mut vs) = (vec![], vec![]);
    let row = |random: &mut Random| -> Vec<f32> {
        (0..spec.kv_heads * spec.head_dim).map(|_| random.unit()).collect()
    };
    for position in 0..positions {
        ks.push(row(random));
        vs.push(row(random));
        // Pages in reverse order, to show that placement does not matter.
        let page = memory.layers()[0].pages() - 1 - position / PAGE_CELLS;
        memory.layers()[0].write_alone(
            page * PAGE_CELLS + position % PAGE_CELLS,
            &ks[position],
            &vs[position],
        );
    }
    (memory, ks, vs)
}

/// What one row attends to.
#[derive(Clone, Copy)]
struct Span<'a> {
    layer: &'a KvLayer,
    kv_head: usize,
    pages: &'a [i32],
    path: Option<Path<'a>>,
    first: usize,
    position: usize,
}

impl<'a> Span<'a> {
    fn keys(&self) -> KvView<'a> {
        let Span { layer, kv_head, pages, path, .. } = *self;
        KvView { layer, kv_head, pages, path }
    }
}

/// Attends with one row.
fn attend(isa: Isa, span: &Span<'_>, scores: &Scores<'_>, scratch: &mut Scratch, q: &[f32], out: &mut [f32]) {
    let row = Row { q, first: span.first, position: span.position, out };
    super::attend(isa, &span.keys(), scores, scratch, &mut [row]);
}

fn scratch() -> Scratch {
    Scratch::new().expect("small")
}

const PLAIN: Scores<'static> = Scores { scale: 0.3, softcap: None, sinks: None };

/// Attention of one query head over the given keys, in f64.
fn exact(
    q: &[f32],
    ks: &[Vec<f32>],
    vs: &[Vec<f32>],
    kv_head: usize,
    head: usize,
    scores: &Scores<'_>,
) -> Vec<f64> {
    let dim = q.len();
    let at = |row: &Vec<f32>, i: usize| f64::from(row[kv_head * dim + i]);
    let score = |k: &Vec<f32>| {
        let score = (0..dim).map(|i| f64::from(q[i]) * at(k, i)).sum::<f64>() * f64::from(scores.scale);
        scores.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
    };
    let weights: Vec<f64> = ks.iter().map(|k| score(k).exp()).collect();
    let sink = scores.sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
    let total = weights.iter().sum::<f64>() + sink;
    (0..dim).map(|i| weights.iter().zip(vs).map(|(w, v)| w * at(v, i)).sum::<f64>() / total).collect()
}

#[test]
fn agrees_with_f64_and_on_every_instruction_set_and_tile() {
    let mut random = Random(11);
    let sinks = [-1.0, 2.0, 0.5, -40.0, 6.0, 0.0, 1.0];
    let capped = Scores { softcap: Some(2.0), ..PLAIN };
    let sunk = Scores { sinks: Some(&sinks), ..PLAIN };
    let both = Scores { softcap: Some(1.0), sinks: Some(&sinks), ..PLAIN };
    for (head_dim, k, v) in [
        (16, KvType::F32, KvType::F32),
        (64, KvType::F32, KvType::F16),
        (24, KvType::F16, KvType::F32),
        (128, KvType::F16, KvType::F16),
    ] {
        let spec = KvSpec { kv_heads: 2, head_dim, k, v };
        let (memory, ks, vs) = memory(spec, 150, &mut random);
        let q: Vec<f32> = (0..7 * head_dim).map(|_| random.unit() * 3.0).collect();
        for (first, position) in [(0, 0), (0, 1), (0, 63), (0, 64), (0, 149), (149, 149), (20, 70), (64, 127)]
        {
            let layer = &memory.layers()[0];
            let span = Span { layer, kv_head: 1, pages: &[3, 2, 1], path: None, first, position };
            for scores in [&PLAIN, &capped, &sunk, &both] {
                let mut reference = vec![0.0; q.len()];
                attend(Isa::scalar(), &span, scores, &mut scratch(), &q, &mut reference);
                for (head, out) in reference.chunks(head_dim).enumerate() {
                    let q = &q[head * head_dim..][..head_dim];
                    let wanted = exact(q, &ks[first..=position], &vs[first..=position], 1, head, scores);
                    let half = k == KvType::F16 || v == KvType::F16;
                    let tolerance = if half { 3e-3 } else { 3e-6 };
                    assert!(out.iter().zip(wanted).all(|(a, b)| (f64::from(*a) - b).abs() < tolerance));
                }
                for isa in Isa::supported() {
                    for heads in 1..=7 {
                        let mut out = vec![0.0; heads * head_dim];
                        attend(isa, &span, scores, &mut scratch(), &q[..heads * head_dim], &mut out);
                        let name = isa.name();
                        assert_eq!(out, reference[..heads * head_dim], "{name}: {heads} of {head_dim}");
                    }
                }
            }
        }
    }
}

#[test]
fn splits_agree_with_f64_and_do_not_depend_on_how_they_are_computed() {
    let (head_dim, heads, positions) = (24, 5, 2 * SPLIT + 200);
    let spec = KvSpec { kv_heads: 1, head_dim, k: KvType::F32, v: KvType::F32 };
    let (memory, ks, vs) = memory(spec, positions, &mut Random(3));
    let pages: Vec<i32> = (1..memory.layers()[0].pages() as i32).rev().collect();
    let mut random = Random(4);
    let q: Vec<f32> = (0..heads * head_dim).map(|_| random.unit() * 3.0).collect();
    let sinks = [-1.0, 2.0, 0.5, -40.0, 6.0];
    for (first, position) in [(0, SPLIT - 1), (0, SPLIT), (0, positions - 1), (SPLIT - 1, SPLIT), (300, 600)]
    {
        let span =
            Span { layer: &memory.layers()[0], kv_head: 0, pages: &pages, path: None, first, position };
        for scores in [&PLAIN, &Scores { softcap: Some(2.0), sinks: Some(&sinks), ..PLAIN }] {
            let mut whole = vec![0.0; q.len()];
            attend(Isa::best(), &span, scores, &mut scratch(), &q, &mut whole);
            for (head, out) in whole.chunks(head_dim).enumerate() {
                let q = &q[head * head_dim..][..head_dim];
                let wanted = exact(q, &ks[first..=position], &vs[first..=position], 0, head, scores);
                assert!(out.iter().zip(wanted).all(|(a, b)| (f64::from(*a) - b).abs() < 3e-6));
            }
            for isa in Isa::supported() {
                let partial_len = head_dim + PARTIAL_EXTRA;
                let partials: Vec<Vec<f32>> = splits((first, position))
                    .map(|split| {
                        let mut partial = vec![f32::NAN; heads * partial_len];
                        let row = Row { q: &q, first, position, out: &mut partial };
                        let scratch = &mut scratch().pass;
                        attend_split(isa, &span.keys(), scores, scratch, split, &mut [row]);
                        partial
                    })
                    .collect();
                for (head, wanted) in whole.chunks(head_dim).enumerate() {
                    let mut out = vec![f32::NAN; head_dim];
                    let partials =
                        partials.iter().map(|partial| &partial[head * partial_len..][..partial_len]);
                    merge(isa, scores.sinks.map(|sinks| sinks[head]), partials, &mut out);
                    assert_eq!(out, wanted, "{} {first}..={position}", isa.name());
                }
            }
        }
    }
}

#[test]
fn a_window_overlaps_at_most_the_splits_that_its_length_allows() {
    for window in [1, 2, SPLIT, SPLIT + 1, SPLIT + 2, 700] {
        let most = (0..5 * SPLIT).map(|end| splits((end.saturating_sub(window - 1), end)).len()).max();
        assert!(most.expect("some") <= max_splits(5 * SPLIT, Some(window)), "{window}");
        assert_eq!(max_splits(5 * SPLIT, None), 5);
    }
}

#[test]
fn masked_cells_have_no_effect_even_if_they_are_nan() {
    let spec = KvSpec { kv_heads: 1, head_dim: 16, k: KvType::F16, v: KvType::F32 };
    let (memory, ..) = memory(spec, 100, &mut Random(5));
    let layer = &memory.layers()[0];
    let q = [1.0; 32];
    for scores in [&PLAIN, &Scores { softcap: Some(2.0), ..PLAIN }] {
        let run = || {
            let span = Span { layer, kv_head: 0, pages: &[2, 1], path: None, first: 70, position: 90 };
            let mut out = [0.0; 32];
            attend(Isa::best(), &span, scores, &mut scratch(), &q, &mut out);
            out
        };
        let clean = run();
        for masked in (0..70).chain(91..128) {
            let page = 2 - masked / PAGE_CELLS;
            let cell = page * PAGE_CELLS + masked % PAGE_CELLS;
            layer.write_alone(cell, &[f32::NAN; 16], &[f32::INFINITY; 16]);
        }
        assert_eq!(run(), clean);
    }
}

#[test]
fn a_window_does_not_move_the_blocks() {
    let spec = KvSpec { kv_heads: 1, head_dim: 16, k: KvType::F32, v: KvType::F32 };
    let (memory, ..) = memory(spec, 150, &mut Random(9));
    let q: Vec<f32> = (0..16).map(|i| i as f32 - 8.0).collect();
    // With keys of weight exactly 0 the bits are the same as without them, if blocks begin at the same positions.
    let far = Span {
        layer: &memory.layers()[0],
        kv_head: 0,
        pages: &[3, 2, 1],
        path: None,
        first: 64,
        position: 149,
    };
    let mut windowed = [0.0; 16];
    attend(Isa::best(), &far, &PLAIN, &mut scratch(), &q, &mut windowed);
    for position in 0..64 {
        let hidden: Vec<f32> = q.iter().map(|q| -1e4 * q).collect();
        memory.layers()[0].write_alone(3 * PAGE_CELLS + position, &hidden, &[1.0; 16]);
    }
    let mut all = [0.0; 16];
    attend(Isa::best(), &Span { first: 0, ..far }, &PLAIN, &mut scratch(), &q, &mut all);
    assert_eq!(all, windowed);
}

/// Positions for which blocks begin, end and are split by a window.
const SPANS: [(usize, usize); 7] = [(0, 0), (0, 63), (0, 64), (0, 149), (149, 149), (20, 70), (64, 127)];

#[test]
fn every_kv_type_attends_as_f32_cells_with_the_same_values() {
    let mut random = Random(21);
    for head_dim in [1, 16, 24, 64, 80, 96] {
        for (i, k) in KvType::ALL.into_iter().enumerate() {
            let v = KvType::ALL[(i + head_dim) % KvType::ALL.len()];
            let spec = KvSpec { kv_heads: 2, head_dim, k, v };
            let (stored, ..) = memory(spec, 150, &mut random);
            let exact = KvSpec { k: KvType::F32, v: KvType::F32, ..spec };
            let plain = KvMemory::new(&[(exact, stored.layers()[0].pages())]).expect("small");
            for cell in 0..stored.layers()[0].pages() * PAGE_CELLS {
                let layer = &stored.layers()[0];
                plain.layers()[0].write_alone(cell, &layer.k().decode(cell), &layer.v().decode(cell));
            }
            let q: Vec<f32> = (0..6 * head_dim).map(|_| random.unit() * 3.0).collect();
            for ((first, position), isa) in
                SPANS.into_iter().flat_map(|span| Isa::supported().map(move |isa| (span, isa)))
            {
                let run = |memory: &KvMemory| {
                    let layer = &memory.layers()[0];
                    let span = Span { layer, kv_head: 1, pages: &[3, 2, 1], path: None, first, position };
                    let mut out = vec![0.0; q.len()];
                    attend(isa, &span, &PLAIN, &mut scratch(), &q, &mut out);
                    out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(run(&stored), run(&plain), "{} {spec:?} {first}..={position}", isa.name());
            }
        }
    }
}

#[test]
fn a_tree_path_gives_the_same_bits_as_the_pages() {
    let mut random = Random(22);
    for (i, k) in KvType::ALL.into_iter().enumerate() {
        let v = KvType::ALL[(i + 4) % KvType::ALL.len()];
        let spec = KvSpec { kv_heads: 2, head_dim: [16, 24, 80][i % 3], k, v };
        let (natural, ks, vs) = memory(spec, 150, &mut random);
        for tree_start in [0, 1, 50, 63, 64, 65, 120, 128, 149, 150] {
            // The same keys below the tree start; those above are scattered over two other pages, and their cells in the sequence's
            // pages are NaN.
            let tree = KvMemory::new(&[(spec, 6)]).expect("small");
            let layer = &tree.layers()[0];
            let mut cells = Vec::new();
            for position in 0..150 {
                let natural = (3 - position / PAGE_CELLS) * PAGE_CELLS + position % PAGE_CELLS;
                if position < tree_start {
                    layer.write_alone(natural, &ks[position], &vs[position]);
                } else {
                    let nan = vec![f32::NAN; ks[position].len()];
                    layer.write_alone(natural, &nan, &nan);
                    let cell =
                        [0, 4, 5][cells.len() % 3] * PAGE_CELLS + (cells.len() / 3 * 23 + 11) % PAGE_CELLS;
                    layer.write_alone(cell, &ks[position], &vs[position]);
                    cells.push(cell as i32);
                }
            }
            let q: Vec<f32> = (0..5 * spec.head_dim).map(|_| random.unit() * 3.0).collect();
            for ((first, position), isa) in
                SPANS.into_iter().flat_map(|span| Isa::supported().map(move |isa| (span, isa)))
            {
                // Blocks that are entirely in the path need no page.
                let pages: Vec<i32> =
                    (0..3).map(|block| if block * 64 < tree_start as i32 { 3 - block } else { -1 }).collect();
                let path = (tree_start <= position).then_some(Path { tree_start, cells: &cells });
                let run = |layer: &KvLayer, pages: &[i32], path| {
                    let span = Span { layer, kv_head: 1, pages, path, first, position };
                    let mut out = vec![0.0; q.len()];
                    attend(isa, &span, &PLAIN, &mut scratch(), &q, &mut out);
                    out
                };
                let wanted = run(&natural.layers()[0], &[3, 2, 1], None);
                assert_eq!(run(layer, &pages, path), wanted, "{} {spec:?} {tree_start} {first}", isa.name());
            }
        }
    }
}
