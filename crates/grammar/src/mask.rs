//! The set of tokens that may come next.

/// A set of tokens, one bit per id of the vocabulary: token `t` is bit `t % 32` of word `t / 32`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask(Vec<u32>);

impl TokenMask {
    /// A mask of these words, the lowest ids first.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self(words)
    }

    /// Whether a token is in the set. Ids outside the vocabulary are not.
    pub fn allows(&self, token: u32) -> bool {
        self.0.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// The words, the lowest ids first.
    pub fn as_words(&self) -> &[u32] {
        &self.0
    }

    /// How many tokens are in the set.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The tokens in the set, in ascending order.
    pub fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(index, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(index as u32 * 32 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_tokens() {
        let mask = TokenMask::from_words(vec![1 << 31 | 1, 0, 0b110]);
        assert_eq!(mask.tokens().collect::<Vec<_>>(), [0, 31, 65, 66]);
        assert_eq!(mask.count(), 4);
        assert!((0..200).all(|token| mask.allows(token) == [0, 31, 65, 66].contains(&token)));
    }
}
