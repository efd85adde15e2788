//! `verbatim serve`: an HTTP server.

use std::future::Future;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use anyhow::{Context, ensure};
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use verbatim_engine::read_hyperparameters;
use verbatim_gguf::Value as GgufValue;
use verbatim_serve::{ModelInfo, ServedModel, Server, ServerOptions};

use crate::draft_model::Draft;
use crate::error::UsageError;
use crate::flags::{InferenceFlags, ServeArgs};
use crate::interrupt::EXIT_INTERRUPTED;
use crate::model_file::{ModelFile, weights_format};
use crate::server_flags::{LogFormat, ServerFlags};
use crate::session::{Loading, draft_opener, start_for_requests};
use crate::standard_io::{self, notify};
use crate::store::Store;

/// Threads for HTTP, besides those that compute: they wait most of the time.
const HTTP_THREADS: usize = 2;
/// Threads that tokenize prompts and compile grammars.
const BLOCKING_THREADS: usize = 4;

/// Serves a model until the process is told to stop.
///
/// # Errors
/// When the address is not free, or the model cannot be loaded.
pub fn run(args: &ServeArgs, store: &Store) -> anyhow::Result<ExitCode> {
    start_log(args.server.log_format);
    warn_of_flags_without_effect(args);
    let options = server_options(&args.server)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("http")
        .enable_io()
        .enable_time()
        .build()
        .context("the threads of the server cannot be started")?;
    let drained = runtime.block_on(serve(args, store, options))?;
    // Whoever still waits for something has been waited for long enough.
    runtime.shutdown_background();
    if !drained {
        notify("answers that were not complete after --drain were cut off");
    }
    Ok(ExitCode::SUCCESS)
}

/// Listens at once, answers 503 while the model loads, and returns whether all answers were complete at the end.
async fn serve(args: &ServeArgs, store: &Store, options: ServerOptions) -> anyhow::Result<bool> {
    let ServerFlags { host, port, .. } = &args.server;
    let listener = TcpListener::bind((host.trim_start_matches('[').trim_end_matches(']'), *port)).await;
    let listener =
        listener.with_context(|| format!("cannot listen on {host}, port {port} (--host, --port)"))?;
    let address = listener.local_addr()?;
    let needs_key = !options.api_keys.is_empty();
    let server = Server::new(options);
    let (args, store, loaded) = (args.clone(), store.clone(), server.clone());
    let (failed, failure) = oneshot::channel();
    std::thread::Builder::new().name("load".to_owned()).spawn(move || match load(&args, &store) {
        Ok(model) => {
            let name = model.info.name().to_owned();
            loaded.set_model(model);
            notify(&format!("{name} is ready at http://{address}"));
            if !address.ip().is_loopback() && !needs_key {
                notify("warning: everyone who reaches this address can use the server: see --api-key");
            }
        }
        Err(error) => drop(failed.send(error)),
    })?;
    let stop = stop_signal()?;
    tokio::pin!(failure);
    tokio::select! {
        drained = server.serve(listener, stop) => Ok(drained),
        Ok(error) = &mut failure => Err(error),
    }
}

/// Ready after Ctrl-C or SIGTERM. A second one ends the process at once.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let (stop, stopped) = oneshot::channel();
    let mut ends = end_signals()?;
    tokio::spawn(async move {
        ends.recv().await;
        notify("stopping: answers that run are completed; once more to stop at once");
        let _ = stop.send(());
        ends.recv().await;
        std::process::exit(EXIT_INTERRUPTED.into());
    });
    Ok(async move {
        let _ = stopped.await;
    })
}

struct EndSignals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

fn end_signals() -> anyhow::Result<EndSignals> {
    Ok(EndSignals {
        #[cfg(unix)]
        terminate: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?,
    })
}

impl EndSignals {
    #[cfg(unix)]
    async fn recv(&mut self) {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = self.terminate.recv() => {}
        }
    }

    #[cfg(not(unix))]
    async fn recv(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}

fn start_log(format: LogFormat) {
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_target(false).with_ansi(false);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
        LogFormat::Off => {}
    }
}

fn warn_of_flags_without_effect(args: &ServeArgs) {
    let given = &args.inference;
    let flags = [
        ("--session", given.sequence.session.is_some()),
        ("--context-shift", given.sequence.context_shift),
        ("--system", given.generate.system.is_some()),
        ("--hide-reasoning", given.generate.hide_reasoning),
    ];
    for (flag, _) in flags.into_iter().filter(|(_, is_given)| *is_given) {
        notify(&format!("{flag} has no effect on a server: requests say what they need"));
    }
}

fn server_options(flags: &ServerFlags) -> anyhow::Result<ServerOptions> {
    let mut api_keys = flags.api_key.clone();
    if let Some(path) = &flags.api_key_file {
        let keys = standard_io::read_text_file(path).context("--api-key-file")?;
        let keys = keys.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        api_keys.extend(keys.map(str::to_owned));
        ensure!(!api_keys.is_empty(), UsageError(format!("--api-key-file {} has no keys", path.display())));
    }
    Ok(ServerOptions {
        api_keys,
        allowed_hosts: flags.allowed_hosts.clone(),
        allowed_origins: flags.allowed_origins.clone(),
        queue_max: flags.queue,
        body_bytes_max: flags.body_mib.saturating_mul(1 << 20),
        io_timeout: flags.io_timeout(),
        drain_timeout: flags.drain_timeout(),
        ..ServerOptions::default()
    })
}

fn load(args: &ServeArgs, store: &Store) -> anyhow::Result<ServedModel> {
    let mut flags = args.model.clone();
    flags.model = args.name.clone().or(flags.model);
    let loading = Loading::begin(store, &flags, args.inference.generate.quiet)?;
    let file = &loading.file;
    let slots = args.server.slots;
    let InferenceFlags { generate, cache, .. } = &args.inference;
    let draft = Draft::open(draft_opener(store, &args.model), &generate.speculation, !cache.no_kv_rotation)?;
    let (engine, defaults) = start_for_requests(&loading, &args.inference, slots, draft)?;
    let info = model_info(store, file, names(&args.server.alias, flags.model.as_deref(), &file.path));
    Ok(ServedModel { engine, slots, defaults, info })
}

/// The model's names for clients: those that were asked for, or as it was typed and as its file is called.
fn names(aliases: &[String], typed: Option<&str>, path: &Path) -> Vec<String> {
    if !aliases.is_empty() {
        return aliases.to_vec();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let is_name = |typed: &&str| !Path::new(typed).exists() && **typed != *stem;
    typed.filter(is_name).map(str::to_owned).into_iter().chain([stem.clone()]).collect()
}

fn model_info(store: &Store, file: &ModelFile, names: Vec<String>) -> ModelInfo {
    let modified = file.path.metadata().and_then(|found| found.modified()).ok();
    let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let model = read_hyperparameters(&file.gguf).ok();
    let numbers = model.as_ref();
    let records = store.list().unwrap_or_default().into_iter().filter(|entry| entry.path == file.path);
    let sha256 = records.filter_map(|entry| entry.record).map(|record| record.sha256.to_string()).next();
    ModelInfo {
        names,
        path: file.path.display().to_string(),
        bytes: file.gguf.bytes_total() as u64,
        modified: modified.map_or(0, |time| time.as_secs() as i64),
        sha256,
        parameters: file.gguf.tensors().iter().map(|tensor| tensor.element_count() as u64).sum(),
        architecture: numbers.map(|model| model.architecture.clone()).unwrap_or_default(),
        quantization: weights_format(&file.gguf).to_owned(),
        vocabulary: numbers.map_or(0, |model| model.vocabulary),
        trained_context: numbers.map_or(0, |model| model.context),
        embedding: numbers.map_or(0, |model| model.hidden),
        metadata: metadata(file),
    }
}

/// The file's keys, without lists and long texts.
fn metadata(file: &ModelFile) -> Map<String, Value> {
    const TEXT_BYTES_MAX: usize = 1024;
    let entries = file.gguf.metadata().iter();
    let entries = entries.filter_map(|(key, value)| {
        let value = match value {
            GgufValue::Str(text) if text.len() > TEXT_BYTES_MAX => return None,
            GgufValue::Str(text) => String::from_utf8_lossy(text).into(),
            GgufValue::Bool(value) => value.into(),
            value => {
                let integer = value.as_integer().map(|number| Value::from(i64::try_from(number).ok()));
                integer.or_else(|| value.as_f32().map(Value::from))?
            }
        };
        Some((key.to_owned(), value))
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_the_names_that_clients_may_use() {
        let path = Path::new("/models/qwen3-0.6b.gguf");
        assert_eq!(names(&["a".into(), "b".into()], Some("qwen3:0.6b"), path), ["a", "b"]);
        assert_eq!(names(&[], Some("qwen3:0.6b"), path), ["qwen3:0.6b", "qwen3-0.6b"]);
        assert_eq!(names(&[], Some("qwen3-0.6b"), path), ["qwen3-0.6b"]);
        assert_eq!(names(&[], None, path), ["qwen3-0.6b"]);
        // A path is no name.
        let file = env!("CARGO_MANIFEST_DIR").to_owned() + "/Cargo.toml";
        assert_eq!(names(&[], Some(&file), Path::new(&file)), ["Cargo"]);
    }
}
