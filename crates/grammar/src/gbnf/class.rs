//! Sets of characters.

/// A set of characters, as sorted ranges that neither touch nor overlap.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CharClass {
    ranges: Vec<(char, char)>,
}

/// The characters before and after the surrogates, which are not characters.
const BELOW_SURROGATES: u32 = 0xD7FF;
const ABOVE_SURROGATES: u32 = 0xE000;

fn after(c: char) -> Option<char> {
    match c as u32 {
        BELOW_SURROGATES => char::from_u32(ABOVE_SURROGATES),
        code => char::from_u32(code + 1),
    }
}

fn before(c: char) -> Option<char> {
    match c as u32 {
        ABOVE_SURROGATES => char::from_u32(BELOW_SURROGATES),
        code => char::from_u32(code.checked_sub(1)?),
    }
}

impl CharClass {
    /// The characters of all ranges; the ends belong to them.
    pub fn new(mut ranges: Vec<(char, char)>) -> Self {
        ranges.retain(|(first, last)| first <= last);
        ranges.sort_unstable();
        let mut merged: Vec<(char, char)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(previous) if after(previous.1).is_none_or(|next| first <= next) => {
                    previous.1 = previous.1.max(last);
                }
                _ => merged.push((first, last)),
            }
        }
        Self { ranges: merged }
    }

    /// Every character.
    pub fn any() -> Self {
        Self { ranges: vec![('\0', char::MAX)] }
    }

    /// One character.
    pub fn single(c: char) -> Self {
        Self { ranges: vec![(c, c)] }
    }

    /// All characters that are not in this set.
    pub fn negated(&self) -> Self {
        let mut ranges = Vec::with_capacity(self.ranges.len() + 1);
        let mut next = Some('\0');
        for &(first, last) in &self.ranges {
            if let (Some(start), Some(end)) = (next, before(first))
                && start <= end
            {
                ranges.push((start, end));
            }
            next = after(last);
        }
        ranges.extend(next.map(|start| (start, char::MAX)));
        Self { ranges }
    }

    /// Whether the set has a character.
    pub fn contains(&self, c: char) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&c))
    }

    /// Whether two sets have a character in common.
    pub fn intersects(&self, other: &Self) -> bool {
        let (mut left, mut right) = (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            if a.1 < b.0 {
                left.next();
            } else if b.1 < a.0 {
                right.next();
            } else {
                return true;
            }
        }
        false
    }

    /// Whether the set has no character.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The sorted ranges.
    pub fn ranges(&self) -> &[(char, char)] {
        &self.ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sorted_and_merged() {
        let class = CharClass::new(vec![('x', 'z'), ('a', 'c'), ('d', 'f'), ('b', 'b'), ('q', 'p')]);
        assert_eq!(class.ranges(), [('a', 'f'), ('x', 'z')]);
        assert!(class.contains('d') && !class.contains('g'));
    }

    #[test]
    fn negation_undoes_itself_and_leaves_surrogates_out() {
        let class = CharClass::new(vec![('\0', 'a'), ('\u{D7FF}', '\u{D7FF}'), ('\u{10FFFF}', char::MAX)]);
        let rest = class.negated();
        assert_eq!(rest.ranges(), [('b', '\u{D7FE}'), ('\u{E000}', '\u{10FFFE}')]);
        assert_eq!(rest.negated(), class);
        assert!(!rest.intersects(&class));
        assert!(CharClass::any().negated().is_empty());
        assert!(CharClass::any().intersects(&rest));
    }
}
