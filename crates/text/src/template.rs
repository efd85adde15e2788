//! Chat templates: the Jinja program in a model file that turns messages into a prompt.
//!
//! Templates are written for Python's Jinja2 as the `transformers` library configures it, so this engine (minijinja) is configured
//! and extended to give the same text. What it cannot render is an error, never replaced by a different template.

use crate::dialect::{self, SizeLimit};
use crate::error::TemplateError;
use crate::python;
use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use serde_json::Value as Json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use thiserror::Error;

/// The name of the template inside its environment.
const NAME: &str = "chat_template";
/// The longest template that is compiled. The longest in use are below 50 KB.
const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Fuel budget of one rendering, in minijinja's unit: about one instruction or 64 bytes of data. A long conversation needs
/// some thousands, beside what its own size costs.
const FUEL: u64 = 2_000_000;
/// Additional fuel for each byte of the context: templates copy and split messages several times.
const FUEL_PER_CONTEXT_BYTE: u64 = 4;
/// The most items that a value assigned in a template may hold, beside twice what the context holds.
const VALUE_ITEMS_MAX: usize = 10_000;

/// Where `strftime_now` takes the time from.
#[derive(Debug, Clone, Copy, Default)]
pub enum Clock {
    /// The system's clock and time zone.
    #[default]
    System,
    /// Always this time. For tests and reproducible prompts.
    Fixed(DateTime),
}

/// A compiled chat template. It is immutable and can be shared between threads.
///
/// A template comes with a model file, so it is trusted no more than that. Rendering has a budget of work and memory
/// that grows with the conversation; nesting, the length of tags and the size of values bound to names are bounded.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// Compiles a template that reads the system's clock.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] and [`TemplateError::TooLong`].
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        Self::with_clock(source, Clock::System)
    }

    /// Compiles a template that reads the given clock.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] and [`TemplateError::TooLong`].
    pub fn with_clock(source: &str, clock: Clock) -> Result<Self, TemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(TemplateError::TooLong { bytes: source.len(), limit: SOURCE_BYTES_MAX });
        }
        let mut environment = environment(clock)?;
        let source = dialect::rewrite(source)?;
        check_lines(&source)?;
        environment.add_template_owned(NAME, source).map_err(compile_error)?;
        Ok(Self { environment })
    }

    /// Renders the prompt. `context` is an object with the template's variables: `messages`, `add_generation_prompt`,
    /// `bos_token`, `eos_token`, and where used `tools`, `documents`, `enable_thinking` ... A variable that is `null`
    /// is defined, with the value None; one that is absent is undefined.
    ///
    /// # Errors
    /// [`TemplateError::Raised`] with the template's own message; [`TemplateError::Render`] where Python would raise an
    /// error of its own; [`TemplateError::OutOfBudget`] for a template that does not terminate.
    pub fn render(&self, context: &Json) -> Result<String, TemplateError> {
        if !context.is_object() {
            return Err(TemplateError::ContextNotAnObject);
        }
        // Clones share everything but the few settings.
        let mut environment = self.environment.clone();
        let size = ContextSize::new(context);
        environment
            .set_fuel(Some(FUEL.saturating_add(FUEL_PER_CONTEXT_BYTE.saturating_mul(size.bytes as u64))));
        let limit = SizeLimit { items_max: VALUE_ITEMS_MAX.saturating_add(2 * size.items) };
        environment.add_filter(dialect::SIZE_LIMIT_FILTER, move |state: &State, value: &Value| {
            limit.check(state, value)
        });
        environment.add_filter(dialect::ATTRIBUTE_SIZE_LIMIT_FILTER, move |state: &State, value: &Value| {
            limit.check_attribute(state, value)
        });
        let template = environment.get_template(NAME).map_err(render_error)?;
        // The engine divides by the number of `loop.cycle`'s arguments; other panics are also caused by the template and must not
        // crash the process.
        let rendered = catch_unwind(AssertUnwindSafe(|| template.render(Value::from(Serde(context)))));
        let failed = |_| TemplateError::Render { line: 0, reason: "the template engine panicked".into() };
        rendered.map_err(failed)?.map_err(render_error)
    }
}

/// Turns the arguments of tool calls from JSON text, as OpenAI's API has them, into the objects that templates expect:
/// in each of `messages`, `tool_calls[].function.arguments`. Empty text becomes an empty object. Text that is not a
/// JSON object stays as it is, for the template to render or reject.
pub fn normalise_tool_arguments(messages: &mut Json) {
    let messages = messages.as_array_mut().into_iter().flatten();
    let calls = messages.filter_map(|message| message.get_mut("tool_calls")?.as_array_mut()).flatten();
    for arguments in calls.filter_map(|call| call.get_mut("function")?.get_mut("arguments")) {
        let parsed = match arguments.as_str().map(str::trim) {
            Some("") => Some(Json::Object(serde_json::Map::new())),
            Some(text) => serde_json::from_str(text).ok().filter(Json::is_object),
            None => None,
        };
        if let Some(parsed) = parsed {
            *arguments = parsed;
        }
    }
}

fn environment(clock: Clock) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    let syntax =
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(compile_error)?;
    environment.set_syntax(syntax);
    // Prompts are not HTML.
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|output, state, value| {
        let text = python::str(state, value)?;
        output.write_str(&text).map_err(Error::from)
    });
    environment.set_unknown_method_callback(python::call_method);
    environment.add_filter("tojson", python::to_json);
    environment.add_filter("string", |state: &State, value: &Value| python::str(state, value));
    environment.add_filter(dialect::ITERABLE_FILTER, dialect::iterable);
    environment.add_filter("pprint", |state: &State, value: &Value| python::str(state, value));
    environment.remove_global("debug");
    // Python's Jinja has no such filters, and they build values out of values without counting what that costs.
    environment.remove_filter("zip");
    environment.remove_filter("chain");
    environment.add_test("sequence", python::is_sequence);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(RaisedException(message)))
    });
    environment.add_function("strftime_now", move |format: &str| strftime(clock, format));
    Ok(environment)
}

/// The engine counts lines and columns in 16 bits, and overflows.
fn check_lines(source: &str) -> Result<(), TemplateError> {
    const LIMIT: usize = 60_000;
    let too_long = source.lines().position(|line| line.len() > LIMIT);
    let too_many = source.lines().nth(LIMIT).map(|_| LIMIT);
    match too_long.or(too_many) {
        Some(index) => {
            let reason = format!("more than {LIMIT} lines, or bytes in a line, are not supported");
            Err(TemplateError::Syntax { line: index + 1, reason })
        }
        None => Ok(()),
    }
}

/// The error that `raise_exception` travels as.
#[derive(Debug, Error)]
#[error("{0}")]
struct RaisedException(String);

fn strftime(clock: Clock, format: &str) -> Result<String, Error> {
    const FORMAT_BYTES_MAX: usize = 1024;
    if format.len() > FORMAT_BYTES_MAX {
        let message = format!("the format of strftime_now is longer than {FORMAT_BYTES_MAX} bytes");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let time = match clock {
        Clock::System => BrokenDownTime::from(&jiff::ZonedDateTime::now()),
        Clock::Fixed(time) => BrokenDownTime::from(time),
    };
    time.to_string(format).map_err(|error| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now({format:?}) cannot be formatted: {error}"),
        )
    })
}

/// About how large a context is.
#[derive(Default)]
struct ContextSize {
    bytes: usize,
    /// The number of values, nested ones included.
    items: usize,
}

impl ContextSize {
    fn new(context: &Json) -> Self {
        let mut size = Self::default();
        size.add(context);
        size
    }

    fn add(&mut self, value: &Json) {
        const VALUE_BYTES: usize = 16;
        self.items += 1;
        self.bytes += VALUE_BYTES;
        match value {
            Json::String(text) => self.bytes += text.len(),
            Json::Array(items) => items.iter().for_each(|item| self.add(item)),
            Json::Object(entries) => {
                self.bytes += entries.keys().map(String::len).sum::<usize>();
                entries.values().for_each(|value| self.add(value));
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }
}

fn compile_error(error: Error) -> TemplateError {
    TemplateError::Syntax { line: error.line().unwrap_or(0), reason: reason(&error) }
}

fn render_error(error: Error) -> TemplateError {
    if let Some(RaisedException(message)) = find_source(&error) {
        return TemplateError::Raised { message: message.clone() };
    }
    let line = error.line().unwrap_or(0);
    if is_out_of_fuel(&error) {
        return TemplateError::OutOfBudget { line };
    }
    TemplateError::Render { line, reason: reason(&error) }
}

/// An error passes through macros and filters as the source of further errors.
fn causes<'e>(error: &'e Error) -> impl Iterator<Item = &'e (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source())
}

fn find_source<T: std::error::Error + 'static>(error: &Error) -> Option<&T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

fn is_out_of_fuel(error: &Error) -> bool {
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<Error>())
        .any(|cause| cause.kind() == ErrorKind::OutOfFuel)
}

/// The innermost cause is the most specific.
fn reason(error: &Error) -> String {
    let innermost = causes(error).filter_map(|cause| cause.downcast_ref::<Error>()).last().unwrap_or(error);
    match innermost.detail() {
        Some(detail) => format!("{}: {detail}", innermost.kind()),
        None => innermost.kind().to_string(),
    }
}
