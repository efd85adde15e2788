//! A loaded model in its engine, and one session that lasts from answer to answer.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use verbatim_device::Device;
use verbatim_engine::{
    ChatError, Engine, EngineOptions, Event, FinishReason, GenerationStats, Grammar, LoadError, LoadOptions,
    Message, Prompt, Request, RequestError, RestoreError, Sampling, SaveError, SessionError, SessionId,
    SessionOptions, StateMemoryError, Stepper, TextProcessor, recommended_sampling,
};
use verbatim_gguf::GgufFile;

use crate::cpu_mask::CpuMask;
use crate::flags::{CacheFlags, DeviceFlags, GenerateFlags, ModelFlags, RunArgs, SequenceFlags};
use crate::interrupt::Interrupt;
use crate::model_file::ModelFile;
use crate::pull::{self, Sources};
use crate::standard_io::{notify, reject_model_output};
use crate::store::Store;

/// A model ready to answer.
pub struct Session {
    engine: Engine,
    id: SessionId,
    /// Where the session is saved between processes.
    file: Option<PathBuf>,
    /// The conversation that was saved with it.
    conversation: Vec<Message>,
    sampling: Sampling,
    grammar: Option<Grammar>,
}

/// The section of a session's file with the messages of a conversation, as JSON.
const CONVERSATION: &str = "conversation";

/// Statistics of an answer and why it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Why it ended.
    pub reason: FinishReason,
    /// Token counts and times.
    pub stats: GenerationStats,
    /// The seed, unless the answer depends on none.
    pub seed: Option<u64>,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stats = self.stats;
        write!(f, "{} prompt tokens", stats.prompt_tokens)?;
        if stats.cached_tokens > 0 {
            write!(f, " ({} cached)", stats.cached_tokens)?;
        }
        let (tokens, first) = (stats.generated_tokens, stats.time_to_first_token.as_secs_f64());
        write!(f, ", {tokens} generated, first token after {first:.2} s")?;
        if tokens > 1 {
            write!(f, ", {:.1} tokens/s", (tokens - 1) as f64 / stats.generation_time.as_secs_f64())?;
        }
        let drafts = stats.drafts;
        if drafts.drafted > 0 {
            write!(f, ", {} of {} draft tokens accepted", drafts.accepted, drafts.drafted)?;
        }
        if let Some(seed) = self.seed {
            write!(f, ", seed {seed}")?;
        }
        if stats.sampled_outside_graph > 0 {
            write!(f, ", {} sampled outside the graph", stats.sampled_outside_graph)?;
        }
        match &self.reason {
            FinishReason::EndOfText => Ok(()),
            FinishReason::StopString(text) => write!(f, "; stopped at {text:?}"),
            FinishReason::MaxTokens => write!(f, "; stopped at --max-tokens"),
            FinishReason::ContextFull => write!(f, "; stopped because the context is full (see --ctx)"),
            FinishReason::Cancelled => write!(f, "; interrupted"),
        }
    }
}

/// Number of threads: `--threads`, else one for each CPU of `--cpu-mask`, else one per physical core, since threads of one
/// core would share its vector units. Also sets the affinity mask, which threads created later inherit.
///
/// # Errors
/// When the mask contains unusable CPUs.
pub fn configure_threads(flags: &DeviceFlags) -> anyhow::Result<usize> {
    flags.cpu_mask.as_ref().map_or(Ok(()), CpuMask::apply)?;
    let masked = flags.cpu_mask.as_ref().map(CpuMask::count);
    // The process may be allowed fewer CPUs than the machine has cores.
    let cores = || std::thread::available_parallelism().map_or(1, usize::from).min(num_cpus::get_physical());
    let threads = flags.threads.map_or_else(|| masked.unwrap_or_else(cores), usize::from);
    if let Some(cpus) = masked.filter(|&cpus| cpus < threads) {
        notify(&format!("warning: {threads} threads share the {cpus} CPUs of --cpu-mask, which is slow"));
    }
    Ok(threads)
}

/// The backend that the flags select, and its number of threads.
///
/// # Errors
/// When it cannot be used, or the mask contains unusable CPUs.
pub fn open_device(flags: &DeviceFlags) -> anyhow::Result<(Device, usize)> {
    let threads = configure_threads(flags)?;
    Ok((Device::open(flags.backend, threads)?, threads))
}

/// Loads a model.
///
/// # Errors
/// When the file is not a supported model, or memory does not suffice.
pub fn load(file: &ModelFile, device: Device, options: &LoadOptions) -> anyhow::Result<Stepper<Device>> {
    Stepper::load(device, &file.gguf, options).map_err(|error| {
        let hint = match &error {
            LoadError::Memory(StateMemoryError::Kv { .. }) => " (--ctx, --ctk, --ctv, --cache-mib)",
            _ => "",
        };
        anyhow!("{error}{hint}").context(format!("{} cannot be loaded", file.path.display()))
    })
}

/// Opens the model that the flags select, fetching it first if it is known and missing.
///
/// # Errors
/// When it cannot be fetched, or is truncated or corrupt.
pub fn open_model(store: &Store, flags: &ModelFlags) -> anyhow::Result<ModelFile> {
    let sources = Sources::new(&flags.hub.endpoint, &flags.hub.modelscope)?;
    let path = pull::resolve_or_pull(store, &sources, flags.model.as_deref())?;
    let gguf = GgufFile::open(&path)?;
    Ok(ModelFile { path, gguf })
}

impl Session {
    /// Loads a model for one conversation.
    ///
    /// # Errors
    /// When the file is not a supported model, or memory does not suffice.
    pub fn open(
        store: &Store,
        model: &ModelFlags,
        device: &DeviceFlags,
        cache: &CacheFlags,
        sequence: &SequenceFlags,
        generate: &GenerateFlags,
    ) -> anyhow::Result<Session> {
        let grammar = generate.grammar.grammar()?;
        let file = open_model(store, model)?;
        let options = load_options(cache, sequence, generate);
        let sampling = sampling_for(&file, generate)?;
        let (device, _) = open_device(device)?;
        Session::load(&file, device, &options, sequence, sampling, grammar)
    }

    fn load(
        file: &ModelFile,
        device: Device,
        options: &LoadOptions,
        flags: &SequenceFlags,
        sampling: Sampling,
        grammar: Option<Grammar>,
    ) -> anyhow::Result<Session> {
        let engine = start_engine(file, device, options)?;
        if let Some(path) = &flags.session {
            reject_model_output(path)?;
            check_session(path)?;
        }
        let shift_keep = flags.context_shift.then_some(flags.keep);
        let options = SessionOptions { shift_keep, file: flags.session.clone() };
        let opened =
            engine.open_session(options).map_err(|error| about_session(error, "cannot be continued"))?;
        let mut conversation = Vec::new();
        if let (Some(restored), Some(path)) = (opened.restored, &flags.session) {
            if let Some(messages) = restored.section(CONVERSATION) {
                conversation = serde_json::from_slice(messages)
                    .with_context(|| format!("{}: cannot read the conversation in it", path.display()))?;
            }
            notify(&format!("{} holds {} tokens", path.display(), restored.positions));
        }
        Ok(Session { engine, id: opened.id, file: flags.session.clone(), conversation, sampling, grammar })
    }

    /// The conversation that was saved with the session, if any.
    pub fn take_conversation(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.conversation)
    }

    /// Saves the session and its conversation, if any, to the session file, if any.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, conversation: &[Message]) -> anyhow::Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let mut sections = Vec::new();
        if !conversation.is_empty() {
            sections.push((CONVERSATION.to_owned(), serde_json::to_vec(conversation)?));
        }
        let saved = self.engine.save_session(self.id, path, sections);
        saved.map_err(|error| about_session(error, "was not written"))
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.engine.has_chat_template()
    }

    /// Continues `prompt`, passing each piece of text to `show` as it arrives. Ctrl-C ends the answer.
    ///
    /// # Errors
    /// When the prompt is empty or does not fit the context, or `show` fails.
    pub fn answer(
        &self,
        prompt: Prompt,
        generate: &GenerateFlags,
        interrupt: Interrupt,
        show: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Summary> {
        let request = request(prompt, self.sampling.clone(), self.grammar.clone(), generate);
        let answer = self.engine.submit(Request { session: Some(self.id), ..request });
        let _cancelling = interrupt.cancels(answer.canceller());
        let mut used_seed = None;
        let mut reasoning_style = ReasoningStyle::new(generate.hide_reasoning);
        for event in answer {
            match event {
                Event::Started { seed, .. } => used_seed = Some(seed),
                Event::Text { text, reasoning, .. } => {
                    let shown = reasoning_style.join(&reasoning, &text);
                    if !shown.is_empty() {
                        show(&shown)?;
                    }
                }
                Event::Finished { reason, stats } => {
                    let seed = used_seed.filter(|_| !self.sampling.is_greedy());
                    return Ok(Summary { reason, stats, seed });
                }
                Event::Failed(error) => return Err(about_request(error)),
            }
        }
        bail!("the answer ended without a final event: this is a bug, please report it")
    }
}

/// How reasoning is shown: dimmed on a terminal, in front of the answer; not at all where programs read the answer.
struct ReasoningStyle {
    is_shown: bool,
    is_open: bool,
}

impl ReasoningStyle {
    fn new(hide: bool) -> ReasoningStyle {
        ReasoningStyle { is_shown: !hide && io::stdout().is_terminal(), is_open: false }
    }

    fn join(&mut self, reasoning: &str, answer: &str) -> String {
        let mut shown = String::new();
        if self.is_shown && !reasoning.is_empty() {
            shown.push_str("\x1b[2m");
            shown.push_str(reasoning);
            shown.push_str("\x1b[0m");
            self.is_open = true;
        }
        if self.is_open && !answer.is_empty() {
            shown.push_str("\n\n");
            self.is_open = false;
        }
        shown.push_str(answer);
        shown
    }
}

/// What the command line says about all requests.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// Settings; its prompt is empty.
    pub request: Request,
    /// The system message of conversations.
    pub system: Option<String>,
    /// Whether prompts are continued without a chat template.
    pub is_raw: bool,
}

/// Loads a model for this many requests at once.
///
/// # Errors
/// When the file is not a supported model, or memory does not suffice.
pub fn open_engine(store: &Store, args: &RunArgs, sequences: usize) -> anyhow::Result<(Engine, Defaults)> {
    let generate = &args.generate;
    let grammar = generate.grammar.grammar()?;
    let file = open_model(store, &args.model)?;
    let options = LoadOptions { sequences, ..load_options(&args.cache, &args.sequence, generate) };
    let sampling = sampling_for(&file, generate)?;
    let (device, _) = open_device(&args.device)?;
    let engine = start_engine(&file, device, &options)?;
    let request = request(Prompt::Text(String::new()), sampling, grammar, generate);
    Ok((engine, Defaults { request, system: generate.system.clone(), is_raw: args.no_template }))
}

fn load_options(cache: &CacheFlags, sequence: &SequenceFlags, generate: &GenerateFlags) -> LoadOptions {
    LoadOptions {
        context: generate.context_tokens.map(|tokens| tokens.get() as usize),
        k: cache.cache_type_k,
        v: cache.cache_type_v,
        hadamard: !cache.no_kv_rotation,
        cache_bytes: sequence.cache_mib.saturating_mul(1 << 20),
        backend_sampling: !generate.sampling.no_backend_sampling,
        ..LoadOptions::default()
    }
}

/// The sampling settings of the flags, for what they leave out those of the file.
fn sampling_for(file: &ModelFile, generate: &GenerateFlags) -> anyhow::Result<Sampling> {
    let (recommended, problems) = recommended_sampling(&file.gguf);
    problems.iter().for_each(|problem| notify(&format!("warning: {problem}")));
    generate.sampling.settings(recommended, &file.tokenizer()?)
}

fn request(
    prompt: Prompt,
    sampling: Sampling,
    grammar: Option<Grammar>,
    generate: &GenerateFlags,
) -> Request {
    Request {
        sampling,
        grammar,
        reasoning_budget: generate.reasoning_budget.and_then(|tokens| usize::try_from(tokens).ok()),
        max_tokens: generate.max_tokens.map(|tokens| tokens as usize),
        stop: generate.stop.clone(),
        speculation: generate.speculation.speculation(),
        ..Request::new(prompt)
    }
}

/// Loads a model and starts its engine.
fn start_engine(file: &ModelFile, device: Device, options: &LoadOptions) -> anyhow::Result<Engine> {
    let tokenizer = file.tokenizer()?.into();
    let has_template = file.gguf.metadata().contains("tokenizer.chat_template");
    let template = has_template.then(|| file.chat_template()).transpose()?.map(str::to_owned);
    let stepper = load(file, device, options)?;
    let name = file.path.file_stem().unwrap_or_default().to_string_lossy();
    let options = EngineOptions { model_name: name.into_owned(), ..EngineOptions::default() };
    Ok(Engine::start(stepper, TextProcessor { tokenizer, template }, options)?)
}

/// A session error, with the flags that caused it. `what` is the problem if it is the file.
fn about_session(error: SessionError, what: &'static str) -> anyhow::Error {
    match error {
        SessionError::Shift(error) => {
            anyhow::Error::new(error).context("--context-shift does not work with this model")
        }
        SessionError::Keep { keep, context } => {
            anyhow!(
                "--keep {keep} must be smaller than {}, the context size minus 1",
                context.saturating_sub(1)
            )
        }
        SessionError::File(error) => {
            let flags = match error {
                SaveError::Restore { error: RestoreError::KvFormatMismatch { .. }, .. } => {
                    " with these --ctk, --ctv and --no-kv-rotation"
                }
                _ => "",
            };
            anyhow::Error::new(error).context(format!("--session {what}{flags}"))
        }
        SessionError::History { .. } => anyhow::Error::new(error).context(format!("--session {what}")),
        error => error.into(),
    }
}

/// A request error, with the flags that may help.
fn about_request(error: RequestError) -> anyhow::Error {
    match error {
        RequestError::PromptTooLong { .. } => anyhow!(
            "{error}; use a larger --ctx, a shorter prompt or --context-shift (in a conversation, /reset)"
        ),
        RequestError::Chat(ChatError::NoTemplate) => anyhow!("{error}; use --no-template"),
        error => error.into(),
    }
}

/// Checks that a session can be saved to this file, before anything is computed for it.
fn check_session(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    ensure!(!path.exists() || path.is_file(), "--session {shown}: this is not a regular file");
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let problem = || format!("--session {shown}: cannot write to the folder {}", folder.display());
    tempfile::tempfile_in(folder).with_context(problem).map(drop)
}

/// Reports that a prompt is continued without a template because the model has no chat template.
pub fn notify_no_template() {
    notify("the model has no chat template: the prompt is continued as it is");
}
