//! The parameters of a chain's filters, as data: what a graph's sampling ops are given for each row.

use crate::settings::{SamplerKind, Sampling};

/// Most samplers of a chain that [`Params`] can hold.
const MAX_CHAIN: usize = 16;

/// Samplers by their number in [`Params`]; 0 is none.
const KINDS: [SamplerKind; 10] = [
    SamplerKind::Penalties,
    SamplerKind::Dry,
    SamplerKind::TopNSigma,
    SamplerKind::TopK,
    SamplerKind::TypicalP,
    SamplerKind::TopP,
    SamplerKind::MinP,
    SamplerKind::Xtc,
    SamplerKind::Temperature,
    SamplerKind::AdaptiveP,
];

/// A chain of filters with their parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    chain: [u8; MAX_CHAIN],
    pub(crate) top_k: u32,
    pub(crate) min_keep: u32,
    pub(crate) temperature: f32,
    pub(crate) dynatemp_range: f32,
    pub(crate) dynatemp_exponent: f32,
    pub(crate) top_p: f32,
    pub(crate) min_p: f32,
    pub(crate) typical_p: f32,
    pub(crate) top_n_sigma: f32,
    pub(crate) xtc_probability: f32,
    pub(crate) xtc_threshold: f32,
}

impl Params {
    /// Words of the binary form.
    pub(crate) const WORDS: usize = MAX_CHAIN / 4 + 11;

    /// The parameters of a request's settings, for this chain. `None` if the chain is too long.
    pub(crate) fn new(settings: &Sampling, kinds: &[SamplerKind]) -> Option<Params> {
        let mut chain = [0; MAX_CHAIN];
        for (i, kind) in kinds.iter().enumerate() {
            let number = KINDS.iter().position(|known| known == kind)? + 1;
            *chain.get_mut(i)? = number as u8;
        }
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Some(Params {
            chain,
            top_k: count(settings.top_k),
            min_keep: count(settings.min_keep),
            temperature: settings.temperature,
            dynatemp_range: settings.dynatemp_range,
            dynatemp_exponent: settings.dynatemp_exponent,
            top_p: settings.top_p,
            min_p: settings.min_p,
            typical_p: settings.typical_p,
            top_n_sigma: settings.top_n_sigma,
            xtc_probability: settings.xtc_probability,
            xtc_threshold: settings.xtc_threshold,
        })
    }

    /// The samplers, in order.
    pub(crate) fn chain(&self) -> impl Iterator<Item = SamplerKind> + use<> {
        self.chain.into_iter().map_while(|number| KINDS.get(usize::from(number).wrapping_sub(1)).copied())
    }

    /// Whether every draw takes the best candidate that is left.
    pub(crate) fn is_greedy(&self) -> bool {
        self.temperature == 0.0 && self.dynatemp_range == 0.0
    }

    pub(crate) fn to_words(self) -> [u32; Params::WORDS] {
        let mut words = [0; Params::WORDS];
        let (chain, numbers) = words.split_at_mut(MAX_CHAIN / 4);
        for (word, bytes) in chain.iter_mut().zip(self.chain.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        numbers.copy_from_slice(&[
            self.top_k,
            self.min_keep,
            self.temperature.to_bits(),
            self.dynatemp_range.to_bits(),
            self.dynatemp_exponent.to_bits(),
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.typical_p.to_bits(),
            self.top_n_sigma.to_bits(),
            self.xtc_probability.to_bits(),
            self.xtc_threshold.to_bits(),
        ]);
        words
    }

    pub(crate) fn from_words(words: &[u32; Params::WORDS]) -> Params {
        let (chain, numbers) = words.split_at(MAX_CHAIN / 4);
        let mut bytes = [0; MAX_CHAIN];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(chain) {
            *bytes = word.to_le_bytes();
        }
        let real = |i: usize| f32::from_bits(numbers[i]);
        Params {
            chain: bytes,
            top_k: numbers[0],
            min_keep: numbers[1],
            temperature: real(2),
            dynatemp_range: real(3),
            dynatemp_exponent: real(4),
            top_p: real(5),
            min_p: real(6),
            typical_p: real(7),
            top_n_sigma: real(8),
            xtc_probability: real(9),
            xtc_threshold: real(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_carry_everything() {
        let settings =
            Sampling { top_k: 7, min_keep: 3, xtc_threshold: 0.25, min_p: 0.125, ..Sampling::default() };
        let params = Params::new(&settings, &KINDS).unwrap();
        assert_eq!(params.chain().collect::<Vec<_>>(), KINDS);
        assert_eq!(Params::from_words(&params.to_words()), params);
        let distinct: std::collections::BTreeSet<u32> = params.to_words().into_iter().collect();
        assert!(distinct.len() >= Params::WORDS - 4);
        assert_eq!(Params::new(&settings, &[SamplerKind::TopK; 17]), None);
    }
}
