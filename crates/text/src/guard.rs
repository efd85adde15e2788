//! Keeps what a user writes from becoming control tokens on its way through a chat template.
//!
//! A template joins its own control tokens and the users' texts into one string. To tell them apart afterwards, [`guard`]
//! puts a mark in front of the first character of each control token that a user's text spells, before the template sees
//! it, and [`unguard`] takes the marks out of the rendered prompt and says where they were. Only texts that spell a
//! control token are changed, so that templates can trim, compare and search all others as usual.

use crate::special::SpecialMatcher;
use std::borrow::Cow;
use std::ops::Range;

/// "The next character is text." A noncharacter, which text is not supposed to contain; where it does, it is marked, too. What
/// templates escape, they leave it as it is.
pub(crate) const MARK: char = '\u{10FFFE}';

/// `text` with a mark in front of each control token's first character, and of each character that is a mark itself.
pub(crate) fn guard<'t>(control: &SpecialMatcher, text: &'t str) -> Cow<'t, str> {
    let mut guarded = String::new();
    let mut copied = 0;
    let mut next_mark = text.find(MARK);
    let mut next_control = control.find(text, 0..text.len());
    loop {
        let control_start = next_control.map(|found| found.start);
        let Some(start) = next_mark.into_iter().chain(control_start).min() else { break };
        guarded.push_str(&text[copied..start]);
        guarded.push(MARK);
        copied = start;
        // Occurrences may overlap: the next one may begin at the next character.
        let from = start + text[start..].chars().next().map_or(1, char::len_utf8);
        if next_mark.is_some_and(|mark| mark < from) {
            next_mark = text[from..].find(MARK).map(|mark| from + mark);
        }
        if control_start.is_some_and(|start| start < from) {
            next_control = control.find(text, from..text.len());
        }
    }
    if guarded.is_empty() {
        return Cow::Borrowed(text);
    }
    guarded.push_str(&text[copied..]);
    Cow::Owned(guarded)
}

/// The text without marks, and where control tokens may be: everywhere but in the characters that were marked.
pub(crate) fn unguard(text: &str) -> (Cow<'_, str>, Vec<Range<usize>>) {
    if !text.contains(MARK) {
        return (Cow::Borrowed(text), everywhere(text));
    }
    let mut plain = String::with_capacity(text.len());
    let mut trusted = Vec::new();
    let mut start = 0;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != MARK {
            plain.push(character);
            continue;
        }
        trusted.push(start..plain.len());
        plain.extend(characters.next());
        start = plain.len();
    }
    trusted.push(start..plain.len());
    trusted.retain(|range| !range.is_empty());
    (Cow::Owned(plain), trusted)
}

/// Control tokens may be anywhere in the text.
pub(crate) fn everywhere(text: &str) -> Vec<Range<usize>> {
    std::iter::once(0..text.len()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher() -> SpecialMatcher {
        SpecialMatcher::new([(0, "<a>"), (1, "aa"), (2, "é")].into_iter()).unwrap()
    }

    #[test]
    fn a_mark_stands_in_front_of_each_occurrence() {
        let guarded = |text| guard(&matcher(), text).replace(MARK, "^");
        assert_eq!(guarded("x<a>y"), "x^<a>y");
        assert_eq!(guarded("aaa"), "^a^aa");
        assert_eq!(guarded("é"), "^é");
        assert_eq!(guarded("\u{10FFFE}<a>"), "^^^<a>");
        assert!(matches!(guard(&matcher(), "harmless"), Cow::Borrowed("harmless")));
    }

    #[test]
    fn marks_are_taken_out_again() {
        for text in ["", "x<a>y", "aaaa", "éé", "\u{10FFFE}", "\u{10FFFE}\u{10FFFE}<a>\u{10FFFE}", "<<a>>"]
        {
            let guarded = guard(&matcher(), text);
            let (plain, trusted) = unguard(&guarded);
            if guarded != text {
                assert_eq!(plain, text);
                assert!(
                    trusted.iter().all(|range| matcher().find(text, range.clone()).is_none()),
                    "{text:?}"
                );
            }
        }
        assert_eq!(unguard("<a>").1, everywhere("<a>"));
        // A mark at the end marks nothing.
        assert_eq!(unguard("<a>\u{10FFFE}"), (Cow::Borrowed("<a>"), everywhere("<a>")));
    }
}
