//! The context of a rendering: its budget, and function pointers to the filters and tests, which import this file.

use super::error::{Result, out_of_budget, python, type_error};
use super::value::{Call, Items, Namespace, Value, live_bytes, new_text};
use std::rc::Rc;

/// Bytes that are copied in about the time of one step.
const BYTES_PER_STEP: usize = 64;

/// Formats the time, or says why it cannot.
pub(crate) type Strftime = Box<dyn Fn(&str) -> std::result::Result<String, String>>;

/// The context of a rendering, except for variables.
pub(crate) struct RenderContext {
    pub(crate) budget: Budget,
    /// Applies a filter by name.
    pub(crate) filter: fn(&mut RenderContext, &str, Value, Call) -> Result<Value>,
    /// Applies a test by name.
    pub(crate) test: fn(&mut RenderContext, &str, Value, Call) -> Result<bool>,
    /// Formats the time.
    pub(crate) strftime: Strftime,
    /// All namespaces, which may contain themselves. They are emptied at the end.
    pub(crate) namespaces: Vec<Rc<Namespace>>,
}

/// The budget of a rendering.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Steps left: operations, items looked at, and one per 64 copied bytes.
    pub(crate) steps: u64,
    /// The most memory that values and output may hold.
    pub(crate) bytes_max: usize,
    /// How many bytes of output are held outside of values.
    pub(crate) output_bytes: usize,
}

impl RenderContext {
    /// Counts steps.
    pub(crate) fn steps(&mut self, steps: usize) -> Result<()> {
        match self.budget.steps.checked_sub(steps as u64) {
            Some(left) if live_bytes() + self.budget.output_bytes <= self.budget.bytes_max => {
                self.budget.steps = left;
                Ok(())
            }
            _ => out_of_budget(),
        }
    }

    /// Makes sure that a value of so many bytes may be built.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<()> {
        self.steps(1 + bytes / BYTES_PER_STEP)?;
        match (live_bytes() + self.budget.output_bytes).checked_add(bytes) {
            Some(total) if total <= self.budget.bytes_max => Ok(()),
            _ => out_of_budget(),
        }
    }

    /// Makes sure that so many items may be collected.
    pub(crate) fn reserve_items(&mut self, count: usize) -> Result<()> {
        self.steps(count)?;
        self.reserve(count.saturating_mul(size_of::<Value>()))
    }

    /// Text as a value.
    pub(crate) fn text(&mut self, text: String) -> Result<Value> {
        self.reserve(text.len())?;
        Ok(Value::Text(new_text(text)))
    }

    /// Text marked as safe.
    pub(crate) fn markup(&mut self, text: String) -> Result<Value> {
        self.reserve(text.len())?;
        Ok(Value::Markup(new_text(text)))
    }

    /// Text of the same kind as another value.
    pub(crate) fn text_like(&mut self, like: &Value, text: String) -> Result<Value> {
        match like {
            Value::Markup(_) => self.markup(text),
            _ => self.text(text),
        }
    }

    pub(crate) fn list(&mut self, items: Vec<Value>) -> Result<Value> {
        self.reserve_items(items.len())?;
        Ok(Value::List(Items::new(items)?))
    }

    pub(crate) fn tuple(&mut self, items: Vec<Value>) -> Result<Value> {
        self.reserve_items(items.len())?;
        Ok(Value::Tuple(Items::new(items)?))
    }
}

/// The error for using an undefined value.
pub(crate) fn undefined_error<T>(message: &Option<Rc<str>>) -> Result<T> {
    python("UndefinedError", message.as_deref().unwrap_or("the value is undefined"))
}

impl Call {
    /// The arguments of a function with these parameters, of which the first `required` have no default.
    pub(crate) fn bind<const N: usize>(
        self,
        name: &str,
        parameters: [&str; N],
        required: usize,
    ) -> Result<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            return type_error(format!("{name}() takes {N} arguments, {} were given", self.positional.len()));
        }
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (key, value) in self.named {
            let Some(index) = parameters.iter().position(|parameter| *parameter == key.as_str()) else {
                return type_error(format!("{name}() got an unexpected argument `{}`", key));
            };
            if bound[index].replace(value).is_some() {
                return type_error(format!("{name}() got `{}` twice", key));
            }
        }
        match bound[..required].iter().position(Option::is_none) {
            Some(missing) => type_error(format!("{name}() misses its argument `{}`", parameters[missing])),
            None => Ok(bound),
        }
    }

    /// The arguments of a function that takes them by position only.
    pub(crate) fn positional<const N: usize>(
        self,
        name: &str,
        required: usize,
    ) -> Result<[Option<Value>; N]> {
        match self.named.first() {
            Some((key, _)) => {
                type_error(format!("{name}() takes no argument by name, but `{}` was given", key))
            }
            None => self.bind(name, [""; N], required),
        }
    }
}
