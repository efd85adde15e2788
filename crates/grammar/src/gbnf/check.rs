//! Finds rules that no finite text can match.

use super::ast::{Node, Rules};
use crate::error::GrammarError;

/// Checks that some finite text matches every rule that the root needs.
///
/// # Errors
/// The first rule that leads back to itself in all of its alternatives.
pub(super) fn check_finite(rules: &Rules) -> Result<(), GrammarError> {
    let is_finite = finite_rules(rules);
    let mut is_reached = vec![false; rules.rules.len()];
    let mut stack = vec![rules.root];
    is_reached[rules.root] = true;
    while let Some(index) = stack.pop() {
        let rule = &rules.rules[index];
        if !is_finite[index] {
            let name = &rule.name;
            let what = format!(
                "the rule `{name}` never ends: each alternative needs it again; add one that does not"
            );
            return Err(rule.position.error(what));
        }
        for used in used_rules(&rule.body) {
            if !std::mem::replace(&mut is_reached[used], true) {
                stack.push(used);
            }
        }
    }
    Ok(())
}

/// Which rules some finite text matches.
fn finite_rules(rules: &Rules) -> Vec<bool> {
    least_fixpoint(rules, true)
}

/// Which rules the empty text matches.
pub(super) fn nullable_rules(rules: &Rules) -> Vec<bool> {
    least_fixpoint(rules, false)
}

/// The rules that hold, where a terminal holds or not: each is looked at again only when a rule that it uses has changed.
fn least_fixpoint(rules: &Rules, terminal: bool) -> Vec<bool> {
    let mut users = vec![Vec::new(); rules.rules.len()];
    for (index, rule) in rules.rules.iter().enumerate() {
        used_rules(&rule.body).into_iter().for_each(|used| users[used].push(index));
    }
    let mut is_true = vec![false; rules.rules.len()];
    let mut queue: Vec<usize> = (0..rules.rules.len()).collect();
    while let Some(index) = queue.pop() {
        if !is_true[index] && holds(&rules.rules[index].body, terminal, &is_true) {
            is_true[index] = true;
            queue.extend(users[index].iter().filter(|&&user| !is_true[user]));
        }
    }
    is_true
}

/// Whether a node holds: all parts of a sequence do, one alternative does, or it can be left out.
pub(super) fn holds(node: &Node, terminal: bool, rules: &[bool]) -> bool {
    match node {
        Node::Class(_) | Node::Literal(_) | Node::Token(_) => terminal,
        Node::Rule(rule) => rules[*rule],
        Node::Sequence(nodes) => nodes.iter().all(|node| holds(node, terminal, rules)),
        Node::Alternatives(nodes) => nodes.iter().any(|node| holds(node, terminal, rules)),
        Node::Repeat { node, min, .. } => *min == 0 || holds(node, terminal, rules),
    }
}

/// The rules that a node refers to, each once.
pub(super) fn used_rules(node: &Node) -> Vec<usize> {
    let mut used = Vec::new();
    let mut stack = vec![node];
    while let Some(node) = stack.pop() {
        if let Node::Rule(rule) = node {
            used.push(*rule);
        }
        stack.extend(node.children());
    }
    used.sort_unstable();
    used.dedup();
    used
}
