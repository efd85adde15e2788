//! Speed of the matmul: GB/s of weights at one token, and GOPS (two per weight and token) at many.
//!
//! `cargo run --release -p verbatim-matrix --example matmul_bench [threads]`

use std::hint::black_box;
use std::time::{Duration, Instant};

use verbatim_matrix::{Epilogue, Input, PackedMatrix, activation_row_bytes, matmul, quantize_row};
use verbatim_quant::DType;
use verbatim_simd::Isa;
use verbatim_team::Team;

const FORMATS: [DType; 6] = [DType::Q4_1, DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::IQ4_NL, DType::F16];
const SHAPES: [[usize; 2]; 2] = [[1536, 576], [2048, 2048]];
const BATCH_SIZES: [usize; 6] = [1, 2, 4, 8, 32, 256];

/// The number of copies of the weights that are used in turn, so that they are read from memory as with a model.
const WEIGHT_POOL_BYTES: usize = 256 << 20;

fn main() {
    let most: usize =
        std::env::args().nth(1).map_or(2, |threads| threads.parse().expect("a number of threads"));
    for threads in 1..=most {
        let mut team = Team::new(threads).expect("a team");
        let run = best_time(|_| team.run(|_| {}));
        let run_of_100 = best_time(|_| team.run(|context| (0..100).for_each(|_| context.barrier())));
        println!(
            "{threads} thread(s): reading memory {:.1} GB/s, an empty run {:.2} µs, a barrier {:.2} µs",
            read_bandwidth(&mut team),
            run.as_secs_f64() * 1e6,
            (run_of_100.saturating_sub(run)).as_secs_f64() * 1e4,
        );
    }
    for isa in Isa::supported().skip(1) {
        for threads in 1..=most {
            let mut team = Team::new(threads).expect("a team");
            println!("\n{}, {threads} thread(s)", isa.name());
            print!("{:8}{:>11}{:>14}{:>12}", "format", "shape", "GB/s at 1", "cached");
            BATCH_SIZES.iter().for_each(|width| print!("{:>10}", format!("GOPS@{width}")));
            println!("{:>12}", "pack MB/s");
            for [rows, cols] in SHAPES {
                FORMATS.iter().filter(|dtype| cols.is_multiple_of(dtype.block_len())).for_each(|&dtype| {
                    report(&mut team, isa, dtype, rows, cols);
                });
            }
        }
    }
    println!();
    for isa in Isa::supported() {
        let row = values(2048);
        let mut out = vec![0; activation_row_bytes(row.len())];
        let time = best_time(|_| quantize_row(isa, black_box(&row), black_box(&mut out)));
        println!("quantize_row, 2048 values, {}: {:.2} µs", isa.name(), time.as_secs_f64() * 1e6);
    }
}

fn report(team: &mut Team, isa: Isa, dtype: DType, rows: usize, cols: usize) {
    let bytes = weights(dtype, rows, cols);
    let started = Instant::now();
    let first = PackedMatrix::pack_with(team, dtype, rows, cols, &bytes).expect("weights");
    let pack_rate = bytes.len() as f64 / started.elapsed().as_secs_f64() / 1e6;
    let copies = (WEIGHT_POOL_BYTES / first.packed_bytes()).max(1);
    let mut pool = vec![first];
    pool.extend(
        (1..copies).map(|_| PackedMatrix::pack_with(team, dtype, rows, cols, &bytes).expect("weights")),
    );

    let shape = format!("{rows}×{cols}");
    print!("{:8}{shape:>11}", dtype.name());
    let packed_gb = pool[0].packed_bytes() as f64 / 1e9;
    print!("{:>14.1}", packed_gb / time(team, isa, &pool, 1).as_secs_f64());
    print!("{:>12.1}", packed_gb / time(team, isa, &pool[..1], 1).as_secs_f64());
    for tokens in BATCH_SIZES {
        let operations = (2 * rows * cols * tokens) as f64;
        print!("{:>10.0}", operations / time(team, isa, &pool, tokens).as_secs_f64() / 1e9);
    }
    println!("{pack_rate:>12.0}");
}

/// Of one matmul.
fn time(team: &mut Team, isa: Isa, pool: &[PackedMatrix], tokens: usize) -> Duration {
    let (rows, cols) = (pool[0].rows(), pool[0].cols());
    let values = values(tokens * cols);
    let stride_bytes = activation_row_bytes(cols);
    let mut quantized = vec![0; tokens * stride_bytes];
    for (row, out) in values.chunks_exact(cols).zip(quantized.chunks_exact_mut(stride_bytes)) {
        quantize_row(isa, row, out);
    }
    let input = if pool[0].takes_quantized() {
        Input::Quantized { bytes: &quantized, stride_bytes, tokens, terms: 1 }
    } else {
        Input::Floats { values: &values, stride: cols, tokens }
    };
    let mut output = vec![0.0; tokens * rows];
    best_time(|turn| {
        let weights = &pool[turn % pool.len()];
        matmul(team, isa, weights, input, black_box(&mut output), rows, Epilogue::default());
    })
}

/// The minimum of the means over slices of some 2 ms, so that other load on the machine matters little.
fn best_time(mut work: impl FnMut(usize)) -> Duration {
    const SLICES: usize = 50;
    work(0);
    let mut turn = 0;
    let slices = (0..SLICES).map(|_| {
        let (started, first) = (Instant::now(), turn);
        while started.elapsed() < Duration::from_millis(2) {
            turn += 1;
            work(turn);
        }
        started.elapsed() / u32::try_from(turn - first).expect("few turns")
    });
    slices.min().expect("a slice")
}

fn read_bandwidth(team: &mut Team) -> f64 {
    let data = vec![1u64; WEIGHT_POOL_BYTES / 8];
    let share = data.len().div_ceil(team.threads());
    let time = best_time(|_| {
        team.run(|context| {
            let part = data.chunks(share).nth(context.index()).unwrap_or_default();
            black_box(part.iter().fold(0u64, |sum, value| sum.wrapping_add(*value)));
        });
    });
    WEIGHT_POOL_BYTES as f64 / time.as_secs_f64() / 1e9
}

/// Arbitrary weights, with scales that are ordinary floats.
fn weights(dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
    let bytes = dtype.row_bytes(cols).expect("whole blocks") * rows;
    (0..bytes).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8 & 0x2f).collect()
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i.wrapping_mul(0x9e37_79b9) >> 7) % 2001) as f32 / 1000.0 - 1.0).collect()
}
