//! Compiles grammars.

use crate::constraint::Constraint;
use crate::error::GrammarError;
use crate::grammar::Grammar;
use crate::library::{catch, plain_message};
use crate::limits::check_size;
use crate::vocabulary::Vocabulary;
use crate::{gbnf, lark, regex, schema};
use llguidance::Matcher;
use llguidance::api::TopLevelGrammar;

/// llguidance recurses over rules and expressions. Only the pages that it touches are ever used.
const STACK_BYTES: usize = 256 << 20;
/// How llguidance says that a part of a schema contradicts itself. The reason follows.
const UNSATISFIABLE: &str = "Unsatisfiable schema: ";

/// How llguidance says that a grammar exceeds one of its limits, and what is said here.
const LIMITS: [(&str, &str); 9] = [
    ("grammar.symbols.len()", "there are too many symbols"),
    ("(number of symbols) too big", "there are too many symbols"),
    ("schema too large", "there are too many parts"),
    ("initial lexer configuration", TOO_LARGE),
    ("lexer precomputation failed", TOO_LARGE),
    ("too many expressions constructed", TOO_LARGE),
    ("too many states", TOO_LARGE),
    ("Too many items", "too many rules may apply at the same place"),
    ("Unable to determine if regex is empty", "whether anything matches a `pattern` cannot be found out"),
];
const TOO_LARGE: &str = "strings and expressions are too large together";

/// A grammar, compiled for a vocabulary. It is immutable, and can be shared between requests and threads.
pub struct CompiledGrammar {
    vocabulary: Vocabulary,
    /// Before its first token.
    matcher: Matcher,
}

impl CompiledGrammar {
    /// A constraint for one request, before its first token.
    pub fn constraint(&self) -> Constraint {
        Constraint::new(self.vocabulary.clone(), self.matcher.deep_clone())
    }

    /// The vocabulary that the grammar has been compiled for.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }
}

impl std::fmt::Debug for CompiledGrammar {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("CompiledGrammar")
            .field("vocabulary", &self.vocabulary)
            .finish_non_exhaustive()
    }
}

impl Grammar {
    /// Checks a grammar and compiles it for a vocabulary. Takes milliseconds, seconds for the largest grammars, and a
    /// bounded amount of memory.
    ///
    /// # Errors
    /// What cannot be parsed, what is not supported, what is too large or nested too deep, and grammars that no output can
    /// satisfy, where that can be seen.
    pub fn compile(&self, vocabulary: &Vocabulary) -> Result<CompiledGrammar, GrammarError> {
        on_large_stack(self, vocabulary)
    }
}

/// Compiles on a thread of its own, whose stack is large enough for what the checks let through.
fn on_large_stack(grammar: &Grammar, vocabulary: &Vocabulary) -> Result<CompiledGrammar, GrammarError> {
    let kind = grammar.kind();
    let internal = |what: String| GrammarError::Internal { kind, what };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, || compile_here(grammar, vocabulary));
        let thread = thread.map_err(|error| internal(format!("no thread can be started ({error})")))?;
        thread.join().unwrap_or_else(|_| Err(internal("the compiler has panicked".to_owned())))
    })
}

fn compile_here(grammar: &Grammar, vocabulary: &Vocabulary) -> Result<CompiledGrammar, GrammarError> {
    let kind = grammar.kind();
    if let Grammar::Regex(text) | Grammar::Lark(text) | Grammar::Gbnf(text) = grammar {
        check_size(kind, text.len())?;
    }
    let mut converted = None;
    let source = match grammar {
        Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema::prepare(schema)?),
        Grammar::Regex(regex) => TopLevelGrammar::from_lark(regex::to_lark(regex)?),
        Grammar::Lark(lark) => TopLevelGrammar::from_lark(lark::prepare(lark, &vocabulary.tokenizer)?),
        Grammar::Gbnf(text) => {
            let lark = gbnf::to_lark(gbnf::parse(text)?, &vocabulary.tokenizer)?;
            TopLevelGrammar::from_lark(converted.insert(lark).lark.clone())
        }
    };
    let matcher = catch(|| {
        let parser = vocabulary.factory.create_parser(source).map_err(|error| format!("{error:#}"))?;
        let mut matcher = Matcher::new(Ok(parser));
        matcher.compute_mask().map_err(|error| error.to_string())?;
        Ok(matcher)
    });
    let matcher = matcher.map_err(|message| library_error(kind, &message, converted.as_ref()))?;
    Ok(CompiledGrammar { vocabulary: vocabulary.clone(), matcher })
}

/// An error of llguidance. A GBNF grammar has been converted, and its user does not know what llguidance saw.
fn library_error(kind: &'static str, message: &str, converted: Option<&gbnf::Converted>) -> GrammarError {
    let what = plain_message(message).into_owned();
    // A mask without a single token.
    if what.starts_with("NoExtensionBias") {
        let what = "not even a first token is possible; look for parts that contradict each other".to_owned();
        return GrammarError::Empty { kind, what };
    }
    if what.contains(UNSATISFIABLE) {
        return GrammarError::Empty { kind, what: what.replace(UNSATISFIABLE, "") };
    }
    if what.contains("oneOf constraints are not supported") {
        let what =
            "`oneOf` is supported only where no value can match two of its schemas; use `anyOf`".to_owned();
        return GrammarError::Schema { what };
    }
    if let Some(uri) = remote_reference(&what) {
        let what = format!(
            "it refers to `{uri:.200}`, which is not fetched; copy that schema into `$defs`, and refer to it as `#/$defs/...`"
        );
        return GrammarError::Schema { what };
    }
    if let Some((_, limit)) = LIMITS.iter().find(|(message, _)| what.contains(message)) {
        let rule = converted.and_then(|converted| converted.describe(line_and_rest(&what)?.0));
        let what = rule.map_or_else(|| (*limit).to_owned(), |rule| format!("in {rule}, {limit}"));
        return GrammarError::TooComplex { kind, what };
    }
    match kind {
        _ if what.starts_with("panic:") => GrammarError::Internal { kind, what },
        "JSON schema" => GrammarError::Schema { what },
        "regular expression" => GrammarError::Regex { what },
        "Lark grammar" => match line_and_rest(&what) {
            // Without the lines that it quotes, in which schemas have been rewritten.
            Some((line, rest)) => {
                let is_quoted = |line: &&str| {
                    line.split_once(" | ").is_some_and(|(number, _)| number.trim().parse::<usize>().is_ok())
                };
                let rest: Vec<&str> = rest.lines().take_while(|line| !is_quoted(line)).collect();
                GrammarError::Lark { what: format!("line {line}: {}", rest.join("\n")) }
            }
            None => GrammarError::Lark { what },
        },
        // The converted grammar is well-formed, so it can only be too large for llguidance.
        _ => {
            let rule = converted.and_then(|converted| converted.describe(line_and_rest(&what)?.0));
            let what = format!("{} is too large", rule.as_deref().unwrap_or("it"));
            GrammarError::TooComplex { kind, what }
        }
    }
}

/// The line that llguidance complains about, as in `at 3(14): ...`, and what it says.
fn line_and_rest(message: &str) -> Option<(usize, &str)> {
    let (line, rest) = message.strip_prefix("at ").unwrap_or(message).split_once('(')?;
    let (_, rest) = rest.split_once("): ")?;
    Some((line.parse().ok()?, rest))
}

/// The schema outside of a JSON schema that llguidance would have to fetch.
fn remote_reference(message: &str) -> Option<&str> {
    let (_, after) = message.split_once("Resource '")?;
    let (uri, reason) = after.split_once('\'')?;
    reason.contains("is not present in a registry").then_some(uri)
}
