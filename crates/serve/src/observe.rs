//! What is done to every request: an id, the check of who it is from, errors in the form of its API, and a line in the log.

use crate::access;
use crate::app::App;
use crate::error::{ApiError, ErrorForm};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use std::time::Instant;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id of a client that is kept.
const ID_BYTES_MAX: usize = 128;

/// Checks who a request is from.
pub(crate) async fn guard(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    access::check(&app.options, request.method(), request.uri(), request.headers())?;
    Ok(next.run(request).await)
}

/// The outermost layer.
pub(crate) async fn observe(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers().get(&REQUEST_ID));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        write_error(&mut response, &error, ErrorForm::of_path(&path));
        // The message may quote a prompt, which is no business of the log.
        let (status, param) = (error.status.as_u16(), error.param.as_deref().unwrap_or_default());
        tracing::warn!(request = id, %method, path, status, param);
    } else {
        let (status, ms) = (response.status().as_u16(), started.elapsed().as_millis() as u64);
        tracing::info!(request = id, %method, path, status, ms);
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// The client's id, if it is fit for a log, or a new one.
fn request_id(given: Option<&HeaderValue>) -> String {
    let is_fit = |id: &&str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !id.is_empty() && id.len() <= ID_BYTES_MAX && id.bytes().all(fits)
    };
    let given = given.and_then(|id| id.to_str().ok()).filter(is_fit);
    given.map_or_else(|| format!("req-{:016x}", fastrand::u64(..)), str::to_owned)
}

fn write_error(response: &mut Response, error: &ApiError, form: ErrorForm) {
    *response.body_mut() = Body::from(error.body(form).to_string());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
    headers.remove(header::CONTENT_LENGTH);
    if let Some(seconds) = error.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_clients_are_kept_if_they_fit_a_log() {
        let id = |text: &str| request_id(Some(&HeaderValue::from_str(text).expect("a value")));
        assert_eq!(id("job-7_a.b"), "job-7_a.b");
        assert!(id("a b").starts_with("req-") && id("").starts_with("req-"));
        assert!(id(&"x".repeat(200)).starts_with("req-") && request_id(None).starts_with("req-"));
    }
}
