//! Errors of the APIs. What is wrong is said once; each API has its own form for it.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use verbatim_engine::{ChatError, RequestError};
use verbatim_text::TemplateError;

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// What is wrong and what to do.
    pub(crate) message: String,
    /// The field that is wrong.
    pub(crate) param: Option<String>,
    /// OpenAI's code for programs.
    pub(crate) code: Option<&'static str>,
    /// Seconds after which it may be worth to try again.
    pub(crate) retry_after: Option<u64>,
}

/// A message may quote what the client sent, which may be long.
fn shortened(mut message: String) -> String {
    const BYTES_MAX: usize = 2000;
    if message.len() > BYTES_MAX {
        message.truncate(message.floor_char_boundary(BYTES_MAX));
        message.push_str(" …");
    }
    message
}

/// The forms of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorForm {
    OpenAi,
    LlamaCpp,
    Ollama,
    Anthropic,
}

impl ErrorForm {
    /// The form of the API that a path belongs to.
    pub(crate) fn of_path(path: &str) -> ErrorForm {
        match path {
            _ if path.starts_with("/v1/messages") => ErrorForm::Anthropic,
            _ if path.starts_with("/v1/") || path.starts_with("/chat/") => ErrorForm::OpenAi,
            _ if path.starts_with("/api/") => ErrorForm::Ollama,
            _ => ErrorForm::LlamaCpp,
        }
    }
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: shortened(message.into()), param: None, code: None, retry_after: None }
    }

    /// The request is wrong.
    pub(crate) fn bad(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field is wrong.
    pub(crate) fn field(name: &str, problem: impl std::fmt::Display) -> ApiError {
        ApiError { param: Some(name.to_owned()), ..ApiError::bad(format!("{name}: {problem}")) }
    }

    pub(crate) fn with_code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    pub(crate) fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub(crate) fn busy(message: impl Into<String>, retry_after: u64) -> ApiError {
        ApiError {
            retry_after: Some(retry_after),
            ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).with_code("rate_limit_exceeded")
        }
    }

    /// The kind of error, by OpenAI's and llama.cpp's names.
    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "unavailable_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        }
    }

    /// The body of the error in this form.
    pub(crate) fn body(&self, form: ErrorForm) -> Value {
        let ApiError { message, param, code, .. } = self;
        match form {
            ErrorForm::OpenAi => json!({
                "error": { "message": message, "type": self.kind(), "param": param, "code": code }
            }),
            ErrorForm::LlamaCpp => json!({
                "error": { "code": self.status.as_u16(), "message": message, "type": self.kind(), "param": param }
            }),
            ErrorForm::Ollama => json!({ "error": message }),
            ErrorForm::Anthropic => json!({
                "type": "error", "error": { "type": self.anthropic_kind(), "message": message }
            }),
        }
    }
}

impl IntoResponse for ApiError {
    /// A response without a body: the outermost layer writes it in the form of the path's API.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> ApiError {
        let message = error.to_string();
        match error {
            RequestError::EmptyPrompt | RequestError::Sampling(_) => ApiError::bad(message),
            RequestError::PromptTooLong { .. } => {
                ApiError::bad(format!("{message}: shorten it, or start the server with a larger context"))
                    .with_code("context_length_exceeded")
            }
            RequestError::Grammar(_) | RequestError::Constraint(_) => {
                ApiError::bad(format!("the grammar or schema of the answer: {message}"))
            }
            RequestError::Stop(_) => ApiError::field("stop", message),
            RequestError::Chat(error) => chat_error(&error),
            RequestError::NoSuchSession | RequestError::Step(_) | RequestError::State(_) => {
                ApiError::internal(message)
            }
            RequestError::Engine(_) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message),
        }
    }
}

/// A conversation that cannot be formatted: the client's mistake, unless the template is at fault.
pub(crate) fn chat_error(error: &ChatError) -> ApiError {
    match error {
        ChatError::NoTemplate => ApiError::bad(
            "the model has no chat template: use a completion route, or start the server with a chat template",
        ),
        ChatError::Template(TemplateError::Syntax { .. } | TemplateError::Unsupported { .. }) => {
            ApiError::internal(error.to_string())
        }
        ChatError::Template(_) => ApiError::field("messages", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut() {
        assert_eq!(ApiError::bad("é".repeat(5000)).message.len(), 2000 + " …".len());
    }

    #[test]
    fn each_api_has_its_form() {
        let error = ApiError::field("temperature", "it must be a number");
        let body = |path: &str| error.body(ErrorForm::of_path(path)).to_string();
        assert_eq!(
            body("/v1/chat/completions"),
            r#"{"error":{"message":"temperature: it must be a number","type":"invalid_request_error","param":"temperature","code":null}}"#
        );
        assert_eq!(body("/api/chat"), r#"{"error":"temperature: it must be a number"}"#);
        assert!(body("/completion").contains(r#""code":400"#));
        assert!(body("/v1/messages").starts_with(r#"{"type":"error""#));
    }
}
