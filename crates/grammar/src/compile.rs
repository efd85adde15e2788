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

/// The library recurses over rules and expressions. Only the pages that it touches are ever used.
const STACK_BYTES: usize = 256 << 20;
/// How the library says that a part of a schema contradicts itself. The reason follows.
const UNSATISFIABLE: &str = "Unsatisfiable schema: ";

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
    let source = library_grammar(grammar, vocabulary)?;
    let matcher = catch(|| {
        let parser = vocabulary.factory.create_parser(source).map_err(|error| format!("{error:#}"))?;
        let mut matcher = Matcher::new(Ok(parser));
        matcher.compute_mask().map_err(|error| error.to_string())?;
        Ok(matcher)
    });
    let matcher = matcher.map_err(|message| library_error(kind, &message))?;
    Ok(CompiledGrammar { vocabulary: vocabulary.clone(), matcher })
}

/// The grammar in a form that the library takes.
fn library_grammar(grammar: &Grammar, vocabulary: &Vocabulary) -> Result<TopLevelGrammar, GrammarError> {
    if let Grammar::Regex(text) | Grammar::Lark(text) | Grammar::Gbnf(text) = grammar {
        check_size(grammar.kind(), text.len())?;
    }
    Ok(match grammar {
        Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema::prepare(schema)?),
        Grammar::Regex(regex) => TopLevelGrammar::from_lark(regex::to_lark(regex)?),
        Grammar::Lark(lark) => TopLevelGrammar::from_lark(lark::prepare(lark, &vocabulary.tokenizer)?),
        Grammar::Gbnf(text) => {
            TopLevelGrammar::from_lark(gbnf::to_lark(gbnf::parse(text)?, &vocabulary.tokenizer)?)
        }
    })
}

fn library_error(kind: &'static str, message: &str) -> GrammarError {
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
    // How the library says that a grammar has too many symbols.
    if what.contains("grammar.symbols.len()") {
        return GrammarError::TooComplex { kind, what: "it has too many symbols".to_owned() };
    }
    match kind {
        _ if what.starts_with("panic:") => GrammarError::Internal { kind, what },
        "JSON schema" => GrammarError::Schema { what },
        "regular expression" => GrammarError::Regex { what },
        "Lark grammar" => GrammarError::Lark { what },
        // The converted grammar is well-formed, so it can only be too large for the library.
        _ => GrammarError::TooComplex { kind, what },
    }
}
