//! Whether a text is in the language of a GBNF grammar, by the definition, and random texts of the language. Shares only the
//! parser with what it checks.

use super::Random;
use std::collections::{BTreeSet, HashMap, HashSet};
use verbatim_grammar::gbnf::{Node, Rules};

type Ends = BTreeSet<usize>;

/// Whether the root matches the whole text.
pub fn matches(rules: &Rules, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let mut matcher =
        Matcher { rules, text: &text, known: HashMap::new(), visited: HashSet::new(), grown: true };
    // Where rules lead back to themselves, each pass starts from what the last one has found.
    while std::mem::take(&mut matcher.grown) {
        matcher.visited.clear();
        if matcher.ends(&Node::Rule(rules.root), 0).contains(&text.len()) {
            return true;
        }
    }
    false
}

struct Matcher<'a> {
    rules: &'a Rules,
    text: &'a [char],
    /// Where matches of a rule end that start somewhere, as far as known.
    known: HashMap<(usize, usize), Ends>,
    visited: HashSet<(usize, usize)>,
    grown: bool,
}

impl Matcher<'_> {
    fn ends(&mut self, node: &Node, start: usize) -> Ends {
        match node {
            Node::Class(class) => {
                let matches = self.text.get(start).is_some_and(|c| class.contains(*c));
                if matches { Ends::from([start + 1]) } else { Ends::new() }
            }
            Node::Literal(text) => {
                let literal: Vec<char> = text.chars().collect();
                let matches = self.text[start..].starts_with(&literal);
                if matches { Ends::from([start + literal.len()]) } else { Ends::new() }
            }
            Node::Rule(rule) => self.rule_ends(*rule, start),
            Node::Token(_) => panic!("tokens are not characters"),
            Node::Sequence(nodes) => {
                let mut ends = Ends::from([start]);
                for node in nodes {
                    ends = ends.into_iter().flat_map(|start| self.ends(node, start)).collect();
                }
                ends
            }
            Node::Alternatives(nodes) => nodes.iter().flat_map(|node| self.ends(node, start)).collect(),
            Node::Repeat { node, min, max } => self.repeat_ends(node, *min, *max, start),
        }
    }

    fn rule_ends(&mut self, rule: usize, start: usize) -> Ends {
        let key = (rule, start);
        if self.visited.insert(key) {
            let found = self.ends(&self.rules.rules[rule].body, start);
            let known = self.known.entry(key).or_default();
            let before = known.len();
            known.extend(found);
            self.grown |= known.len() > before;
        }
        self.known.get(&key).cloned().unwrap_or_default()
    }

    fn repeat_ends(&mut self, node: &Node, min: u32, max: Option<u32>, start: usize) -> Ends {
        let mut all = Ends::new();
        let mut current = Ends::from([start]);
        for count in 0.. {
            if count >= min {
                let before = all.len();
                all.extend(&current);
                if all.len() == before && count > min {
                    break;
                }
            }
            if current.is_empty() || max.is_some_and(|max| count >= max) {
                break;
            }
            current = current.into_iter().flat_map(|start| self.ends(node, start)).collect();
        }
        all
    }
}

/// A random text of the language. Beyond a depth, it takes the alternatives that end soonest.
pub fn generate(rules: &Rules, random: &mut Random) -> String {
    let mut heights = vec![usize::MAX; rules.rules.len()];
    loop {
        let before = heights.clone();
        for (index, rule) in rules.rules.iter().enumerate() {
            heights[index] = heights[index].min(height(&rule.body, &before).saturating_add(1));
        }
        if heights == before {
            break;
        }
    }
    let mut text = String::new();
    Generator { rules, heights, random }.write(&Node::Rule(rules.root), 12, &mut text);
    text
}

fn height(node: &Node, heights: &[usize]) -> usize {
    match node {
        Node::Class(_) | Node::Literal(_) | Node::Token(_) => 0,
        Node::Rule(rule) => heights[*rule],
        Node::Sequence(nodes) => nodes.iter().map(|node| height(node, heights)).max().unwrap_or(0),
        Node::Alternatives(nodes) => nodes.iter().map(|node| height(node, heights)).min().unwrap_or(0),
        Node::Repeat { node, min, .. } => {
            if *min == 0 {
                0
            } else {
                height(node, heights)
            }
        }
    }
}

struct Generator<'a> {
    rules: &'a Rules,
    heights: Vec<usize>,
    random: &'a mut Random,
}

impl Generator<'_> {
    fn write(&mut self, node: &Node, depth: usize, text: &mut String) {
        match node {
            Node::Class(class) => {
                let (first, last) = *self.random.choose(class.ranges());
                let codes = first as u32..=last as u32;
                let code = first as u32 + self.random.below(codes.count().min(100)) as u32;
                text.push(char::from_u32(code).unwrap_or(first));
            }
            Node::Literal(literal) => text.push_str(literal),
            Node::Rule(rule) => {
                let body = &self.rules.rules[*rule].body;
                self.write(body, depth.saturating_sub(1), text);
            }
            Node::Token(_) => panic!("tokens are not characters"),
            Node::Sequence(nodes) => nodes.iter().for_each(|node| self.write(node, depth, text)),
            Node::Alternatives(nodes) => {
                let node = match depth {
                    0 => nodes.iter().min_by_key(|node| height(node, &self.heights)).unwrap(),
                    _ => self.random.choose(nodes),
                };
                self.write(node, depth, text);
            }
            Node::Repeat { node, min, max } => {
                let extra = if depth == 0 { 0 } else { self.random.below(4) as u32 };
                let count = max.unwrap_or(u32::MAX).min(min + extra);
                (0..count).for_each(|_| self.write(node, depth, text));
            }
        }
    }
}
