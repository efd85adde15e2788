//! Why a template cannot be parsed or rendered.

/// Results of everything that templates do.
pub(crate) type Result<T> = std::result::Result<T, Box<Error>>;

/// An error and the line of the template where it arose.
#[derive(Debug)]
pub(crate) struct Error {
    /// From 1; 0 until the surrounding statement sets it.
    pub(crate) line: usize,
    pub(crate) kind: ErrorKind,
}

/// What went wrong.
#[derive(Debug)]
pub(crate) enum ErrorKind {
    /// The template called `raise_exception` with this message.
    Raised(String),
    /// The template uses this, which Jinja2 has and this engine does not.
    Unsupported(String),
    /// Too much work or memory.
    Budget,
    /// Python would raise an exception: its class, and a message.
    Python(&'static str, String),
}

impl Error {
    fn new(kind: ErrorKind) -> Box<Error> {
        Box::new(Error { line: 0, kind })
    }

    /// The error, with a line unless it has one.
    pub(crate) fn at(mut self: Box<Error>, line: usize) -> Box<Error> {
        if self.line == 0 {
            self.line = line;
        }
        self
    }
}

pub(crate) fn raised<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::Raised(message.into())))
}

pub(crate) fn unsupported<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported(what.into())))
}

pub(crate) fn out_of_budget<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Budget))
}

pub(crate) fn python<T>(class: &'static str, message: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::Python(class, message.into())))
}

pub(crate) fn type_error<T>(message: impl Into<String>) -> Result<T> {
    python("TypeError", message)
}

pub(crate) fn value_error<T>(message: impl Into<String>) -> Result<T> {
    python("ValueError", message)
}

pub(crate) fn syntax<T>(line: usize, message: impl Into<String>) -> Result<T> {
    python("TemplateSyntaxError", message).map_err(|error: Box<Error>| error.at(line))
}
