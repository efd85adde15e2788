//! What all handlers share: the model, once it is loaded, the queue, the slots and the metrics.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::metrics::Metrics;
use crate::options::{ServedModel, ServerOptions};
use crate::slots::Slots;
use axum::http::StatusCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::spawn_blocking;
use verbatim_engine::Engine;

/// How many times the longest body may be needed in memory for one request.
const COPIES_MAX: usize = 4;

/// The state of a server.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    pub(crate) metrics: Metrics,
    pub(crate) slots: Slots,
    model: OnceLock<ServedModel>,
    /// Requests that are queued or run.
    in_flight: AtomicUsize,
    /// When the server started, in seconds of Unix time.
    pub(crate) started: i64,
}

impl App {
    pub(crate) fn new(options: ServerOptions) -> App {
        App {
            options,
            metrics: Metrics::default(),
            slots: Slots::default(),
            model: OnceLock::new(),
            in_flight: AtomicUsize::new(0),
            started: jiff::Timestamp::now().as_second(),
        }
    }

    pub(crate) fn set_model(&self, model: ServedModel) {
        self.metrics.set_model(&model);
        self.slots.set_count(model.slots);
        let _ = self.model.set(model);
    }

    /// The model.
    ///
    /// # Errors
    /// While it is loading.
    pub(crate) fn model(&self) -> Result<&ServedModel, ApiError> {
        self.model.get().ok_or_else(|| ApiError {
            retry_after: Some(2),
            ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the model is loading: try again soon")
        })
    }

    /// The model, if the request's field `model` means it. Without one, it does.
    ///
    /// # Errors
    /// While it is loading, and if another model is asked for.
    pub(crate) fn model_for(&self, fields: &mut Fields) -> Result<&ServedModel, ApiError> {
        let model = self.model()?;
        match fields.take::<String>("model")? {
            Some(name) if !model.info.is_named(&name) => Err(unknown_model(&name, model)),
            _ => Ok(model),
        }
    }

    /// Checks that a request for so many answers can be submitted, before its prompt is copied for each.
    ///
    /// # Errors
    /// If they are more than the queue has room for, or their prompts more than the server has memory for.
    pub(crate) fn check_count(&self, count: usize, fields: &Fields) -> Result<(), ApiError> {
        let max = self.model()?.slots + self.options.queue_max;
        if count > max {
            return Err(ApiError::bad(format!(
                "the request asks for {count} answers, but the server takes {max} at most at once"
            )));
        }
        if fields.body_bytes().saturating_mul(count) > self.options.body_bytes_max.saturating_mul(COPIES_MAX)
        {
            return Err(ApiError::bad(format!(
                "the prompt is too long to be answered {count} times at once"
            )));
        }
        Ok(())
    }

    /// Takes room in the queue.
    ///
    /// # Errors
    /// If there is too little.
    pub(crate) fn tickets(
        self: &Arc<Self>,
        count: usize,
        model: &ServedModel,
    ) -> Result<Vec<Ticket>, ApiError> {
        let max = model.slots + self.options.queue_max;
        let taken = self.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
            Some(now + count).filter(|&after| after <= max)
        });
        match taken {
            Ok(_) => Ok((0..count).map(|_| Ticket(Arc::clone(self))).collect()),
            Err(now) => {
                self.metrics.rejected();
                Err(ApiError::busy(
                    format!("the queue is full: {now} requests run or wait; try again later"),
                    self.retry_after(now, model.slots),
                ))
            }
        }
    }

    /// Seconds until there may be room: as long as an answer takes.
    fn retry_after(&self, in_flight: usize, slots: usize) -> u64 {
        let rounds = in_flight.div_ceil(slots.max(1)) as f64;
        let wait = self.metrics.mean_answer_time().unwrap_or(Duration::from_secs(1));
        (wait.as_secs_f64() * rounds / 4.0).ceil().clamp(1.0, 60.0) as u64
    }
}

/// Room in the queue for one request. Dropping it makes room for another.
#[derive(Debug)]
pub(crate) struct Ticket(pub(crate) Arc<App>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn unknown_model(name: &str, model: &ServedModel) -> ApiError {
    let names = model.info.names.join("`, `");
    ApiError {
        param: Some("model".to_owned()),
        ..ApiError::new(
            StatusCode::NOT_FOUND,
            format!("model: there is no model `{name}` here; this server has `{names}`"),
        )
        .with_code("model_not_found")
    }
}

/// Runs something that takes long on a thread that may block.
///
/// # Errors
/// If it panics.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    spawn_blocking(work)
        .await
        .map_err(|error| ApiError::internal(format!("this is a bug, please report it: {error}")))
}

/// What the engine is doing.
///
/// # Errors
/// If it has stopped.
pub(crate) async fn engine_status(engine: &Engine) -> Result<verbatim_engine::EngineStatus, ApiError> {
    let engine = engine.clone();
    let status = blocking(move || engine.status()).await?;
    status.map_err(|error| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
}
