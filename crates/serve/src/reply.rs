//! Bodies of requests and responses.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::LengthLimitError;
use serde_json::Value;
use std::error::Error;
use std::sync::Arc;
use tokio::time::timeout;

/// The header that names fields without effect.
pub(crate) const WARNING: HeaderName = HeaderName::from_static("x-verbatim-warning");

impl FromRequest<Arc<App>> for Fields {
    type Rejection = ApiError;

    /// Reads the body, whatever its content type is: command-line clients often send none of their own.
    async fn from_request(request: Request, app: &Arc<App>) -> Result<Fields, ApiError> {
        Fields::parse(&read_body(request, app).await?)
    }
}

async fn read_body(request: Request, app: &App) -> Result<Bytes, ApiError> {
    let max = app.options.body_bytes_max;
    let too_large = || {
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is larger than the {max} bytes that this server takes"),
        )
    };
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > max as u64) {
        return Err(too_large());
    }
    match timeout(app.options.io_timeout, to_bytes(request.into_body(), max)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_length_limit(&error) => Err(too_large()),
        Ok(Err(error)) => Err(ApiError::bad(format!("the body cannot be read: {error}"))),
        Err(_) => Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} s", app.options.io_timeout.as_secs()),
        )),
    }
}

fn is_length_limit(error: &axum::Error) -> bool {
    error.source().is_some_and(|source| source.is::<LengthLimitError>())
}

/// A JSON response.
pub(crate) fn json(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], Body::from(value.to_string()))
        .into_response()
}

/// Names the fields without effect in a header.
pub(crate) fn warn(mut response: Response, unknown: &[String]) -> Response {
    if unknown.is_empty() {
        return response;
    }
    const NAMED_MAX: usize = 20;
    let mut names = unknown.iter().take(NAMED_MAX).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
    if unknown.len() > NAMED_MAX {
        names += ", ...";
    }
    let text = format!("fields without effect here: {names}");
    if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
        response.headers_mut().insert(WARNING, value);
    }
    response
}

/// A name as it can be shown in a header: letters of any request are not control characters of the response.
fn shown(name: &str) -> String {
    const BYTES_MAX: usize = 64;
    name.chars().filter(|c| c.is_ascii_graphic()).take(BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_headers_are_plain() {
        let unknown = ["a\r\nSet-Cookie: x".to_owned(), "né".to_owned()];
        let response = warn(StatusCode::OK.into_response(), &unknown);
        let header = response.headers().get(WARNING).expect("a warning").to_str().expect("plain");
        assert_eq!(header, "fields without effect here: aSet-Cookie:x, n");
    }
}
