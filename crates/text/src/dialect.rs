//! Rewrites the few tags in which the template engine and Jinja2 differ, before a template is compiled:
//!
//! - `{% generation %}` marks the assistant's part for training. It renders what it contains, in a scope of its own,
//!   as `{% with %}` does, which the engine knows.
//! - `{% for x in none %}` is an error in Python and an empty loop in the engine, so that a missing list would go
//!   unnoticed. What is looped over is passed through the filter [`ITERABLE_FILTER`], which rejects None.
//! - `{% set x = [x, x] %}` in a loop makes a value whose rendered size doubles each time though it takes hardly any
//!   memory; the engine's fuel does not account for that until the value is rendered or compared. What is assigned, or bound to a
//!   parameter, is passed through a filter, which rejects values whose rendered size is huge ([`SizeLimit`]).
//!
//! Templates with absurdly long tags or chains of `elif` are rejected: the engine's compiler recurses over them.
//!
//! Nothing else changes: text, comments, `{% raw %}` blocks and line numbers stay.

use crate::error::TemplateError;
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// The most words, operators and literals in one tag. Real templates stay below 50.
const TAG_TOKENS_MAX: usize = 1000;
/// The most `elif` tags. Real templates stay below 20.
const ELIFS_MAX: usize = 500;

/// Rewrites the tags of a template. Malformed tags stay as they are, for the engine to report.
pub(crate) fn rewrite(source: &str) -> Result<String, TemplateError> {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut elifs = 0;
    while let Some(opening) = rest.find('{') {
        out.push_str(&rest[..opening]);
        rest = &rest[opening..];
        let len = match rest.as_bytes().get(1) {
            Some(b'#') => rest.find("#}").map(|end| end + 2),
            Some(b'{') => Tokens::new(&rest[2..]).end("}}").map(|end| 2 + end + 2),
            Some(b'%') => Tokens::new(&rest[2..]).end("%}").map(|end| 2 + end + 2),
            _ => Some(1),
        };
        // What does not end is an error that the engine reports.
        let Some(len) = len else { break };
        let (whole, after) = rest.split_at(len);
        let reject = |reason| Err(TemplateError::Syntax { line: line_of(source, rest), reason });
        if !whole.starts_with("{#") && Tokens::new(&whole[1..]).exceed(TAG_TOKENS_MAX) {
            return reject(format!("a tag has more than {TAG_TOKENS_MAX} words and operators"));
        }
        let body = whole.strip_prefix("{%").and_then(|tag| tag.strip_suffix("%}")).unwrap_or_default();
        match first_word(body) {
            "generation" => out.push_str(&whole.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&whole.replacen("endgeneration", "endwith", 1)),
            "for" => push_for(&mut out, body),
            "set" => push_set(&mut out, body),
            _ => out.push_str(whole),
        }
        push_size_limits(&mut out, body);
        elifs += usize::from(first_word(body) == "elif");
        if elifs > ELIFS_MAX {
            return reject(format!("the template has more than {ELIFS_MAX} `elif` tags"));
        }
        rest = after;
        if first_word(body) == "raw" {
            let (raw, after) = rest.split_at(raw_len(rest));
            out.push_str(raw);
            rest = after;
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// How far the text of a `{% raw %}` block reaches.
fn raw_len(rest: &str) -> usize {
    let mut tags = rest.match_indices("{%").map(|(start, _)| start);
    tags.find(|start| first_word(&rest[start + 2..]) == "endraw").unwrap_or(rest.len())
}

/// The line, from 1, on which `rest`, the end of `source`, begins.
fn line_of(source: &str, rest: &str) -> usize {
    1 + source[..source.len() - rest.len()].matches('\n').count()
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

/// Writes `{% set target = (assigned)|filter %}`; a set block has nothing to filter.
fn push_set(out: &mut String, body: &str) {
    let body_end = body.trim_end_matches(['-', '+']).len();
    let (content, trim_marker) = body.split_at(body_end);
    out.push_str("{%");
    match Tokens::new(content).find_char('=') {
        Some(equals) => {
            let (target, assigned) = content.split_at(equals);
            let filter = if target.contains('.') { ATTRIBUTE_SIZE_LIMIT_FILTER } else { SIZE_LIMIT_FILTER };
            out.extend([target, "= (", &assigned[1..], ")|", filter, " "]);
        }
        None => out.push_str(content),
    }
    out.push_str(trim_marker);
    out.push_str("%}");
}

/// Behind a tag that binds names to values computed by the template, writes `{% set name = (name)|filter %}` for each.
fn push_size_limits(out: &mut String, body: &str) {
    let trim_marker = &body[body.trim_end_matches(['-', '+']).len()..];
    for name in bound_names(body) {
        out.extend(["{%- set ", name, " = (", name, ")|", SIZE_LIMIT_FILTER, " ", trim_marker, "%}"]);
    }
}

/// The parameters of a macro or a call block, the names of a `with` tag, and the targets of a recursive loop. The
/// targets of a plain loop are parts of one value.
fn bound_names(body: &str) -> impl Iterator<Item = &str> {
    let keyword = first_word(body);
    let rest = body.trim_start_matches(['-', '+']).trim_start().strip_prefix(keyword).unwrap_or_default();
    let parenthesised = || {
        let inside = &rest[Tokens::new(rest).find_char('(')? + 1..];
        Some(&inside[..Tokens::new(inside).find_char(')')?])
    };
    let list = match keyword {
        "macro" => parenthesised(),
        "call" if rest.trim_start().starts_with('(') => parenthesised(),
        "with" => Some(rest),
        "for" if Tokens::new(rest).find_word(&["recursive"]).is_some() => Tokens::new(rest)
            .find_word(&["in"])
            .map(|(start, _)| rest[..start].trim().trim_matches(['(', ')'])),
        _ => None,
    };
    let mut list = list.unwrap_or_default();
    std::iter::from_fn(move || {
        let (item, after) = match Tokens::new(list).find_char(',') {
            Some(comma) => (&list[..comma], &list[comma + 1..]),
            None => (std::mem::take(&mut list), ""),
        };
        list = after;
        Some(first_word(item)).filter(|name| !name.is_empty())
    })
}

fn first_word(body: &str) -> &str {
    let body = body.trim_start_matches(['-', '+']).trim_start();
    let end = body.find(|character: char| !is_word_part(character)).unwrap_or(body.len());
    &body[..end]
}

fn is_word_part(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The name of [`iterable`] inside templates.
pub(crate) const ITERABLE_FILTER: &str = "python_iterable";

/// Returns the value if Python can loop over it, or if the engine itself rejects it.
pub(crate) fn iterable(value: &Value) -> Result<Value, Error> {
    match value.is_none() {
        true => Err(rejection("None is not iterable")),
        false => Ok(value.clone()),
    }
}

/// The name of the filter that passes a [`SizeLimit`] inside templates.
pub(crate) const SIZE_LIMIT_FILTER: &str = "size_limited_value";
/// The same for what is assigned to an attribute of a namespace.
pub(crate) const ATTRIBUTE_SIZE_LIMIT_FILTER: &str = "size_limited_attribute";

/// The largest value that may be assigned, measured by its rendered size, so a shared part counts once per occurrence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SizeLimit {
    /// The most items that lists and mappings may hold together.
    pub items_max: usize,
}

impl SizeLimit {
    /// Returns the value if it is within the limit.
    pub fn check(self, state: &State, value: &Value) -> Result<Value, Error> {
        let mut count = ItemCount { state, items: 0, items_max: self.items_max };
        count.add(value, 0)?;
        Ok(value.clone())
    }

    /// Returns the value if it is within the limit and contains no namespace. Otherwise a namespace could be made to contain
    /// itself, and rendering it would not terminate.
    pub fn check_attribute(self, state: &State, value: &Value) -> Result<Value, Error> {
        let value = self.check(state, value)?;
        if holds_namespace(&value, 0) {
            return Err(rejection("a namespace cannot be stored in a namespace"));
        }
        Ok(value)
    }
}

/// Values nested deeper than this are rejected.
const NESTING_MAX: usize = 100;

struct ItemCount<'s> {
    state: &'s State<'s, 's>,
    items: usize,
    items_max: usize,
}

impl ItemCount<'_> {
    fn add(&mut self, value: &Value, nesting: usize) -> Result<(), Error> {
        const ITEMS_PER_FUEL: usize = 64;
        if nesting > NESTING_MAX {
            return Err(rejection(&format!("a value is nested deeper than {NESTING_MAX} levels")));
        }
        for item in children(value) {
            self.items += 1;
            if self.items > self.items_max {
                return Err(rejection(&format!("a value holds more than {} items in all", self.items_max)));
            }
            if self.items.is_multiple_of(ITEMS_PER_FUEL) {
                self.state.consume_fuel(1)?;
            }
            self.add(&item, nesting + 1)?;
        }
        Ok(())
    }
}

fn holds_namespace(value: &Value, nesting: usize) -> bool {
    // The engine does not export the type.
    let is_namespace = value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"));
    is_namespace
        || (nesting <= NESTING_MAX && children(value).any(|item| holds_namespace(&item, nesting + 1)))
}

/// The items of a list, or the values of a mapping.
fn children(value: &Value) -> impl Iterator<Item = Value> {
    let is_map = value.kind() == ValueKind::Map;
    let items = match value.kind() {
        ValueKind::Seq | ValueKind::Map => value.try_iter().ok(),
        _ => None,
    };
    items
        .into_iter()
        .flatten()
        .filter_map(move |item| if is_map { value.get_item(&item).ok() } else { Some(item) })
}

fn rejection(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_owned())
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

    /// The position of `closing` outside strings, and for `}}` outside brackets, as in the engine's own lexer.
    fn end(mut self, closing: &str) -> Option<usize> {
        loop {
            if self.text[self.position..].starts_with(closing) && (self.depth == 0 || closing != "}}") {
                return Some(self.position);
            }
            self.advance()?;
        }
    }

    /// The start and end of the first of `words` outside strings and brackets.
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

    /// Whether there are more than `limit` tokens; a string literal is one.
    fn exceed(mut self, limit: usize) -> bool {
        let mut count = 0;
        while count <= limit {
            let word = self.word();
            self.position += word.len();
            let is_space = self.text[self.position..].starts_with(char::is_whitespace);
            count += usize::from(!word.is_empty()) + usize::from(!is_space);
            if self.advance().is_none() {
                return false;
            }
        }
        true
    }

    /// The position of `wanted` outside strings and brackets.
    fn find_char(mut self, wanted: char) -> Option<usize> {
        loop {
            if self.depth == 0 && self.text[self.position..].starts_with(wanted) {
                return Some(self.position);
            }
            self.advance()?;
        }
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
                "{% for a in ( f(x if y else z)[1:] )|python_iterable if a recursive %}{%- set a = (a)|size_limited_value %}",
            ),
            ("{% for a in ' if in %}' ~ b %}", "{% for a in ( ' if in %}' ~ b )|python_iterable %}"),
            ("{% for inner in iffy %}", "{% for inner in ( iffy )|python_iterable %}"),
        ];
        for (source, expected) in cases {
            assert_eq!(rewrite(source).unwrap(), expected);
        }
    }

    #[test]
    fn assignments_pass_through_a_filter() {
        let cases = [
            ("{%- set a = b -%}", "{%- set a = ( b )|size_limited_value -%}"),
            ("{% set ns.a = b == c %}", "{% set ns.a = ( b == c )|size_limited_attribute %}"),
            ("{% set a, b = 1, 2 %}", "{% set a, b = ( 1, 2 )|size_limited_value %}"),
            ("{% set a %}", "{% set a %}"),
            ("{% set a | f(x=1) %}", "{% set a | f(x=1) %}"),
        ];
        for (source, expected) in cases {
            assert_eq!(rewrite(source).unwrap(), expected);
        }
    }

    #[test]
    fn bound_names_pass_through_a_filter() {
        let limit = |name| format!("{{%- set {name} = ({name})|size_limited_value %}}");
        for (tag, names) in [
            ("{% macro m(a, b=f(1, 2)) %}", &["a", "b"][..]),
            ("{% macro m() %}", &[]),
            ("{% call(x) m(y) %}", &["x"]),
            ("{% call m(y) %}", &[]),
            ("{% with a = [b, c], d = 1 %}", &["a", "d"]),
        ] {
            let limits: String = names.iter().map(limit).collect();
            assert_eq!(rewrite(tag).unwrap(), format!("{tag}{limits}"));
        }
        let recursive = rewrite("{% for (k, v) in a recursive -%}").unwrap();
        assert!(
            recursive
                .ends_with("{%- set k = (k)|size_limited_value -%}{%- set v = (v)|size_limited_value -%}"),
            "{recursive}"
        );
    }

    #[test]
    fn generation_becomes_a_scope() {
        assert_eq!(rewrite("{%- generation -%}x{% endgeneration %}").unwrap(), "{%- with -%}x{% endwith %}");
    }

    #[test]
    fn everything_else_stays() {
        let cases = [
            "plain { text } {{ x }} {{ '{% for a in b %}' }} {{ {'a': {'b': 1}}['a'] }}",
            "{# {% for a in b %} #}{% setting for_x = 1 %}{% generation_x %}",
            "{% raw %}{% for a in b %}{% generation %}{{ {% '{% endraw %}",
            "unfinished {% for a in b",
            "unfinished {{ 'a",
            "unfinished {# a",
            "{% for a %}",
            "{",
        ];
        for source in cases {
            assert_eq!(rewrite(source).unwrap(), source);
        }
        let raw = "{% raw %}{% for a in b %}{%- endraw %}";
        assert_eq!(
            rewrite(&format!("{raw}{{% set a = b %}}")).unwrap(),
            format!("{raw}{{% set a = ( b )|size_limited_value %}}")
        );
    }

    #[test]
    fn too_long_tags_are_rejected() {
        assert!(rewrite(&format!("{{{{ {}1 }}}}", "-".repeat(990))).is_ok());
        assert!(rewrite(&format!("{{{{ '{}' }}}}", "-".repeat(5000))).is_ok());
        let error = rewrite(&format!("\n{{{{ 1{} }}}}", "|f".repeat(1000))).unwrap_err();
        assert!(matches!(error, crate::TemplateError::Syntax { line: 2, .. }));
        assert!(rewrite(&("{% if a %}".to_owned() + &"{% elif b %}".repeat(501))).is_err());
    }
}
