//! Sets of bytes.

/// A set of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ByteSet([u64; 4]);

impl ByteSet {
    pub fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    /// The first bytes of all characters in the ranges, encoded as UTF-8.
    pub fn first_bytes(ranges: &[(char, char)]) -> Self {
        let first_byte = |c: char| c.encode_utf8(&mut [0; 4]).as_bytes()[0];
        let mut set = Self::default();
        for &(first, last) in ranges {
            // The first byte grows with the character.
            (first_byte(first)..=first_byte(last)).for_each(|byte| set.insert(byte));
        }
        set
    }

    /// Adds all bytes of another set; whether that added any.
    pub fn extend(&mut self, other: Self) -> bool {
        let before = *self;
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
        *self != before
    }

    pub fn intersects(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0).any(|(word, other)| word & other != 0)
    }
}
