//! Jinja, with the semantics of Python's jinja2 as transformers configures it: `ImmutableSandboxedEnvironment`, `trim_blocks`,
//! `lstrip_blocks`, loop controls, `{% generation %}` and its own `tojson`.
//!
//! [`parse`] turns a template into a tree ([`ast`]) and resolves its variables ([`symbols`]); [`render`] runs it. What Python
//! would reject is an error, and so is what this engine does not do, which it names. From the bottom up: [`value`],
//! [`context`] (budgets), [`compare`], [`number`], [`write`], [`access`], [`iterate`], [`format`], [`operators`],
//! [`text_methods`], [`methods`], [`filters`], [`checks`] (tests), [`functions`], [`render`].

mod access;
mod ast;
mod checks;
mod compare;
mod context;
mod error;
mod filters;
mod format;
mod functions;
mod iterate;
mod lexer;
mod methods;
mod number;
mod operators;
mod parser;
mod render;
mod symbols;
mod text_methods;
mod unicode;
mod unknown;
mod value;
mod write;

pub(crate) use ast::Template;
pub(crate) use context::Budget;
pub(crate) use error::{Error, ErrorKind};
pub(crate) use render::render;

/// Parses a template.
pub(crate) fn parse(source: &str) -> error::Result<Template> {
    let mut template = parser::parse(source)?;
    unknown::check(&template.body, false)?;
    symbols::resolve(&mut template)?;
    Ok(template)
}
