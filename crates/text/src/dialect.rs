//! Rewrites the few tags in which the template engine and Jinja2 differ, before a template is compiled:
//!
//! - `{% generation %}` marks the assistant's part for training. It renders what it contains, in a scope of its own,
//!   as `{% with %}` does, which the engine knows.
//! - `{% for x in none %}` is an error in Python and an empty loop in the engine, so that a missing list would go
//!   unnoticed. What is looped over is passed through the filter [`ITERABLE_FILTER`], which refuses None.
//!
//! Nothing else changes: text, comments, `{% raw %}` blocks and line numbers stay.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind};

/// The name of [`iterable`] inside templates.
pub(crate) const ITERABLE_FILTER: &str = "python_iterable";

/// Lets through what Python can loop over, and all that the engine refuses itself.
pub(crate) fn iterable(value: &Value) -> Result<Value, Error> {
    match value.is_none() {
        true => Err(Error::new(ErrorKind::InvalidOperation, "None is not iterable")),
        false => Ok(value.clone()),
    }
}

/// Rewrites the tags of a template. Malformed tags stay as they are, for the engine to report.
pub(crate) fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut in_raw = false;
    while let Some(opening) = rest.find('{') {
        out.push_str(&rest[..opening]);
        rest = &rest[opening..];
        let len = match rest.as_bytes().get(1) {
            Some(b'#') if !in_raw => rest.find("#}").map(|end| end + 2),
            Some(b'{') if !in_raw => Tokens::new(&rest[2..]).end("}}").map(|end| 2 + end + 2),
            Some(b'%') => Tokens::new(&rest[2..]).end("%}").map(|end| 2 + end + 2),
            _ => None,
        };
        let Some(len) = len else {
            out.push('{');
            rest = &rest[1..];
            continue;
        };
        let (whole, after) = rest.split_at(len);
        rest = after;
        if !whole.starts_with("{%") {
            out.push_str(whole);
            continue;
        }
        let body = &whole[2..len - 2];
        match first_word(body) {
            "endraw" => in_raw = false,
            "raw" if !in_raw => in_raw = true,
            _ => {}
        }
        match (in_raw, first_word(body)) {
            (false, "generation") => out.push_str(&whole.replacen("generation", "with", 1)),
            (false, "endgeneration") => out.push_str(&whole.replacen("endgeneration", "endwith", 1)),
            (false, "for") => push_for(&mut out, body),
            _ => out.push_str(whole),
        }
    }
    out.push_str(rest);
    out
}

/// Writes `{% for target in (iterated)|filter if condition recursive %}`.
fn push_for(out: &mut String, body: &str) {
    let body_end = body.trim_end_matches(['-', '+']).len();
    let (content, trim_marker) = body.split_at(body_end);
    let start = Tokens::new(content).find_word(&["in"]).map(|(_, end)| end);
    let iterated = start.map(|start| {
        let end = Tokens::new(&content[start..]).find_word(&["if", "recursive"]);
        (start, end.map_or(content.len(), |(word_start, _)| start + word_start))
    });
    out.push_str("{%");
    match iterated {
        Some((start, end)) => {
            let (before, iterated, after) = (&content[..start], &content[start..end], &content[end..]);
            out.extend([before, " (", iterated, ")|", ITERABLE_FILTER, " ", after]);
        }
        None => out.push_str(content),
    }
    out.push_str(trim_marker);
    out.push_str("%}");
}

fn first_word(body: &str) -> &str {
    let body = body.trim_start_matches(['-', '+']).trim_start();
    let end = body.find(|character: char| !is_word_part(character)).unwrap_or(body.len());
    &body[..end]
}

fn is_word_part(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Walks over an expression, skipping string literals and counting brackets.
struct Tokens<'t> {
    text: &'t str,
    position: usize,
    depth: usize,
}

impl<'t> Tokens<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, position: 0, depth: 0 }
    }

    /// Where `closing` stands outside strings, and for `}}` outside brackets, as in the engine's own lexer.
    fn end(mut self, closing: &str) -> Option<usize> {
        loop {
            if self.text[self.position..].starts_with(closing) && (self.depth == 0 || closing != "}}") {
                return Some(self.position);
            }
            self.advance()?;
        }
    }

    /// Where one of `words` stands outside strings and brackets: its start and end.
    fn find_word(mut self, words: &[&str]) -> Option<(usize, usize)> {
        while self.position < self.text.len() {
            let word = self.word();
            if self.depth == 0 && words.contains(&word) {
                return Some((self.position, self.position + word.len()));
            }
            match word.is_empty() {
                true => self.advance()?,
                false => self.position += word.len(),
            };
        }
        None
    }

    fn word(&self) -> &'t str {
        let rest = &self.text[self.position..];
        let end = rest.find(|character: char| !is_word_part(character)).unwrap_or(rest.len());
        &rest[..end]
    }

    /// Steps over one character or one string literal; `None` at the end of the text.
    fn advance(&mut self) -> Option<()> {
        let character = self.text[self.position..].chars().next()?;
        self.position += character.len_utf8();
        match character {
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
            '"' | '\'' => self.skip_string(character)?,
            _ => {}
        }
        Some(())
    }

    fn skip_string(&mut self, quote: char) -> Option<()> {
        let mut is_escaped = false;
        for (offset, character) in self.text[self.position..].char_indices() {
            match character {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                _ if character == quote => {
                    self.position += offset + quote.len_utf8();
                    return Some(());
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn loops_pass_through_the_filter() {
        let cases = [
            ("{% for a in b %}", "{% for a in ( b )|python_iterable %}"),
            ("{%- for k, v in d.items() -%}", "{%- for k, v in ( d.items() )|python_iterable -%}"),
            (
                "{% for a in f(x if y else z)[1:] if a recursive %}",
                "{% for a in ( f(x if y else z)[1:] )|python_iterable if a recursive %}",
            ),
            ("{% for a in ' if in %}' ~ b %}", "{% for a in ( ' if in %}' ~ b )|python_iterable %}"),
            ("{% for inner in iffy %}", "{% for inner in ( iffy )|python_iterable %}"),
        ];
        for (source, expected) in cases {
            assert_eq!(rewrite(source), expected);
        }
    }

    #[test]
    fn generation_becomes_a_scope() {
        assert_eq!(rewrite("{%- generation -%}x{% endgeneration %}"), "{%- with -%}x{% endwith %}");
    }

    #[test]
    fn everything_else_stays() {
        let cases = [
            "plain { text } {{ x }} {{ '{% for a in b %}' }} {{ {'a': {'b': 1}}['a'] }}",
            "{# {% for a in b %} #}{% set for_x = 1 %}{% generation_x %}",
            "{% raw %}{% for a in b %}{% generation %}{{ {% endraw %}",
            "unfinished {% for a in b",
            "unfinished {{ 'a",
            "unfinished {# a",
            "{% for a %}",
            "{",
        ];
        for source in cases {
            assert_eq!(rewrite(source), source);
        }
        assert_eq!(rewrite("{{ x {% for a in b %}"), "{{ x {% for a in ( b )|python_iterable %}");
    }
}
