//! The automaton of a regular expression, and whether the longest match of one could cut off another.

use super::ast::{Node, Rules};
use super::class::CharClass;
use super::sets::ByteSet;
use std::collections::HashSet;

/// States and edges of one automaton. Larger expressions are split.
const MAX_SIZE: usize = 20_000;

/// The position automaton of a regular expression (Glushkov 1961): a state per character class, and edges to the states
/// that may come next.
pub(super) struct Automaton {
    states: Vec<State>,
    starts: Vec<usize>,
    /// The bytes that a match can start with.
    pub first_bytes: ByteSet,
}

struct State {
    class: CharClass,
    first_bytes: ByteSet,
    next: Vec<usize>,
    is_accepting: bool,
}

/// What an expression under construction starts and ends with.
struct Fragment {
    first: Vec<usize>,
    last: Vec<usize>,
    is_nullable: bool,
}

struct Builder<'r> {
    rules: &'r Rules,
    states: Vec<State>,
    /// States and edges that may still be added.
    budget: usize,
}

impl Automaton {
    /// The automaton of a node that uses regular rules only; `None` if it would be too large.
    pub fn new(node: &Node, rules: &Rules) -> Option<Self> {
        let mut builder = Builder { rules, states: Vec::new(), budget: MAX_SIZE };
        let Fragment { first, last, .. } = builder.fragment(node)?;
        let mut states = builder.states;
        last.into_iter().for_each(|state| states[state].is_accepting = true);
        let mut first_bytes = ByteSet::default();
        for &state in &first {
            first_bytes.extend(states[state].first_bytes);
        }
        Some(Self { states, starts: first, first_bytes })
    }

    /// Whether a whole match of `self` could be continued, as a match of `longer`, with one of the bytes `follow`. A lexer
    /// that takes the longest match would then miss that `self` has ended. When there are more than `budget` cases to look
    /// at, the answer is yes.
    pub fn is_cut_off_by(&self, longer: &Self, follow: &ByteSet, budget: &mut usize) -> bool {
        self.any_common_text(longer, budget, |left, right| {
            let continues = |next: &usize| longer.states[*next].first_bytes.intersects(follow);
            left.is_accepting && right.next.iter().any(continues)
        })
    }

    /// Whether a text that is not empty matches both. When there are more than `budget` cases to look at, the answer is yes.
    pub fn matches_the_same(&self, other: &Self, budget: &mut usize) -> bool {
        self.any_common_text(other, budget, |left, right| left.is_accepting && right.is_accepting)
    }

    /// Whether a condition holds for two states that a common text leads to.
    fn any_common_text(
        &self,
        other: &Self,
        budget: &mut usize,
        is_found: impl Fn(&State, &State) -> bool,
    ) -> bool {
        let pairs = |left: &[usize], right: &[usize]| -> Vec<(usize, usize)> {
            left.iter().flat_map(|&left| right.iter().map(move |&right| (left, right))).collect()
        };
        let mut stack = pairs(&self.starts, &other.starts);
        let mut seen: HashSet<(usize, usize)> = stack.iter().copied().collect();
        while let Some((left, right)) = stack.pop() {
            let (left, right) = (&self.states[left], &other.states[right]);
            if !left.first_bytes.intersects(&right.first_bytes) || !left.class.intersects(&right.class) {
                continue;
            }
            if is_found(left, right) {
                return true;
            }
            let next = pairs(&left.next, &right.next);
            if *budget < next.len() {
                *budget = 0;
                return true;
            }
            *budget -= next.len();
            stack.extend(next.into_iter().filter(|pair| seen.insert(*pair)));
        }
        false
    }
}

impl Builder<'_> {
    fn spend(&mut self, size: usize) -> Option<()> {
        self.budget = self.budget.checked_sub(size)?;
        Some(())
    }

    fn fragment(&mut self, node: &Node) -> Option<Fragment> {
        self.spend(1)?;
        match node {
            Node::Class(class) => self.state(class.clone()),
            Node::Literal(text) => {
                let mut all = Fragment { first: vec![], last: vec![], is_nullable: true };
                for c in text.chars() {
                    let state = self.state(CharClass::single(c))?;
                    all = self.join(all, state)?;
                }
                Some(all)
            }
            Node::Rule(rule) => self.fragment(&self.rules.rules[*rule].body),
            Node::Token(_) => None,
            Node::Sequence(nodes) => {
                let mut all = Fragment { first: vec![], last: vec![], is_nullable: true };
                for node in nodes {
                    let node = self.fragment(node)?;
                    all = self.join(all, node)?;
                }
                Some(all)
            }
            Node::Alternatives(nodes) => {
                let mut all = Fragment { first: vec![], last: vec![], is_nullable: false };
                for node in nodes {
                    let node = self.fragment(node)?;
                    all.first.extend(node.first);
                    all.last.extend(node.last);
                    all.is_nullable |= node.is_nullable;
                }
                Some(all)
            }
            Node::Repeat { node, min, max } => self.repeat(node, *min, *max),
        }
    }

    fn state(&mut self, class: CharClass) -> Option<Fragment> {
        self.spend(1)?;
        let index = self.states.len();
        let first_bytes = ByteSet::first_bytes(class.ranges());
        self.states.push(State { class, first_bytes, next: vec![], is_accepting: false });
        Some(Fragment { first: vec![index], last: vec![index], is_nullable: false })
    }

    fn connect(&mut self, last: &[usize], first: &[usize]) -> Option<()> {
        self.spend(last.len().saturating_mul(first.len()))?;
        for &state in last {
            self.states[state].next.extend(first);
        }
        Some(())
    }

    fn join(&mut self, mut left: Fragment, mut right: Fragment) -> Option<Fragment> {
        self.connect(&left.last, &right.first)?;
        if left.is_nullable {
            left.first.extend(&right.first);
        }
        if right.is_nullable {
            right.last.extend(left.last);
        }
        self.spend(left.first.len() + right.last.len())?;
        let is_nullable = left.is_nullable && right.is_nullable;
        Some(Fragment { first: left.first, last: right.last, is_nullable })
    }

    fn repeat(&mut self, node: &Node, min: u32, max: Option<u32>) -> Option<Fragment> {
        let mut all = Fragment { first: vec![], last: vec![], is_nullable: true };
        for _ in 0..min {
            let copy = self.fragment(node)?;
            all = self.join(all, copy)?;
        }
        let mut tail = match max {
            None => {
                let copy = self.fragment(node)?;
                self.connect(&copy.last, &copy.first)?;
                copy
            }
            Some(max) => self.at_most(node, max - min)?,
        };
        tail.is_nullable = true;
        self.join(all, tail)
    }

    /// At most so many copies: each follows the one before only, so that there are few edges.
    fn at_most(&mut self, node: &Node, count: u32) -> Option<Fragment> {
        let mut all = Fragment { first: vec![], last: vec![], is_nullable: true };
        let mut previous: Option<Vec<usize>> = None;
        for _ in 0..count {
            let copy = self.fragment(node)?;
            match previous {
                None => all.first = copy.first,
                Some(last) => self.connect(&last, &copy.first)?,
            }
            all.last.extend(&copy.last);
            previous = Some(copy.last);
        }
        Some(all)
    }
}
