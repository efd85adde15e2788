//! Small sets of numbers.

/// A set of numbers below 64 times `WORDS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BitSet<const WORDS: usize>([u64; WORDS]);

/// A set of bytes.
pub(super) type ByteSet = BitSet<4>;

impl<const WORDS: usize> Default for BitSet<WORDS> {
    fn default() -> Self {
        Self([0; WORDS])
    }
}

impl<const WORDS: usize> BitSet<WORDS> {
    /// How many different numbers a set can have.
    pub const CAPACITY: usize = 64 * WORDS;

    pub fn single(number: usize) -> Self {
        let mut set = Self::default();
        set.insert(number);
        set
    }

    pub fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    pub fn contains(&self, number: usize) -> bool {
        self.0[number / 64] & (1 << (number % 64)) != 0
    }

    /// Adds all numbers of another set; whether that added any.
    pub fn extend(&mut self, other: Self) -> bool {
        let before = *self;
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
        *self != before
    }

    pub fn intersects(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0).any(|(word, other)| word & other != 0)
    }

    /// The numbers of this set that another one does not have.
    pub fn without(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word &= !other);
        self
    }

    /// The numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + use<'_, WORDS> {
        (0..Self::CAPACITY).filter(|number| self.contains(*number))
    }
}

impl ByteSet {
    /// The first bytes of all characters in the ranges, encoded as UTF-8.
    pub fn first_bytes(ranges: &[(char, char)]) -> Self {
        let first_byte = |c: char| c.encode_utf8(&mut [0; 4]).as_bytes()[0];
        let mut set = Self::default();
        for &(first, last) in ranges {
            // The first byte grows with the character.
            (first_byte(first)..=first_byte(last)).for_each(|byte| set.insert(byte.into()));
        }
        set
    }
}
