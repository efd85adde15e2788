//! From requests to answers.

use crate::answer::Answer;
use crate::app::{App, blocking};
use crate::error::ApiError;
use crate::tools::format::ToolFormat;
use std::sync::Arc;
use verbatim_engine::Request;

/// Submits requests and waits until the first has started. `tools` is how their answers may call tools.
///
/// # Errors
/// If the queue is full, or the first request fails.
pub(crate) async fn submit(
    app: &Arc<App>,
    requests: Vec<Request>,
    tools: Option<ToolFormat>,
) -> Result<Vec<Answer>, ApiError> {
    let model = app.model()?;
    let tickets = app.tickets(requests.len(), model)?;
    let engine = model.engine.clone();
    // Tokenizing a long prompt and compiling a grammar take time, which other connections need not wait for.
    let submitted = move || requests.into_iter().map(|request| engine.submit(request)).collect::<Vec<_>>();
    let streams = blocking(submitted).await?.into_iter().zip(tickets);
    let mut answers: Vec<Answer> =
        streams.map(|(events, ticket)| Answer::new(events, ticket, tools)).collect();
    if let Some(first) = answers.first_mut() {
        first.begin().await?;
    }
    Ok(answers)
}
