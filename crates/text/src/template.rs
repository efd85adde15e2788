//! Chat templates: the Jinja program in a model file that turns messages into a prompt.
//!
//! Templates are written for Python's jinja2 as the `transformers` library configures it, and [`jinja`] has its semantics. What it
//! cannot render is an error, never replaced by a different template.

use crate::capabilities::Capabilities;
use crate::error::TemplateError;
use crate::jinja::{self, Budget, Error, ErrorKind};
use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use serde_json::Value as Json;
use std::sync::OnceLock;

/// The longest template that is compiled. The longest in use are below 50 KB.
const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Steps of a rendering beside what its conversation adds: about as many operations, or 64 bytes copied each. They take seconds.
const STEPS: u64 = 10_000_000;
/// Additional steps for each byte of the context: templates copy and split messages several times.
const STEPS_PER_BYTE: u64 = 16;
/// Additional steps for each pair of items of the longest list: templates look back from each message over all others.
const STEPS_PER_PAIR: u64 = 64;
/// The most steps, however long a conversation is.
const STEPS_MAX: u64 = 2_000_000_000;
/// Steps of each small conversation that finds out what a template takes. Real templates need some thousands.
const PROBE_STEPS: u64 = 1_000_000;
/// The most memory that values may hold beside what the context adds, in bytes.
const MEMORY_BYTES: usize = 128 << 20;
/// Additional memory for each byte of the context.
const MEMORY_PER_BYTE: usize = 16;

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
    template: jinja::Template,
    clock: Clock,
    /// Found out when they are first asked for.
    capabilities: OnceLock<Capabilities>,
}

impl ChatTemplate {
    /// Compiles a template that reads the system's clock.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`], [`TemplateError::Unsupported`] and [`TemplateError::TooLong`].
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        Self::with_clock(source, Clock::System)
    }

    /// Compiles a template that reads the given clock.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`], [`TemplateError::Unsupported`] and [`TemplateError::TooLong`].
    pub fn with_clock(source: &str, clock: Clock) -> Result<Self, TemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(TemplateError::TooLong { bytes: source.len(), limit: SOURCE_BYTES_MAX });
        }
        let template = jinja::parse(source).map_err(|error| template_error(*error, true))?;
        Ok(Self { template, clock, capabilities: OnceLock::new() })
    }

    /// What the template takes. The first call renders some small conversations to find out.
    pub fn capabilities(&self) -> &Capabilities {
        let budget = Budget { steps: PROBE_STEPS, bytes_max: MEMORY_BYTES, output_bytes: 0 };
        self.capabilities.get_or_init(|| Capabilities::probe(&|context| self.render_within(context, budget)))
    }

    /// Shapes messages, an array as OpenAI's API has it, as this template takes them: see [`Capabilities::shape`].
    ///
    /// # Errors
    /// [`TemplateError::Message`] if the template would drop a part of a message.
    pub fn shape_messages(&self, messages: &mut Json) -> Result<(), TemplateError> {
        self.capabilities().shape(messages)
    }

    /// Renders the prompt. `context` is an object with the template's variables: `messages`, `add_generation_prompt`,
    /// `bos_token`, `eos_token`, and where used `tools`, `documents`, `enable_thinking` ... A variable that is `null`
    /// is defined, with the value None; one that is absent is undefined.
    ///
    /// # Errors
    /// [`TemplateError::Raised`] with the template's own message; [`TemplateError::Render`] where Python would raise an
    /// error of its own; [`TemplateError::OutOfBudget`] for a template that does not terminate;
    /// [`TemplateError::Unsupported`] for what this engine does not have; [`TemplateError::ContextNotAnObject`].
    pub fn render(&self, context: &Json) -> Result<String, TemplateError> {
        self.render_within(context, budget(context))
    }

    fn render_within(&self, context: &Json, budget: Budget) -> Result<String, TemplateError> {
        let Json::Object(variables) = context else { return Err(TemplateError::ContextNotAnObject) };
        let clock = self.clock;
        let rendered =
            jinja::render(&self.template, variables, budget, Box::new(move |format| strftime(clock, format)));
        rendered.map_err(|error| template_error(*error, false))
    }
}

fn strftime(clock: Clock, format: &str) -> Result<String, String> {
    const FORMAT_BYTES_MAX: usize = 1024;
    if format.len() > FORMAT_BYTES_MAX {
        return Err(format!("the format of strftime_now is longer than {FORMAT_BYTES_MAX} bytes"));
    }
    let time = match clock {
        Clock::System => BrokenDownTime::from(&jiff::ZonedDateTime::now()),
        Clock::Fixed(time) => BrokenDownTime::from(time),
    };
    time.to_string(format).map_err(|error| format!("strftime_now({format:?}) cannot be formatted: {error}"))
}

/// What a rendering with this context may use.
fn budget(context: &Json) -> Budget {
    let mut size = ContextSize::default();
    size.add(context);
    let pairs = (size.longest as u64).saturating_pow(2);
    let steps = STEPS
        .saturating_add(STEPS_PER_BYTE.saturating_mul(size.bytes as u64))
        .saturating_add(STEPS_PER_PAIR.saturating_mul(pairs));
    let bytes_max = MEMORY_BYTES.saturating_add(MEMORY_PER_BYTE.saturating_mul(size.bytes));
    Budget { steps: steps.min(STEPS_MAX), bytes_max, output_bytes: 0 }
}

/// About how large a context is.
#[derive(Default)]
struct ContextSize {
    bytes: usize,
    /// The number of items of the longest list.
    longest: usize,
}

impl ContextSize {
    fn add(&mut self, value: &Json) {
        const VALUE_BYTES: usize = 16;
        self.bytes += VALUE_BYTES;
        match value {
            Json::String(text) => self.bytes += text.len(),
            Json::Array(items) => {
                self.longest = self.longest.max(items.len());
                items.iter().for_each(|item| self.add(item));
            }
            Json::Object(entries) => {
                self.bytes += entries.keys().map(String::len).sum::<usize>();
                entries.values().for_each(|value| self.add(value));
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }
}

fn template_error(error: Error, is_compiling: bool) -> TemplateError {
    let line = error.line;
    match error.kind {
        ErrorKind::Raised(message) => TemplateError::Raised { message },
        ErrorKind::Unsupported(what) => TemplateError::Unsupported { line, what },
        ErrorKind::Budget => TemplateError::OutOfBudget { line },
        ErrorKind::Python(_, reason) if is_compiling => TemplateError::Syntax { line, reason },
        ErrorKind::Python(class, message) => {
            TemplateError::Render { line, reason: format!("{class}: {message}") }
        }
    }
}
