//! Text with line breaks between words, for a terminal of a given width: streamed, or whole.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A text with line breaks between words. `width`: columns of the terminal; `None`: it stays as it is.
pub fn wrapped(text: &str, width: Option<usize>) -> String {
    let mut wrapper = Wrapper::new(width);
    wrapper.push(text) + &wrapper.finish()
}

/// A line for each name and what it means. The meanings are a column of their own, or, where there is no room for one, stand
/// below the names.
pub fn table<'a>(rows: impl IntoIterator<Item = (&'a str, &'a str)>, width: Option<usize>) -> String {
    const INDENT: usize = 4;
    let rows: Vec<_> = rows.into_iter().collect();
    let names = rows.iter().map(|(name, _)| name.width()).max().unwrap_or(0) + 2;
    let is_narrow = width.is_some_and(|width| width < 2 * names);
    let indent = if is_narrow { INDENT } else { names };
    let mut text = String::new();
    for (name, meaning) in rows {
        let mut wrapper = Wrapper { indent, ..Wrapper::new(width) };
        let gap =
            if is_narrow { "\n".to_owned() + &" ".repeat(indent) } else { " ".repeat(names - name.width()) };
        let line = wrapper.push(&format!("{name}{gap}{meaning}")) + &wrapper.finish();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Breaks lines between words. A word is held back until it has ended; code between ``` lines stays as it is.
#[derive(Debug)]
pub struct Wrapper {
    /// Columns of the terminal; `None`: nothing is broken.
    width: Option<usize>,
    /// Columns in front of a line that was broken.
    indent: usize,
    column: usize,
    spaces: String,
    word: String,
    word_columns: usize,
    /// Within a terminal command, such as that for dim text, which takes no columns.
    is_escape: bool,
    /// The word is longer than a line, and its end follows directly.
    is_long: bool,
    is_code: bool,
}

impl Wrapper {
    /// For a terminal of this width.
    pub fn new(width: Option<usize>) -> Self {
        let width = width.filter(|&width| width > 0);
        let (spaces, word) = (String::new(), String::new());
        Self {
            width,
            indent: 0,
            column: 0,
            spaces,
            word,
            word_columns: 0,
            is_escape: false,
            is_long: false,
            is_code: false,
        }
    }

    /// Adds text, and returns what can be shown.
    pub fn push(&mut self, text: &str) -> String {
        let Some(width) = self.width else { return text.to_owned() };
        let mut shown = String::with_capacity(text.len() + 8);
        for character in text.chars() {
            match character {
                _ if self.is_escape || character == '\x1b' => {
                    self.word.push(character);
                    self.is_escape = !character.is_ascii_alphabetic();
                }
                '\n' => {
                    self.end_word(width, &mut shown);
                    shown.push_str(&std::mem::take(&mut self.spaces));
                    shown.push('\n');
                    self.column = 0;
                }
                ' ' | '\t' => {
                    self.end_word(width, &mut shown);
                    self.spaces.push(character);
                }
                _ if self.is_long => {
                    shown.push(character);
                    self.column = (self.column + columns(character)) % width;
                }
                _ => {
                    self.word.push(character);
                    self.word_columns += columns(character);
                    // Between wide characters, such as those of Chinese, a line may always end.
                    let is_long = self.word_columns >= width;
                    if columns(character) == 2 || is_long {
                        self.end_word(width, &mut shown);
                        self.is_long = is_long;
                    }
                }
            }
        }
        shown
    }

    /// Returns what was held back.
    pub fn finish(&mut self) -> String {
        let mut shown = String::new();
        if let Some(width) = self.width {
            self.end_word(width, &mut shown);
            shown.push_str(&std::mem::take(&mut self.spaces));
        }
        shown
    }

    fn end_word(&mut self, width: usize, shown: &mut String) {
        self.is_long = false;
        if self.word.is_empty() {
            return;
        }
        if self.column == 0 && self.word.starts_with("```") {
            self.is_code = !self.is_code;
        }
        let spaces: usize = self.spaces.chars().map(columns).sum();
        let word = std::mem::take(&mut self.word_columns);
        let end = self.column + spaces + word;
        if end > width && self.column > 0 && !self.is_code {
            shown.push('\n');
            shown.extend(std::iter::repeat_n(' ', self.indent));
            self.column = self.indent + word;
        } else {
            shown.push_str(&self.spaces);
            self.column = end;
        }
        self.spaces.clear();
        shown.push_str(&std::mem::take(&mut self.word));
    }
}

fn columns(character: char) -> usize {
    if character == '\t' { 8 } else { character.width().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(width: usize, text: &str) -> String {
        let mut wrapper = Wrapper::new(Some(width));
        // One character at a time, as the worst stream.
        let mut shown: String = text.chars().map(|character| wrapper.push(&character.to_string())).collect();
        shown.push_str(&wrapper.finish());
        let mut whole = Wrapper::new(Some(width));
        let at_once = whole.push(text) + &whole.finish();
        assert_eq!(shown, at_once);
        shown
    }

    #[test]
    fn lines_end_between_words() {
        assert_eq!(wrapped(10, "one two three four"), "one two\nthree four");
        assert_eq!(wrapped(10, "one two thr"), "one two\nthr");
        assert_eq!(wrapped(10, "  a b\n\n  c "), "  a b\n\n  c ");
        assert_eq!(wrapped(3, "one two"), "one\ntwo");
    }

    #[test]
    fn long_words_and_code_stay_whole() {
        assert_eq!(wrapped(5, "a https://x.org/y b"), "a\nhttps://x.org/y b");
        assert_eq!(
            wrapped(8, "```\nlet a = b + c;\n```\nand on it goes"),
            "```\nlet a = b + c;\n```\nand on\nit goes"
        );
    }

    #[test]
    fn tables_have_a_column_for_what_names_mean() {
        let rows = || [("/a", "one two three"), ("/bcd x", ""), ("/e", "four")];
        assert_eq!(table(rows(), None), "/a      one two three\n/bcd x\n/e      four\n");
        assert_eq!(table(rows(), Some(17)), "/a      one two\n        three\n/bcd x\n/e      four\n");
        assert_eq!(table(rows(), Some(12)), "/a\n    one two\n    three\n/bcd x\n/e\n    four\n");
    }

    #[test]
    fn terminal_commands_take_no_columns() {
        assert_eq!(wrapped(7, "\x1b[2mone\x1b[0m two a"), "\x1b[2mone\x1b[0m two\na");
    }

    #[test]
    fn wide_characters_may_be_parted() {
        assert_eq!(wrapped(6, "漢字漢字漢字"), "漢字漢\n字漢字");
        assert_eq!(Wrapper::new(None).push("as it is "), "as it is ");
    }
}
