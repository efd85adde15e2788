//! Finds the rules that are regular expressions, and rewrites simple recursion as repetition.

use super::ast::{Node, Rules};
use super::check::used_rules;

/// Which rules are regular expressions: they use regular rules only and no tokens. A rule that uses itself at the end of
/// its alternatives only, or at the start only, is rewritten to a repetition: `ws ::= " " ws | ""` is `" "*`.
pub(super) fn mark_regular(rules: &mut Rules) -> Vec<bool> {
    let count = rules.rules.len();
    let mut is_regular = vec![false; count];
    let mut users = vec![Vec::new(); count];
    let mut missing = vec![0; count];
    for (index, rule) in rules.rules.iter().enumerate() {
        for used in used_rules(&rule.body).into_iter().filter(|used| *used != index) {
            users[used].push(index);
            missing[index] += 1;
        }
    }
    let mut ready: Vec<usize> = (0..count).filter(|index| missing[*index] == 0).collect();
    while let Some(index) = ready.pop() {
        let body = &rules.rules[index].body;
        if has_token(body) {
            continue;
        }
        if uses(body, index) {
            let Some(body) = without_recursion(body, index) else { continue };
            rules.rules[index].body = body;
        }
        is_regular[index] = true;
        for &user in &users[index] {
            missing[user] -= 1;
            if missing[user] == 0 {
                ready.push(user);
            }
        }
    }
    is_regular
}

fn has_token(node: &Node) -> bool {
    matches!(node, Node::Token(_)) || node.children().iter().any(has_token)
}

fn uses(node: &Node, rule: usize) -> bool {
    matches!(node, Node::Rule(used) if *used == rule) || node.children().iter().any(|node| uses(node, rule))
}

/// Where a rule uses itself.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Start,
    End,
}

/// A rule's body, split at its recursion: `looping` is what stands beside each use of the rule, `ending` is all the rest.
#[derive(Default)]
struct Halves {
    looping: Vec<Node>,
    ending: Vec<Node>,
}

fn without_recursion(body: &Node, rule: usize) -> Option<Node> {
    [Side::End, Side::Start].into_iter().find_map(|side| {
        let Halves { looping, ending } = halves(body, rule, side)?;
        let looping = Node::Repeat { node: Box::new(Node::alternatives(looping)), min: 0, max: None };
        let ending = Node::alternatives(ending);
        Some(Node::Sequence(match side {
            Side::End => vec![looping, ending],
            Side::Start => vec![ending, looping],
        }))
    })
}

fn halves(node: &Node, rule: usize, side: Side) -> Option<Halves> {
    if !uses(node, rule) {
        return Some(Halves { looping: vec![], ending: vec![node.clone()] });
    }
    match node {
        Node::Rule(_) => Some(Halves { looping: vec![Node::EMPTY], ending: vec![] }),
        Node::Alternatives(nodes) => {
            let mut all = Halves::default();
            for node in nodes {
                let Halves { looping, ending } = halves(node, rule, side)?;
                all.looping.extend(looping);
                all.ending.extend(ending);
            }
            Some(all)
        }
        Node::Sequence(nodes) => {
            let (outer, rest) = match side {
                Side::End => nodes.split_last()?,
                Side::Start => nodes.split_first()?,
            };
            if rest.iter().any(|node| uses(node, rule)) {
                return None;
            }
            let join = |part: Vec<Node>| {
                let part = (!part.is_empty()).then(|| Node::alternatives(part))?;
                Some(Node::Sequence(match side {
                    Side::End => [rest, &[part]].concat(),
                    Side::Start => [&[part], rest].concat(),
                }))
            };
            let Halves { looping, ending } = halves(outer, rule, side)?;
            Some(Halves {
                looping: join(looping).into_iter().collect(),
                ending: join(ending).into_iter().collect(),
            })
        }
        Node::Repeat { node, min: 0, max: Some(1) } => {
            let mut inner = halves(node, rule, side)?;
            inner.ending.push(Node::EMPTY);
            Some(inner)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn regular_rules(text: &str) -> Vec<String> {
        let mut rules = parse(text).unwrap();
        let is_regular = mark_regular(&mut rules);
        let names = rules.rules.iter().zip(is_regular).filter(|(_, is_regular)| *is_regular);
        let mut names: Vec<String> = names.map(|(rule, _)| rule.name.clone()).collect();
        names.sort();
        names
    }

    #[test]
    fn recursion_at_one_side_is_repetition() {
        assert_eq!(regular_rules("root ::= ws\nws ::= ([ \\t\\n] ws)?"), ["root", "ws"]);
        assert_eq!(regular_rules("root ::= root \",\" [a-z] | [a-z]"), ["root"]);
        assert_eq!(regular_rules("root ::= \"a\" (root | \"b\" root) | \"c\""), ["root"]);
    }

    #[test]
    fn other_recursion_and_tokens_are_not_regular() {
        assert!(regular_rules("root ::= \"(\" root \")\" | \"\"").is_empty());
        assert!(regular_rules("root ::= root \"a\" | \"b\" root | \"c\"").is_empty());
        assert_eq!(regular_rules("root ::= a | b\na ::= b \"x\"\nb ::= a \"y\" | d\nd ::= \"z\""), ["d"]);
        assert!(regular_rules("root ::= <think> .*").is_empty());
    }
}
