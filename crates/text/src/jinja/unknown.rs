//! Filters and tests that do not exist. Jinja2 finds them as it compiles, except inside of conditions, where it waits for the use.

use super::access::has_word;
use super::ast::{Expression, FilterCall, Node, Statement, StatementKind};
use super::error::{Result, python};
use super::{checks, filters};

/// # Errors
/// If code that no condition guards names a filter or test that does not exist.
pub(crate) fn check(body: &[Statement], is_guarded: bool) -> Result<()> {
    body.iter().try_for_each(|found| statement(found, is_guarded).map_err(|error| error.at(found.line)))
}

fn statement(statement: &Statement, is_guarded: bool) -> Result<()> {
    use StatementKind as S;
    match &statement.kind {
        S::Text(_) | S::Break | S::Continue => Ok(()),
        S::Print(node) | S::Set { value: node, .. } => expression(node, is_guarded),
        S::If { branches, otherwise } => {
            for (test, body) in branches {
                expression(test, true)?;
                check(body, true)?;
            }
            check(otherwise, true)
        }
        S::For(node) => {
            expression(&node.iterable, is_guarded)?;
            node.test.iter().try_for_each(|test| expression(test, false))?;
            check(&node.body, false)?;
            check(&node.otherwise, false)
        }
        S::SetBlock { filters, body, .. } | S::FilterBlock { filters, body, .. } => {
            filters.iter().try_for_each(|call| filter(call, false))?;
            check(body, false)
        }
        S::With { targets, body, .. } => {
            targets.iter().try_for_each(|(_, value)| expression(value, is_guarded))?;
            check(body, false)
        }
        S::Block { body, .. } | S::Generation { body, .. } => check(body, false),
        S::Macro(node) => check(&node.body, false),
        S::Call { block, call } => {
            check(&block.body, false)?;
            expression(call, is_guarded)
        }
    }
}

fn expression(node: &Node, is_guarded: bool) -> Result<()> {
    let is_guarded = is_guarded || matches!(node.kind, Expression::If(_));
    match &node.kind {
        Expression::Filter(_, call) => filter(call, is_guarded)?,
        Expression::Test(_, call) if !is_guarded && !has_word(checks::NAMES, &call.name) => {
            return python("TemplateAssertionError", format!("No test named '{}'.", call.name));
        }
        // A constant decides, so that the rest is never compiled.
        Expression::And(nodes) | Expression::Or(nodes) if nodes.first().is_some_and(is_constant) => {
            return Ok(());
        }
        _ => {}
    }
    node.children().into_iter().try_for_each(|child| expression(child, is_guarded))
}

fn filter(call: &FilterCall, is_guarded: bool) -> Result<()> {
    if !is_guarded && !has_word(filters::NAMES, &call.name) {
        return python("TemplateAssertionError", format!("No filter named '{}'.", call.name))
            .map_err(|error: Box<super::error::Error>| error.at(call.line));
    }
    call.arguments.nodes().try_for_each(|node| expression(node, is_guarded))
}

fn is_constant(node: &Node) -> bool {
    use Expression as E;
    matches!(node.kind, E::None | E::Bool(_) | E::Int(_) | E::Float(_) | E::Text(_))
}
