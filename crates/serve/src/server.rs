//! The server: its routes, its connections, and its end.

use crate::app::App;
use crate::error::ApiError;
use crate::options::{ServedModel, ServerOptions};
use crate::{access, anthropic, llama, observe, ollama, openai};
use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Bytes of the headers of a request.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// How long to wait when the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// An HTTP server over one engine. It answers 503 until it has a model. Clones share the same server.
#[derive(Clone, Debug)]
pub struct Server {
    app: Arc<App>,
}

impl Server {
    /// A server without a model.
    pub fn new(options: ServerOptions) -> Server {
        Server { app: Arc::new(App::new(options)) }
    }

    /// Gives it its model. A second one is ignored.
    pub fn set_model(&self, model: ServedModel) {
        self.app.set_model(model);
    }

    /// Its routes, without a socket.
    pub fn router(&self) -> Router {
        let app = &self.app;
        Router::new()
            .merge(openai_routes())
            .merge(llama_routes())
            .merge(ollama_routes())
            .merge(anthropic_routes())
            .fallback(not_found)
            .method_not_allowed_fallback(wrong_method)
            .with_state(Arc::clone(app))
            .layer(from_fn_with_state(Arc::clone(app), observe::guard))
            .layer(access::cors(&app.options))
            .layer(from_fn(observe::observe))
    }

    /// Serves connections until `stop` is ready, and then until all answers that run are complete, but no longer than
    /// [`ServerOptions::drain_timeout`]. Returns whether all were.
    pub async fn serve(&self, listener: TcpListener, stop: impl Future<Output = ()>) -> bool {
        let options = &self.app.options;
        let room = Arc::new(Semaphore::new(options.connections_max));
        let graceful = GracefulShutdown::new();
        let router = self.router();
        let mut stop = pin!(stop);
        loop {
            let permit = tokio::select! {
                () = &mut stop => break,
                permit = Arc::clone(&room).acquire_owned() => permit.expect("it is never closed"),
            };
            let stream = tokio::select! {
                () = &mut stop => break,
                stream = accept(&listener) => stream,
            };
            // Tokens are small packets that must not wait for each other.
            let _ = stream.set_nodelay(true);
            let service = TowerToHyperService::new(router.clone());
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(options.io_timeout)
                .max_header_size(HEADER_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            let connection = graceful.watch(connection);
            tokio::spawn(async move {
                // What goes wrong on a connection concerns its client only, who is gone.
                let _ = connection.await;
                drop(permit);
            });
        }
        drop(listener);
        timeout(options.drain_timeout, graceful.shutdown()).await.is_ok()
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                // Too many open files, or a connection that was closed again: neither ends the server.
                tracing::warn!(error = %error, "a connection was not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn openai_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/chat/completions", post(openai::chat::chat))
        .route("/chat/completions", post(openai::chat::chat))
        .route("/v1/completions", post(openai::completions::completions))
        .route("/v1/responses", post(openai::responses::responses))
        .route("/v1/models", get(openai::models::list))
        .route("/models", get(openai::models::list))
        .route("/v1/models/{*model}", get(openai::models::get))
}

fn llama_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/health", get(llama::server::health))
        .route("/v1/health", get(llama::server::health))
        .route("/props", get(llama::server::props))
        .route("/slots", get(llama::server::slots))
        .route("/metrics", get(llama::server::metrics))
        .route("/completion", post(llama::completion::completion))
        .route("/completions", post(llama::completion::completion))
        .route("/tokenize", post(llama::tokens::tokenize))
        .route("/detokenize", post(llama::tokens::detokenize))
        .route("/apply-template", post(llama::tokens::apply_template))
}

fn ollama_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/chat", post(ollama::answers::chat))
        .route("/api/generate", post(ollama::answers::generate))
        .route("/api/tags", get(ollama::models::tags))
        .route("/api/show", post(ollama::models::show))
        .route("/api/ps", get(ollama::models::ps))
        .route("/api/version", get(ollama::models::version))
}

fn anthropic_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/messages", post(anthropic::messages::messages))
        .route("/v1/messages/count_tokens", post(anthropic::messages::count_tokens))
}

async fn not_found(uri: Uri) -> ApiError {
    let path: String = uri.path().chars().take(100).collect();
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no route {path}; docs/server.md lists them"))
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let path: String = uri.path().chars().take(100).collect();
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take {method}"))
}
