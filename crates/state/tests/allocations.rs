//! Steady-state steps allocate nothing. Alone in its file, because it counts the allocations of the whole process.

#[path = "../src/tests/store.rs"]
#[allow(dead_code)] // What other tests use.
mod store;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use store::PlainStore;
use verbatim_backend::{KvSpec, KvType, RecurrentSpec};
use verbatim_graph::DeltaHeads;
use verbatim_state::{Batch, LayerSpec, ModelId, ModelSpec, RopeKind, SequenceId, State, StateSpec};

/// Counts allocations of all threads.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call on to the system's allocator.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn model() -> ModelSpec {
    let kv = KvSpec { kv_heads: 1, head_dim: 4, k: KvType::F32, v: KvType::F32 };
    let layer = |window| LayerSpec { kv, window, rope: RopeKind::None, hadamard: false };
    let heads = DeltaHeads { key_heads: 1, value_heads: 1, key_dim: 1, value_dim: 4 };
    let recurrent = vec![RecurrentSpec { kernel: 2, channels: 4, heads }];
    ModelSpec { layers: vec![layer(None), layer(Some(32))], recurrent }
}

/// Computes these rows for the target and a draft model.
fn step(state: &mut State<PlainStore>, rows: &[(SequenceId, usize)], batches: &mut [Batch; 2]) {
    let models = state.models();
    for (model, batch) in models.zip(batches) {
        state.batch(model, rows, batch);
        assert!(batch.rejected.is_empty());
        state.begin_compute(model, rows.iter().copied()).unwrap();
        state
            .computed(model, rows.iter().map(|&(id, kv_index)| (id, kv_index, Some(kv_index as u32))))
            .unwrap();
    }
}

#[test]
fn steady_state_steps_allocate_nothing() {
    let spec = StateSpec { sequences: 8, context: 1000, in_flight: 64, pages: 200, cache_bytes: 0 };
    let mut state = State::new(PlainStore::default(), spec, model()).unwrap();
    state.append_model(model()).unwrap();
    let ids: Vec<SequenceId> = (0..8).map(|_| state.begin().unwrap()).collect();
    let mut batches = <[Batch; 2]>::default();
    let mut rows = Vec::with_capacity(64);
    let tree = [None, Some(0), Some(0), Some(1), None];
    for round in 0..120 {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        rows.clear();
        for &id in &ids {
            // Every second time a tree, of which the first branch is committed.
            let kv_indices = match round % 2 {
                0 => state.append(id, 5),
                _ => state.append_tree(id, &tree),
            };
            rows.extend(kv_indices.unwrap().map(|kv_index| (id, kv_index)));
        }
        step(&mut state, &rows, &mut batches);
        ids.iter().for_each(|&id| state.commit(id, 2).unwrap());
        let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
        // A page that is full is put into the prefix tree.
        let fills_page = 2 * (round + 1) % 64 == 0;
        assert!(allocated == 0 || round < 2 || fills_page, "{allocated} in round {round}");
    }
    assert_eq!(state.computed_range(ids[7], ModelId::TARGET).unwrap(), 0..240);
    state.integrity().unwrap();
}

/// What a step's look-ups take: `cargo test --release -p verbatim-state --test allocations -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn how_long_a_batch_takes() {
    let spec = StateSpec { sequences: 64, context: 1000, in_flight: 512, pages: 1000, cache_bytes: 0 };
    let mut state = State::new(PlainStore::default(), spec, model()).unwrap();
    let ids: Vec<SequenceId> = (0..64).map(|_| state.begin().unwrap()).collect();
    let mut batch = Batch::default();
    for (sequences, rows_each) in [(64, 1), (8, 8), (1, 64), (1, 512)] {
        let mut rows = Vec::new();
        for &id in &ids[..sequences] {
            rows.extend(state.append(id, rows_each).unwrap().map(|kv_index| (id, kv_index)));
        }
        let start = std::time::Instant::now();
        for _ in 0..10_000 {
            state.batch(ModelId::TARGET, &rows, &mut batch);
        }
        println!("{sequences} sequences of {rows_each} rows: {:?}", start.elapsed() / 10_000);
        assert_eq!(batch.accepted_rows.len(), rows.len());
        ids.iter().for_each(|&id| state.rollback(id).unwrap());
    }
}
