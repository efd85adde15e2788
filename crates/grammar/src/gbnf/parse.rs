//! Parses GBNF, the grammar notation of llama.cpp.

use super::ast::{Node, Position, Rule, Rules, TokenRef, TokenTerminal};
use super::class::CharClass;
use crate::error::GrammarError;
use std::collections::HashMap;

/// Groups and repetitions within each other. Grammars that people write have a handful.
const MAX_NESTING: usize = 200;
/// The largest bound of a repetition, as in llama.cpp.
const MAX_REPETITION: u32 = 2000;
/// Maximum repetition operators in a row, as in `x+?`.
const MAX_REPETITION_OPERATORS: usize = 8;
/// The number of rules.
const MAX_RULES: usize = 5000;

/// Parses a grammar. Rules may be used before they are defined, and all that are used must be defined.
///
/// # Errors
/// What is not GBNF, with its line and column.
pub fn parse(text: &str) -> Result<Rules, GrammarError> {
    Parser::new(text).rules().map_err(|error| match (error, other_notation(text)) {
        (GrammarError::Gbnf { line, column, what }, Some(hint)) => {
            GrammarError::Gbnf { line, column, what: format!("{what}; {hint}") }
        }
        (error, _) => error,
    })
}

/// A hint where a text without any rule of GBNF looks like another notation.
fn other_notation(text: &str) -> Option<&'static str> {
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text).trim();
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '!' | '?' | '.');
    let is_lark =
        |line: &str| line.starts_with('%') || line.trim_start_matches(is_name).trim_start().starts_with(':');
    if text.contains("::=") {
        None
    } else if text.lines().any(is_lark) {
        Some("if this is Lark, it must begin with a line `%llguidance {}`")
    } else if !text.contains(['\n', '='])
        && text.contains(['[', '(', '{', '\\', '^', '$', '*', '+', '?', '|', '.'])
    {
        Some(
            "if this is a regular expression, use `Grammar::Regex`, or Lark: `%llguidance {}` and, on the next line, `start: /.../`",
        )
    } else {
        None
    }
}

struct Parser<'t> {
    rest: std::str::Chars<'t>,
    position: Position,
    nesting: usize,
    /// Rule name to index.
    indices: HashMap<String, usize>,
    /// Name, body when defined, and where the rule is defined or first used.
    rules: Vec<(String, Option<Node>, Position)>,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str) -> Self {
        Self {
            rest: text.strip_prefix('\u{FEFF}').unwrap_or(text).chars(),
            position: Position { line: 1, column: 1 },
            nesting: 0,
            indices: HashMap::new(),
            rules: Vec::new(),
        }
    }

    fn rules(mut self) -> Result<Rules, GrammarError> {
        self.skip_space(true);
        while self.peek().is_some() {
            self.rule()?;
            self.skip_space(true);
        }
        self.finish()
    }

    fn peek(&self) -> Option<char> {
        self.rest.clone().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        if c == '\n' {
            self.position = Position { line: self.position.line + 1, column: 1 };
        } else {
            self.position.column += 1;
        }
        Some(c)
    }

    fn eat(&mut self, expected: &str) -> bool {
        let is_next = self.rest.as_str().starts_with(expected);
        if is_next {
            expected.chars().for_each(|_| {
                self.next();
            });
        }
        is_next
    }

    fn error<T>(&self, what: impl Into<String>) -> Result<T, GrammarError> {
        Err(self.position.error(what))
    }

    /// What stands here, for a message.
    fn found(&self) -> String {
        self.peek().map_or("the end of the grammar".to_owned(), |c| format!("{c:?}"))
    }

    /// Skips blanks and comments; line ends only if they may stand here.
    fn skip_space(&mut self, with_newlines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => {}
                '\r' | '\n' if with_newlines => {}
                '#' => {
                    while self.peek().is_some_and(|c| !matches!(c, '\r' | '\n')) {
                        self.next();
                    }
                    continue;
                }
                _ => break,
            }
            self.next();
        }
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let position = self.position;
        if self.peek() == Some('|') {
            return self.error("a rule cannot start with `|`; put the `|` at the end of the line before");
        }
        let name = self.name()?;
        self.skip_space(false);
        if !self.eat("::=") {
            return self
                .error(format!("expected `::=` after the rule name `{name}`, found {}", self.found()));
        }
        self.skip_space(true);
        let body = self.alternatives(false)?;
        let index = self.index_of(&name, position)?;
        if self.rules[index].1.is_some() {
            let what = format!("the rule `{name}` is defined twice; rename or remove one of them");
            return Err(position.error(what));
        }
        self.rules[index].1 = Some(body);
        self.rules[index].2 = position;
        match self.peek() {
            None | Some('\r' | '\n') => Ok(()),
            Some(')') => self.error("this `)` closes nothing; remove it or add the `(`"),
            Some(_) => {
                self.error(format!("expected a line end after the rule `{name}`, found {}", self.found()))
            }
        }
    }

    fn name(&mut self) -> Result<String, GrammarError> {
        let is_word = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let name: String = self.rest.clone().take_while(is_word).collect();
        if name.is_empty() {
            return self.error(format!("expected a rule name, found {}", self.found()));
        }
        self.eat(&name);
        Ok(name)
    }

    fn index_of(&mut self, name: &str, position: Position) -> Result<usize, GrammarError> {
        if let Some(&index) = self.indices.get(name) {
            return Ok(index);
        }
        if self.rules.len() == MAX_RULES {
            return self.error(format!("the grammar has more than {MAX_RULES} rules; simplify it"));
        }
        self.indices.insert(name.to_owned(), self.rules.len());
        self.rules.push((name.to_owned(), None, position));
        Ok(self.rules.len() - 1)
    }

    /// Alternatives. In a group, line ends are blanks.
    fn alternatives(&mut self, in_group: bool) -> Result<Node, GrammarError> {
        let mut alternatives = vec![self.sequence(in_group)?];
        while self.eat("|") {
            self.skip_space(true);
            alternatives.push(self.sequence(in_group)?);
        }
        Ok(Node::alternatives(alternatives))
    }

    fn sequence(&mut self, in_group: bool) -> Result<Node, GrammarError> {
        let mut nodes = Vec::new();
        loop {
            self.skip_space(in_group);
            let Some(node) = self.atom()? else { break };
            nodes.push(self.repetitions(node, in_group)?);
        }
        Ok(Node::sequence(nodes))
    }

    fn atom(&mut self) -> Result<Option<Node>, GrammarError> {
        let node = match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.next();
                Node::Class(CharClass::any())
            }
            Some('(') => self.group()?,
            Some('<' | '!') => self.token()?,
            Some('*' | '+' | '?' | '{') => {
                return self.error(format!("{} has nothing before it to repeat", self.found()));
            }
            Some(c) if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') => {
                let position = self.position;
                let name = self.name()?;
                Node::Rule(self.index_of(&name, position)?)
            }
            _ => return Ok(None),
        };
        Ok(Some(node))
    }

    fn group(&mut self) -> Result<Node, GrammarError> {
        let start = self.position;
        self.next();
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return self.error(format!("groups are nested more than {MAX_NESTING} deep; use rules instead"));
        }
        let node = self.alternatives(true)?;
        self.nesting -= 1;
        if !self.eat(")") {
            return match self.peek() {
                None => Err(start.error("this `(` is never closed; add the `)`")),
                Some(_) => self.error(format!("expected `)` or more of the group, found {}", self.found())),
            };
        }
        Ok(node)
    }

    fn repetitions(&mut self, mut node: Node, in_group: bool) -> Result<Node, GrammarError> {
        for _ in 0..=MAX_REPETITION_OPERATORS {
            self.skip_space(in_group);
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.bounds()?,
                _ => return Ok(node),
            };
            self.next();
            node = Node::Repeat { node: Box::new(node), min, max };
        }
        self.error(format!("more than {MAX_REPETITION_OPERATORS} repetition operators in a row; remove some"))
    }

    /// `{m}`, `{m,}` or `{m,n}`, up to its last brace.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        self.next();
        self.skip_space(true);
        let min = self.bound()?;
        self.skip_space(true);
        let mut max = Some(min);
        if self.eat(",") {
            self.skip_space(true);
            max = if self.peek() == Some('}') { None } else { Some(self.bound()?) };
            self.skip_space(true);
        }
        if self.peek() != Some('}') {
            return self
                .error(format!("expected `}}` after the number of repetitions, found {}", self.found()));
        }
        if max.is_some_and(|max| max < min) {
            return self.error("the second number of a repetition must not be below the first");
        }
        Ok((min, max))
    }

    fn bound(&mut self) -> Result<u32, GrammarError> {
        let digits: String = self.rest.clone().take_while(char::is_ascii_digit).collect();
        if digits.is_empty() {
            return self.error(format!("expected a number of repetitions, found {}", self.found()));
        }
        match digits.parse::<u32>() {
            Ok(number) if number <= MAX_REPETITION => {
                self.eat(&digits);
                Ok(number)
            }
            _ => self.error(format!(
                "{digits:.20} repetitions are too many; at most {MAX_REPETITION} are possible, or none given: {{m,}}"
            )),
        }
    }

    fn literal(&mut self) -> Result<Node, GrammarError> {
        let start = self.position;
        self.next();
        let mut text = String::new();
        loop {
            match self.peek() {
                None => return Err(start.error("this string is never closed; add the `\"`")),
                Some('"') => break,
                Some(_) => text.push(self.character()?),
            }
        }
        self.next();
        Ok(if text.is_empty() { Node::EMPTY } else { Node::Literal(text) })
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        let start = self.position;
        self.next();
        let is_negated = self.eat("^");
        let is_open = |parser: &Self| match parser.peek() {
            None => Err(start.error("this `[` is never closed; add the `]`")),
            Some(c) => Ok(c != ']'),
        };
        let mut ranges = Vec::new();
        while is_open(self)? {
            let position = self.position;
            let first = self.character()?;
            let has_range = self.peek() == Some('-') && !self.rest.as_str().starts_with("-]");
            let last = if has_range {
                self.next();
                is_open(self)?;
                self.character()?
            } else {
                first
            };
            if last < first {
                let what = format!("the range from {first:?} to {last:?} is empty; swap its ends");
                return Err(position.error(what));
            }
            ranges.push((first, last));
        }
        self.next();
        let class = CharClass::new(ranges);
        let class = if is_negated { class.negated() } else { class };
        if class.is_empty() {
            let what = "this character class matches no character; put characters into it, or remove it";
            return Err(start.error(what));
        }
        Ok(Node::Class(class))
    }

    /// One character of a string or class, which may be escaped.
    fn character(&mut self) -> Result<char, GrammarError> {
        let start = self.position;
        let Some(c) = self.next() else { return self.error("the grammar ends too early") };
        if c != '\\' {
            return Ok(c);
        }
        let escape = self.next();
        match escape {
            Some('n') => Ok('\n'),
            Some('r') => Ok('\r'),
            Some('t') => Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => Ok(c),
            Some('x') => self.hex(2, start),
            Some('u') => self.hex(4, start),
            Some('U') => self.hex(8, start),
            _ => {
                let what = "unknown escape; there are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xNN \\uNNNN and \\UNNNNNNNN";
                Err(start.error(what))
            }
        }
    }

    fn hex(&mut self, digits: usize, start: Position) -> Result<char, GrammarError> {
        let text: String = self.rest.clone().take(digits).take_while(char::is_ascii_hexdigit).collect();
        if text.len() < digits {
            return Err(start.error(format!("this escape needs {digits} hexadecimal digits")));
        }
        self.eat(&text);
        u32::from_str_radix(&text, 16).ok().and_then(char::from_u32).ok_or_else(|| {
            let what = format!("U+{text} is not a character; write the character itself, or another number");
            start.error(what)
        })
    }

    fn token(&mut self) -> Result<Node, GrammarError> {
        let position = self.position;
        let is_negated = self.eat("!");
        if self.peek() != Some('<') {
            return self
                .error(format!("expected a token such as `<think>` after `!`, found {}", self.found()));
        }
        let is_inner = |c: &char| !matches!(c, '>' | '\r' | '\n');
        let mut text: String = self.rest.clone().take_while(is_inner).collect();
        self.eat(&text);
        if !self.eat(">") {
            return Err(position.error("this token is never closed; add the `>`"));
        }
        text.push('>');
        let number = text.strip_prefix("<[").and_then(|text| text.strip_suffix("]>"));
        let token = match number {
            None => TokenRef::Text(text),
            Some(number) => TokenRef::Id(
                number
                    .parse()
                    .map_err(|_| position.error("a token id is a number, such as in `<[1000]>`"))?,
            ),
        };
        Ok(Node::Token(TokenTerminal { token, is_negated, position }))
    }

    fn finish(self) -> Result<Rules, GrammarError> {
        let start = Position { line: 1, column: 1 };
        if self.rules.is_empty() {
            let what = "the grammar is empty; define a rule `root`, such as: root ::= \"yes\" | \"no\"";
            return Err(start.error(what));
        }
        let mut rules = Vec::with_capacity(self.rules.len());
        for (name, body, position) in self.rules {
            let Some(body) = body else {
                let what = format!("the rule `{name}` is used but never defined; define it: {name} ::= ...");
                return Err(position.error(what));
            };
            rules.push(Rule { name, body, position });
        }
        let Some(&root) = self.indices.get("root") else {
            let what = "there is no rule `root`, where the output starts; name the first rule `root`";
            return Err(start.error(what));
        };
        Ok(Rules { rules, root })
    }
}
