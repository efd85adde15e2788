//! Random weights, quantised once and used many times.
//!
//! Quantising is slow and random numbers are all alike, so a [`Pool`] of random units is quantised for each format, and
//! every tensor takes the units of the pool in orders of its own, one after the other until it is full. So no unit comes
//! twice before all others have, and a row of several units does not come twice at all.

use std::thread;

use rand_philox::Philox;
use verbatim_quant::{DType, QuantError, quantize};

use super::mix;

/// Elements of a unit: a multiple of every format's block size.
const UNIT_LEN: usize = 256;
/// The most units of a pool: 4 Mi elements.
const POOL_UNITS: usize = 1 << 14;
/// The spread of initial weights that published models report, which keeps activations within a few units.
const STANDARD_DEVIATION: f32 = 0.02;

/// Quantised random weights.
pub(super) struct Pool {
    bytes: Vec<u8>,
    unit_bytes: usize,
}

impl Pool {
    /// A pool for tensors of up to `elements` elements.
    pub(super) fn new(dtype: DType, elements: usize, seed: u64, threads: usize) -> Result<Pool, QuantError> {
        // A power of two, so that every odd stride visits all units.
        let units = elements.div_ceil(UNIT_LEN).clamp(1, POOL_UNITS).next_power_of_two();
        let unit_bytes = UNIT_LEN / dtype.block_len() * dtype.block_bytes();
        let mut bytes = vec![0; units * unit_bytes];
        let units_per_thread = units.div_ceil(threads.max(1));
        let results: Vec<Result<(), QuantError>> = thread::scope(|scope| {
            let shares = bytes.chunks_mut(units_per_thread * unit_bytes).enumerate();
            let work = |(share, out): (usize, &mut [u8])| {
                let first = share * units_per_thread;
                for (unit, out) in out.chunks_mut(unit_bytes).enumerate() {
                    let stream = (u64::from(dtype.id()) << 32) | (first + unit) as u64;
                    quantize(dtype, &normal_unit(seed, stream), out)?;
                }
                Ok(())
            };
            let workers: Vec<_> = shares.map(|share| scope.spawn(move || work(share))).collect();
            workers.into_iter().map(|worker| worker.join().expect("quantising does not panic")).collect()
        });
        results.into_iter().collect::<Result<(), _>>()?;
        Ok(Pool { bytes, unit_bytes })
    }

    /// Bytes of a unit: pieces of a tensor begin at multiples of it.
    pub(super) fn unit_bytes(&self) -> usize {
        self.unit_bytes
    }

    /// Fills a part of a tensor that begins at its unit `first`. The key identifies the tensor.
    pub(super) fn fill(&self, key: u64, first: usize, out: &mut [u8], threads: usize) {
        let units = out.len().div_ceil(self.unit_bytes);
        let units_per_thread = units.div_ceil(threads.max(1)).max(1);
        thread::scope(|scope| {
            for (share, out) in out.chunks_mut(units_per_thread * self.unit_bytes).enumerate() {
                let first = first + share * units_per_thread;
                scope.spawn(move || self.fill_share(key, first, out));
            }
        });
    }

    fn fill_share(&self, key: u64, first: usize, out: &mut [u8]) {
        let units = self.bytes.len() / self.unit_bytes;
        for (unit, out) in out.chunks_mut(self.unit_bytes).enumerate() {
            let (round, place) = ((first + unit) / units, (first + unit) % units);
            let order = mix(key ^ round as u64);
            let (start, stride) = ((order >> 32) as usize, order as usize & 0xffff_ffff | 1);
            let chosen = start.wrapping_add(place.wrapping_mul(stride)) % units;
            // The last unit of a tensor may be cut.
            out.copy_from_slice(&self.bytes[chosen * self.unit_bytes..][..out.len()]);
        }
    }
}

/// Weights that are as good as normally distributed: sums of twelve uniform numbers of 16 bits. Integer arithmetic up to the one
/// multiplication at the end makes them the same on every machine.
fn normal_unit(seed: u64, stream: u64) -> [f32; UNIT_LEN] {
    let mut words = Philox::from_u64_seed_stream(seed, stream);
    std::array::from_fn(|_| {
        let sum: i64 =
            (0..6).map(|_| words.next_u32()).map(|word| i64::from((word >> 16) + (word & 0xffff))).sum();
        // Twelve uniform numbers from 0 to 65535: their mean is 6 * 65535 and their variance (almost) 65536^2.
        (sum - 6 * 65535) as f32 * (STANDARD_DEVIATION / 65536.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_normally_distributed() {
        let units: Vec<f32> = (0..400).flat_map(|unit| normal_unit(7, unit)).collect();
        let count = units.len() as f64;
        let moment =
            |power: i32| units.iter().map(|&x| (f64::from(x) / 0.02).powi(power)).sum::<f64>() / count;
        let (mean, variance, kurtosis) = (moment(1), moment(2), moment(4));
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        // That of twelve uniform numbers is 2.9, that of the normal distribution 3.
        assert!((kurtosis - 2.9).abs() < 0.1, "{kurtosis}");
    }

    #[test]
    fn no_unit_is_repeated_before_all_were_used() {
        let pool = Pool::new(DType::Q8_0, 16 * UNIT_LEN, 5, 2).unwrap();
        let mut bytes = vec![0; 32 * pool.unit_bytes()];
        pool.fill(3, 0, &mut bytes, 1);
        let units: Vec<&[u8]> = bytes.chunks(pool.unit_bytes()).collect();
        let distinct = |units: &[&[u8]]| units.iter().collect::<std::collections::HashSet<_>>().len();
        assert_eq!((distinct(&units[..16]), distinct(&units[16..])), (16, 16));
        assert_ne!(units[..16], units[16..]);
    }

    #[test]
    fn a_tensors_weights_do_not_depend_on_threads_or_parts() {
        let pools = [1, 3].map(|threads| Pool::new(DType::Q4_K, 100_000, 5, threads).unwrap());
        assert_eq!(pools[0].bytes, pools[1].bytes);
        let [pool, _] = pools;
        let mut whole = vec![0; pool.unit_bytes() * 10 + 36];
        pool.fill(9, 0, &mut whole, 1);
        let mut pieces = vec![0; whole.len()];
        let (head, tail) = pieces.split_at_mut(pool.unit_bytes() * 4);
        pool.fill(9, 0, head, 2);
        pool.fill(9, 4, tail, 3);
        assert_eq!(whole, pieces);
        let mut other = vec![0; whole.len()];
        pool.fill(10, 0, &mut other, 2);
        assert_ne!(whole, other);
    }
}
