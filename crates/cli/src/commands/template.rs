//! `verbatim template`: renders chat messages to a prompt.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Map, Value};
use verbatim_text::{ChatTemplate, Clock};

use crate::error::UsageError;
use crate::flags::TemplateArgs;
use crate::model_file::ModelFile;
use crate::standard_io;
use crate::store::Store;

/// Writes the rendered text and nothing else, not even a newline.
///
/// Standard input is a JSON array of messages, unless `--context` names a JSON object with every variable.
///
/// # Errors
/// When there is no template, the input is not as described, or the template raises an error.
pub fn run(args: &TemplateArgs, store: &Store) -> anyhow::Result<ExitCode> {
    // With a template file and a full context no model is needed, even if a variable specifies one.
    let needs_model = args.template_file.is_none() || args.context.is_none();
    let model = args.model.as_deref().filter(|_| needs_model);
    let model = model.map(|model| ModelFile::open(store, model)).transpose()?;
    let source = match (&args.template_file, &model) {
        (Some(path), _) => {
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?
        }
        (None, Some(model)) => model.chat_template()?.to_owned(),
        (None, None) => return Err(UsageError("specify --model or --template-file".into()).into()),
    };
    let clock = args.now.map_or(Clock::System, Clock::Fixed);
    let template = ChatTemplate::with_clock(&source, clock)?;
    let context = match &args.context {
        Some(path) => context_from_file(args, path)?,
        None => context_from_messages(args, &template, model.as_ref())?,
    };
    standard_io::write(template.render(&context)?.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The context exactly as the caller wrote it.
fn context_from_file(args: &TemplateArgs, path: &Path) -> anyhow::Result<Value> {
    if args.tools.is_some() || args.add_generation_prompt {
        let message = "--tools and --add-generation-prompt cannot be combined with --context: put them into the context";
        return Err(UsageError(message.into()).into());
    }
    let json = if path == Path::new("-") { standard_io::read_bytes()? } else { read(path)? };
    serde_json::from_slice(&json).with_context(|| format!("the context in {} is not JSON", path.display()))
}

/// The variables that the transformers library passes to a template, from messages on standard input.
fn context_from_messages(
    args: &TemplateArgs,
    template: &ChatTemplate,
    model: Option<&ModelFile>,
) -> anyhow::Result<Value> {
    let mut messages: Value = serde_json::from_slice(&standard_io::read_bytes()?)
        .context("standard input is not a JSON array of messages")?;
    anyhow::ensure!(messages.is_array(), "standard input is not a JSON array of messages");
    template.shape_messages(&mut messages)?;
    let tools = match &args.tools {
        None => Value::Null,
        Some(path) => serde_json::from_slice(&read(path)?)
            .with_context(|| format!("{} is not a JSON array of tools", path.display()))?,
    };
    anyhow::ensure!(tools.is_null() || tools.is_array(), "the tools file is not a JSON array");
    let mut context = Map::new();
    context.insert("messages".into(), messages);
    context.insert("tools".into(), tools);
    context.insert("documents".into(), Value::Null);
    context.insert("add_generation_prompt".into(), args.add_generation_prompt.into());
    if let Some(model) = model {
        let tokenizer = model.tokenizer()?;
        for (name, id) in [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos())] {
            let text = id.map(|id| String::from_utf8_lossy(tokenizer.piece(id)).into_owned());
            context.extend(text.map(|text| (name.to_owned(), text.into())));
        }
    }
    Ok(context.into())
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
