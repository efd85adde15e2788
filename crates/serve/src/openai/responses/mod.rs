//! `POST /v1/responses`, without storage: each request brings its whole conversation.

mod call;
mod object;
mod stream;

use crate::answer::complete;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::reply::{json as reply, warn};
use crate::stream as streaming;
use crate::submit::submit;
use axum::extract::State;
use axum::response::Response;
use call::ResponseCall;
use object::{Head, output};
use std::sync::Arc;
use stream::ResponseStream;

pub(crate) async fn responses(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let model = app.model_for(&mut fields)?;
    let ResponseCall { request, tools, streams, echo } = ResponseCall::take(&mut fields, model)?;
    let unknown = fields.unknown();
    let answers = submit(&app, vec![request], tools).await?;
    let head = Head::new(model.info.name(), echo);
    let response = if streams {
        streaming::response(answers, ResponseStream::new(head), app.options.io_timeout)
    } else {
        let completions = complete(answers).await?;
        let body = completions.last().map(|found| head.complete(&output(&found.whole), &found.ending));
        reply(&body.unwrap_or_default())
    };
    Ok(warn(response, &unknown))
}
