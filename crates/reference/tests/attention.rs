//! Attention against its definition in f64, over scattered pages, and paths against pages.

mod common;

use common::{Case, assert_near, random_values};
use verbatim_backend::{KvSpec, KvType, PAGE_CELLS, StateLayers};
use verbatim_graph::random::Random;
use verbatim_graph::{Attention, F32Bits, Op, Shape};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 8;
/// Positions of the sequence, of which the last ones are the rows of the step.
const POSITIONS: usize = 90;
const ROWS: usize = 5;
/// By row; the last is after its row, which then attends to itself.
const VALID_FROM: [i32; ROWS] = [0, 1, 64, 88, 200];
/// The pages of sequence 1; sequence 0 has none.
const PAGES: [i32; 4] = [-1, -1, 2, 0];

fn attention() -> Attention {
    Attention {
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        scale: F32Bits(0.5),
        window: None,
        softcap: None,
        sinks: false,
        paths: false,
        valid_from: false,
    }
}

/// Random values of all positions.
struct Values {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    sinks: Vec<f32>,
}

fn sequence() -> Values {
    let mut random = Random(11);
    let mut of = |count| random_values(&mut random, count);
    let width = KV_HEADS * HEAD_DIM;
    Values {
        q: of(ROWS * HEADS * HEAD_DIM),
        k: of(POSITIONS * width),
        v: of(POSITIONS * width),
        sinks: of(HEADS),
    }
}

fn cell(position: usize) -> i32 {
    PAGES[2 + position / PAGE_CELLS] * PAGE_CELLS as i32 + (position % PAGE_CELLS) as i32
}

/// The step of the last positions. With paths, those from `base` on are in cells of page 1.
fn run(attention: Attention, base: Option<usize>) -> Vec<Vec<f32>> {
    let Values { q, k, v, sinks } = sequence();
    let width = KV_HEADS * HEAD_DIM;
    let spec = KvSpec { kv_heads: KV_HEADS, head_dim: HEAD_DIM, k: KvType::F32, v: KvType::F32 };
    let mut case = Case::new(ROWS);
    let mut state = case.layer(&StateLayers { kv: vec![(spec, 3)], ..StateLayers::default() });
    let path_cell = |position: usize| PAGE_CELLS as i32 + ((position * 17) % PAGE_CELLS) as i32;
    // Every step writes as many positions as it has rows; all but the last ones only write.
    for start in (0..POSITIONS).step_by(ROWS) {
        let cell = |position: usize| match base {
            Some(base) if position >= base => path_cell(position),
            Some(_) | None => cell(position),
        };
        let range = start * width..(start + ROWS) * width;
        let cells: Vec<i32> = (start..start + ROWS).map(cell).collect();
        let operands = [state, case.floats(&k[range.clone()]), case.floats(&v[range]), case.integers(&cells)];
        state = case.apply(Op::KvWrite { kv_heads: KV_HEADS, head_dim: HEAD_DIM }, &operands);
    }
    let positions: Vec<i32> = (POSITIONS - ROWS..POSITIONS).map(|p| p as i32).collect();
    let mut operands = vec![case.floats(&q), state, case.integers(&positions), case.integers(&[1; ROWS])];
    operands.push(case.integers_of(Shape::fixed(2, 2), &PAGES));
    if let Some(base) = base {
        let path = |_| (base..POSITIONS).map(path_cell);
        operands.push(case.integers(&[base as i32; ROWS]));
        operands.push(case.integers(&(0..ROWS).flat_map(path).collect::<Vec<_>>()));
    }
    operands.extend(attention.valid_from.then(|| case.integers(&VALID_FROM)));
    operands.extend(attention.sinks.then(|| case.vector(&sinks)));
    case.run(Op::Attention(attention), &operands)
}

/// One head of a row.
fn exact(attention: Attention, row: usize, head: usize) -> Vec<f64> {
    let Values { q, k, v, sinks } = sequence();
    let position = POSITIONS - ROWS + row;
    let first = attention.window.map_or(0, |window| position + 1 - window);
    let valid_from = if attention.valid_from { VALID_FROM[row] as usize } else { 0 };
    let first = first.max(valid_from.min(position));
    let kv_head = head / (HEADS / KV_HEADS);
    let element = |x: &[f32], row: usize, heads: usize, head: usize, i: usize| {
        f64::from(x[(row * heads + head) * HEAD_DIM + i])
    };
    let score = |p: usize| {
        let product = (0..HEAD_DIM)
            .map(|i| element(&q, row, HEADS, head, i) * element(&k, p, KV_HEADS, kv_head, i))
            .sum::<f64>();
        let scaled = product * f64::from(attention.scale.0);
        attention.softcap.map_or(scaled, |cap| f64::from(cap.0) * (scaled / f64::from(cap.0)).tanh())
    };
    let sink = if attention.sinks { f64::from(sinks[head]).exp() } else { 0.0 };
    let total = sink + (first..=position).map(|p| score(p).exp()).sum::<f64>();
    let value = |p: usize, i: usize| score(p).exp() / total * element(&v, p, KV_HEADS, kv_head, i);
    (0..HEAD_DIM).map(|i| (first..=position).map(|p| value(p, i)).sum()).collect()
}

#[test]
fn agrees_with_the_definition() {
    for window in [None, Some(1), Some(20), Some(64)] {
        for softcap in [None, Some(F32Bits(0.3))] {
            for (sinks, valid_from) in [(false, false), (true, false), (false, true), (true, true)] {
                let attention = Attention { window, softcap, sinks, valid_from, ..attention() };
                let out = run(attention, None);
                for (row, out) in out.iter().enumerate() {
                    let wanted: Vec<f64> = (0..HEADS).flat_map(|head| exact(attention, row, head)).collect();
                    assert_near(out, &wanted, 1e-6);
                }
            }
        }
    }
}

#[test]
fn a_path_gives_the_bits_that_pages_give() {
    for window in [None, Some(1), Some(20)] {
        let attention = Attention { window, sinks: true, valid_from: true, ..attention() };
        let wanted = run(attention, None);
        // The rows at positions below the base have no path.
        for base in [60, 88, POSITIONS - 1] {
            assert_eq!(run(Attention { paths: true, ..attention }, Some(base)), wanted, "{base}");
        }
    }
}
