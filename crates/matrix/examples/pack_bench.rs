//! Speed of packing: GB of the file per second, by format.
//!
//! `cargo run --release -p verbatim-matrix --example pack_bench [threads]`

use std::time::Instant;

use verbatim_matrix::PackedMatrix;
use verbatim_quant::{ALL, DType};
use verbatim_team::Team;

const COLS: usize = 2048;

/// Of each matrix: more than caches hold.
const BYTES: usize = 64 << 20;

fn main() {
    let threads = std::env::args().nth(1).map_or(1, |threads| threads.parse().expect("a number of threads"));
    let mut team = Team::new(threads).expect("a team");
    for dtype in ALL {
        let row_bytes = dtype.row_bytes(COLS).expect("whole blocks");
        let rows = BYTES / row_bytes;
        let bytes: Vec<u8> =
            (0..rows * row_bytes).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        if let Some(rate) = rate(&mut team, dtype, rows, &bytes) {
            println!("{:8}{rate:>8.2} GB/s", dtype.name());
        }
    }
}

/// The best of three, in GB of the file per second; `None` if it is not a weight format.
fn rate(team: &mut Team, dtype: DType, rows: usize, bytes: &[u8]) -> Option<f64> {
    let mut best = f64::MAX;
    for _ in 0..3 {
        let started = Instant::now();
        let packed = PackedMatrix::pack_with(team, dtype, rows, COLS, &bytes).ok()?;
        best = best.min(started.elapsed().as_secs_f64());
        drop(packed);
    }
    Some(bytes.len() as f64 / best / 1e9)
}
