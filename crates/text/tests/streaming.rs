//! The detokeniser and the stop matcher give the same text however it is split into pieces.

use proptest::prelude::*;
use verbatim_text::{Detokenizer, StopError, StopMatcher};

/// Bytes that are often almost UTF-8.
fn messy_bytes() -> impl Strategy<Value = Vec<u8>> {
    let whole = any::<char>().prop_map(|character| character.to_string().into_bytes());
    let cut = (any::<char>(), 0..4usize).prop_map(|(character, keep)| {
        let mut bytes = character.to_string().into_bytes();
        bytes.truncate(keep);
        bytes
    });
    let noise = proptest::collection::vec(any::<u8>(), 0..4);
    let surrogate = Just(vec![0xED, 0xA0, 0x80]);
    let overlong = Just(vec![0xC0, 0x80]);
    proptest::collection::vec(prop_oneof![whole, cut, noise, surrogate, overlong], 0..20)
        .prop_map(|parts| parts.concat())
}

/// Cuts `whole` into pieces of the given lengths; what is left is the last piece.
fn cut<'w>(whole: &'w [u8], lens: &[usize]) -> Vec<&'w [u8]> {
    let mut pieces = Vec::new();
    let mut rest = whole;
    for &len in lens {
        let (piece, after) = rest.split_at(len.min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn detokenised_text_is_the_lossy_text_of_all_bytes(
        bytes in messy_bytes(),
        lens in proptest::collection::vec(0..5usize, 0..60),
    ) {
        let mut detokenizer = Detokenizer::new();
        let mut text = String::new();
        for piece in cut(&bytes, &lens) {
            text += detokenizer.push(piece);
            prop_assert!(detokenizer.pending().len() <= 3);
        }
        text += detokenizer.finish();
        prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
        // It is ready for another text.
        prop_assert_eq!(detokenizer.push(b"x"), "x");
    }

    #[test]
    fn a_stop_string_ends_the_text_where_it_is_first_complete(
        text in "[abé]{0,24}",
        stops in proptest::collection::vec("[abé]{1,5}", 0..4),
        lens in proptest::collection::vec(0..4usize, 0..24),
    ) {
        let characters: Vec<char> = text.chars().collect();
        let mut pieces = Vec::new();
        let mut rest = &characters[..];
        for len in lens {
            let (piece, after) = rest.split_at(len.min(rest.len()));
            pieces.push(piece.iter().collect::<String>());
            rest = after;
        }
        pieces.push(rest.iter().collect());

        let mut matcher = StopMatcher::new(stops.clone()).unwrap();
        let mut shown = String::new();
        let mut stopped_by = None;
        for piece in &pieces {
            let output = matcher.push(piece);
            shown += output.text;
            stopped_by = output.stopped_by;
            if stopped_by.is_none() {
                // All that is held back could still become a stop string.
                let seen: String = pieces.iter().take_while(|other| !std::ptr::eq(*other, piece)).cloned().collect();
                let held = &(seen + piece)[shown.len()..];
                prop_assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(held)));
            }
        }
        shown += matcher.finish().text;

        let ends = (0..=text.len()).filter(|&end| text.is_char_boundary(end));
        let mut complete = ends.filter_map(|end| {
            let ending = stops.iter().filter(|stop| text[..end].ends_with(*stop));
            ending.map(String::len).max().map(|len| end - len)
        });
        match complete.next() {
            Some(start) => {
                prop_assert_eq!(&shown, &text[..start]);
                prop_assert!(text[start..].starts_with(&stops[stopped_by.unwrap()]));
            }
            None => prop_assert_eq!((shown, stopped_by), (text, None)),
        }
    }
}

#[test]
fn a_copy_of_the_matcher_returns_to_an_earlier_point() {
    let mut matcher = StopMatcher::new(["END"]).unwrap();
    assert_eq!(matcher.push("a E").text, "a ");
    let mut earlier = matcher.clone();
    assert_eq!(matcher.push("ND").stopped_by, Some(0));
    assert_eq!(matcher.push("more").text, "");
    assert_eq!(earlier.push("N").text, "");
    assert_eq!(earlier.push("o").text, "ENo");
}

#[test]
fn nothing_is_held_back_without_stop_strings() {
    let mut matcher = StopMatcher::new(Vec::<String>::new()).unwrap();
    assert_eq!(matcher.push("abc").text, "abc");
}

#[test]
fn an_empty_stop_string_is_rejected() {
    assert_eq!(StopMatcher::new(["a", ""]).unwrap_err(), StopError::Empty { index: 1 });
}

#[test]
fn repetitive_stop_strings_take_linear_time() {
    let stop = "a".repeat(100_000) + "b";
    let mut matcher = StopMatcher::new([stop]).unwrap();
    let mut shown = 0;
    for _ in 0..100 {
        shown += matcher.push(&"a".repeat(10_000)).text.len();
    }
    assert_eq!(shown, 900_000);
    assert_eq!(matcher.push("b").stopped_by, Some(0));
}
