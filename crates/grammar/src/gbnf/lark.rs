//! Writes a grammar over lexemes as Lark.
//!
//! Lark limits how deep groups may nest, so every group becomes a definition of its own, and nothing nests.

use super::ast::{Node, Position, Rules, TokenRef, TokenTerminal};
use super::class::CharClass;
use super::parts::{LexemeGrammar, Part};
use crate::error::GrammarError;
use std::collections::HashSet;
use std::fmt::Write;
use verbatim_text::{SpecialTokens, Tokenizer};

/// A grammar in Lark.
pub(super) struct Printed {
    /// The text, starting at `start`.
    pub text: String,
    /// For each line of the text, the index of the rule that it is for.
    pub rules: Vec<usize>,
}

/// The grammar in Lark.
///
/// # Errors
/// Tokens that the vocabulary does not have.
pub(super) fn print(
    rules: &Rules,
    grammar: &LexemeGrammar,
    tokenizer: &Tokenizer,
) -> Result<Printed, GrammarError> {
    let mut printer = Printer {
        rules,
        grammar,
        tokenizer,
        output: Printed { text: format!("start: r{}\n", rules.root), rules: vec![rules.root] },
        rule: rules.root,
        definitions: 0,
        printed_rules: HashSet::new(),
        printed_lexemes: HashSet::new(),
    };
    for (rule, body) in &grammar.rules {
        printer.rule = *rule;
        let body = printer.alternatives(body)?;
        printer.define(&format!("r{rule}"), &body);
    }
    Ok(printer.output)
}

struct Printer<'g> {
    rules: &'g Rules,
    grammar: &'g LexemeGrammar,
    tokenizer: &'g Tokenizer,
    output: Printed,
    /// The rule that is being printed.
    rule: usize,
    definitions: usize,
    printed_rules: HashSet<usize>,
    printed_lexemes: HashSet<usize>,
}

impl Printer<'_> {
    fn define(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.output.text, "{name}: {body}");
        self.output.rules.push(self.rule);
    }

    /// Defines `body` under a new name, which starts with `kind`.
    fn named(&mut self, kind: char, body: &str) -> String {
        self.definitions += 1;
        let name = format!("{kind}{}", self.definitions);
        self.define(&name, body);
        name
    }

    fn alternatives(&mut self, part: &Part) -> Result<String, GrammarError> {
        let Part::Alternatives(parts) = part else { return self.sequence(part) };
        let parts: Result<Vec<String>, _> = parts.iter().map(|part| self.sequence(part)).collect();
        Ok(parts?.join(" | "))
    }

    fn sequence(&mut self, part: &Part) -> Result<String, GrammarError> {
        let Part::Sequence(parts) = part else { return self.item(part) };
        let parts: Result<Vec<String>, _> = parts.iter().map(|part| self.item(part)).collect();
        let parts = parts?;
        Ok(if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") })
    }

    fn item(&mut self, part: &Part) -> Result<String, GrammarError> {
        match part {
            Part::Rule(rule) => Ok(format!("r{rule}")),
            Part::Token(token) => self.token(token),
            Part::Lexeme(index) => self.lexeme(*index),
            Part::Repeat { part, min, max } => {
                let body = self.alternatives(part)?;
                let name = self.named('g', &body);
                Ok(repeated(&name, *min, *max))
            }
            Part::Sequence(_) | Part::Alternatives(_) => {
                let body = self.alternatives(part)?;
                Ok(self.named('g', &body))
            }
        }
    }

    /// A lexeme's name; for one that has been split, the name of a rule with its parts. A lexeme that may be empty becomes optional, and then matches
    /// other texts only.
    fn lexeme(&mut self, index: usize) -> Result<String, GrammarError> {
        let lexeme = &self.grammar.lexemes[index];
        let is_new = self.printed_lexemes.insert(index);
        if let Some(part) = &lexeme.split {
            let name = format!("s{index}");
            if is_new {
                let body = self.alternatives(part)?;
                self.define(&name, &body);
            }
            return Ok(name);
        }
        let name = format!("L{index}");
        if is_new {
            let mut body = self.regular_alternatives(&lexeme.node);
            if lexeme.is_nullable {
                body = format!("{} & /(?s:.+)/", self.named('T', &body));
            }
            self.define(&name, &body);
        }
        Ok(if lexeme.is_nullable { format!("{name}?") } else { name })
    }

    fn regular_alternatives(&mut self, node: &Node) -> String {
        let Node::Alternatives(nodes) = node else { return self.regular_sequence(node) };
        let nodes: Vec<String> = nodes.iter().map(|node| self.regular_sequence(node)).collect();
        nodes.join(" | ")
    }

    fn regular_sequence(&mut self, node: &Node) -> String {
        let Node::Sequence(nodes) = node else { return self.regular_item(node) };
        let nodes: Vec<String> = nodes.iter().map(|node| self.regular_item(node)).collect();
        if nodes.is_empty() { "\"\"".to_owned() } else { nodes.join(" ") }
    }

    fn regular_item(&mut self, node: &Node) -> String {
        match node {
            Node::Class(class) => format!("/{}/", class_regex(class)),
            Node::Literal(text) => format!("/{}/", text.chars().map(char_regex).collect::<String>()),
            Node::Rule(rule) => {
                if self.printed_rules.insert(*rule) {
                    let user = std::mem::replace(&mut self.rule, *rule);
                    let body = self.regular_alternatives(&self.rules.rules[*rule].body);
                    self.define(&format!("R{rule}"), &body);
                    self.rule = user;
                }
                format!("R{rule}")
            }
            Node::Repeat { node, min, max } => {
                let atom = match &**node {
                    Node::Class(_) | Node::Literal(_) | Node::Rule(_) => self.regular_item(node),
                    node => {
                        let body = self.regular_alternatives(node);
                        self.named('T', &body)
                    }
                };
                repeated(&atom, *min, *max)
            }
            Node::Sequence(_) | Node::Alternatives(_) => {
                let body = self.regular_alternatives(node);
                self.named('T', &body)
            }
            Node::Token(_) => unreachable!("a token is not regular"),
        }
    }

    /// A token by its id; or all tokens but one, and but those that end the output.
    fn token(&self, terminal: &TokenTerminal) -> Result<String, GrammarError> {
        let id = token_id(&terminal.token, terminal.position, self.tokenizer)?;
        let vocab_len = self.tokenizer.vocab_len() as u32;
        if terminal.is_negated {
            let mut excluded: Vec<u32> = (0..vocab_len).filter(|id| self.tokenizer.is_eog(*id)).collect();
            excluded.push(id);
            let excluded: Vec<String> = excluded.iter().map(u32::to_string).collect();
            return Ok(format!("<[^{}]>", excluded.join(",")));
        }
        if self.tokenizer.is_eog(id) {
            let what = "this token ends the output, which it can do at the end of every grammar; remove it";
            return Err(terminal.position.error(what));
        }
        Ok(format!("<[{id}]>"))
    }
}

fn token_id(token: &TokenRef, position: Position, tokenizer: &Tokenizer) -> Result<u32, GrammarError> {
    match token {
        TokenRef::Id(id) if (*id as usize) < tokenizer.vocab_len() => Ok(*id),
        TokenRef::Id(id) => {
            let last = tokenizer.vocab_len() - 1;
            let what = format!("there is no token {id}; the model's token ids end at {last}");
            Err(position.error(what))
        }
        TokenRef::Text(text) => match *tokenizer.encode(text, SpecialTokens::Parse, false) {
            [id] if tokenizer.piece(id) == text.as_bytes() => Ok(id),
            _ => {
                let what = format!(
                    "`{text}` is not one token of this model; write it as text, in quotes: \"{text}\""
                );
                Err(position.error(what))
            }
        },
    }
}

fn repeated(atom: &str, min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (_, Some(0)) => "\"\"".to_owned(),
        (0, None) => format!("{atom}*"),
        (1, None) => format!("{atom}+"),
        (0, Some(1)) => format!("{atom}?"),
        (min, None) => format!("{atom}{{{min},}}"),
        (min, Some(max)) => format!("{atom}{{{min},{max}}}"),
    }
}

/// A character in a regular expression. Letters and digits stand for themselves, all others are safer as numbers.
fn char_regex(c: char) -> String {
    if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\u{{{:X}}}", c as u32) }
}

fn class_regex(class: &CharClass) -> String {
    let ranges = class.ranges().iter().map(|&(first, last)| match first == last {
        true => char_regex(first),
        false => format!("{}-{}", char_regex(first), char_regex(last)),
    });
    format!("[{}]", ranges.collect::<String>())
}
