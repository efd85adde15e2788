//! Who may use the server: API keys, the `Host` header and the origins of web pages.
//!
//! A web page of another site can make a browser send requests to this machine, and with a name that it resolves to this machine
//! even read the answers (DNS rebinding). So names and origins must be known, unless the request has a key, which no such page has.

use crate::error::ApiError;
use crate::options::ServerOptions;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use subtle::ConstantTimeEq;
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

/// Paths that need no key: for load balancers, and the page that asks for the key.
const PUBLIC: [&str; 3] = ["/", "/health", "/v1/health"];

/// Checks a request.
///
/// # Errors
/// If it may not use the server.
pub(crate) fn check(
    options: &ServerOptions,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), ApiError> {
    check_host(options, uri, headers)?;
    check_origin(options, headers)?;
    let is_public = PUBLIC.contains(&uri.path()) || *method == Method::OPTIONS;
    if options.api_keys.is_empty() || is_public {
        return Ok(());
    }
    check_key(options, headers)
}

fn check_key(options: &ServerOptions, headers: &HeaderMap) -> Result<(), ApiError> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let key = bearer.or_else(|| headers.get("x-api-key")?.to_str().ok());
    let wrong = |message| ApiError::new(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key");
    let Some(key) = key else {
        return Err(wrong("an API key is required: send `Authorization: Bearer KEY` or `x-api-key: KEY`"));
    };
    if is_valid(key, &options.api_keys) { Ok(()) } else { Err(wrong("the API key is wrong")) }
}

/// Whether a key is one of these, in a time that depends on none of them.
fn is_valid(given: &str, keys: &[String]) -> bool {
    let given = Sha256::digest(given.as_bytes());
    let found = keys.iter().map(|key| Sha256::digest(key.as_bytes()).as_slice().ct_eq(given.as_slice()));
    found.fold(subtle::Choice::from(0), |any, this| any | this).into()
}

fn check_host(options: &ServerOptions, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let host = headers.get(header::HOST).map(|host| host.to_str().unwrap_or("?"));
    let Some(host) = host.or_else(|| uri.host()) else {
        return Err(ApiError::bad("the request has no Host header"));
    };
    let name = without_port(host);
    let allowed = &options.allowed_hosts;
    let is_listed = allowed.iter().any(|own| own == "*" || own.eq_ignore_ascii_case(name));
    if is_local_name(name) || is_listed || !options.api_keys.is_empty() {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "this server is not known by the name in the Host header: use its IP address, or start it with this name allowed",
    ))
}

/// Names that nobody else can make lead here: addresses and `localhost`.
fn is_local_name(name: &str) -> bool {
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let lower = name.to_ascii_lowercase();
    address.parse::<IpAddr>().is_ok() || lower == "localhost" || lower.ends_with(".localhost")
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn check_origin(options: &ServerOptions, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or("?")) else {
        return Ok(());
    };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let is_own = origin.split_once("://").is_some_and(|(_, own)| own.eq_ignore_ascii_case(host));
    let is_listed = options.allowed_origins.iter().any(|own| own == "*" || own.eq_ignore_ascii_case(origin));
    if is_own || is_listed || !options.api_keys.is_empty() {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "web pages of other sites may not use this server: start it with the page's origin allowed",
    ))
}

/// The layer that lets pages of allowed origins read answers.
pub(crate) fn cors(options: &ServerOptions) -> CorsLayer {
    let origins = &options.allowed_origins;
    let origin = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| origin.parse().ok()))
    };
    CorsLayer::new()
        .allow_origin(origin)
        .allow_methods(AllowMethods::list([Method::GET, Method::POST]))
        .allow_headers(AllowHeaders::mirror_request())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(options: &ServerOptions, headers: &[(&'static str, &str)]) -> Option<u16> {
        let map = headers
            .iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().expect("a value")));
        let result = check(options, &Method::POST, &Uri::from_static("/v1/models"), &map.collect());
        result.err().map(|error| error.status.as_u16())
    }

    #[test]
    fn names_that_others_control_are_rejected() {
        let options = ServerOptions { allowed_hosts: vec!["box".into()], ..ServerOptions::default() };
        for host in ["localhost:8080", "127.0.0.1", "[::1]:8080", "192.168.0.7:80", "BOX:8080", "a.localhost"]
        {
            assert_eq!(status(&options, &[("host", host)]), None, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:8080", "127.0.0.1.evil.example", ""] {
            assert_eq!(status(&options, &[("host", host)]), Some(403), "{host}");
        }
        assert_eq!(status(&options, &[]), Some(400));
    }

    #[test]
    fn pages_of_other_sites_are_rejected() {
        let options = ServerOptions {
            allowed_origins: vec!["https://chat.example".into()],
            ..ServerOptions::default()
        };
        let with = |origin| status(&options, &[("host", "localhost:8080"), ("origin", origin)]);
        assert_eq!(with("http://localhost:8080"), None);
        assert_eq!(with("https://chat.example"), None);
        assert_eq!(with("https://evil.example"), Some(403));
        assert_eq!(with("http://localhost:9999"), Some(403));
        assert_eq!(with("null"), Some(403));
    }

    #[test]
    fn a_key_is_needed_where_there_are_keys() {
        let options =
            ServerOptions { api_keys: vec!["secret".into(), "other".into()], ..ServerOptions::default() };
        let with = |name, value| status(&options, &[("host", "any.example"), (name, value)]);
        assert_eq!(with("authorization", "Bearer secret"), None);
        assert_eq!(with("authorization", "bearer other"), None);
        assert_eq!(with("x-api-key", "secret"), None);
        assert_eq!(with("authorization", "Bearer secre"), Some(401));
        assert_eq!(with("authorization", "Basic secret"), Some(401));
        assert_eq!(with("x-api-key", ""), Some(401));
        assert_eq!(status(&options, &[("host", "any.example")]), Some(401));
    }
}
