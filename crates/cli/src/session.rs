//! A loaded model in its engine, and one session that lasts from answer to answer.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, anyhow, bail, ensure};
use verbatim_device::Device;
use verbatim_engine::{
    ChatError, Engine, EngineOptions, Event, FinishReason, GenerationStats, Grammar, LoadError, LoadOptions,
    Message, NotDrafted, Prompt, Request, RequestError, RestoreError, Role, Sampling, SaveError,
    SessionError, SessionId, SessionOptions, Speculation, StateError, StateMemoryError, StepError, Stepper,
    TextProcessor, recommended_sampling,
};
use verbatim_gguf::GgufFile;
use verbatim_text::Tokenizer;

use crate::chat_templates;
use crate::context_size;
use crate::cpu_mask::CpuMask;
use crate::draft_model::Draft;
use crate::flags::{DeviceFlags, GenerateFlags, InferenceFlags, ModelFlags, RunArgs, SequenceFlags};
use crate::hub::HubError;
use crate::interrupt::Interrupt;
use crate::machine;
use crate::model_file::{ModelFile, weights_format};
use crate::pull::{self, PullError, Sources};
use crate::session_lock::SessionLock;
use crate::speculation_flags::SpeculationFlags;
use crate::standard_io::{escape, has_terminal_commands, human_bytes, notify, reject_model_output};
use crate::store::Store;
use crate::values::Limit;
use crate::waiting::Waiting;

/// A model ready to answer.
pub struct Session {
    engine: Engine,
    id: SessionId,
    /// Where the session is saved between processes.
    file: Option<PathBuf>,
    /// The conversation that was saved with it.
    conversation: Vec<Message>,
    /// How the next answer is computed.
    pub settings: AnswerSettings,
    /// What the model is, for people.
    description: String,
    shifts: bool,
    is_quiet: bool,
    hides_reasoning: bool,
    _lock: Option<SessionLock>,
}

/// How answers are computed, and when they end.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerSettings {
    /// How to choose the next token.
    pub sampling: Sampling,
    /// What answers must look like.
    pub grammar: Option<Grammar>,
    /// How many tokens the model may think.
    pub reasoning_budget: Option<usize>,
    /// Maximum number of tokens.
    pub max_tokens: Option<usize>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// How answers are drafted.
    pub speculation: Speculation,
}

impl AnswerSettings {
    fn new(sampling: Sampling, grammar: Option<Grammar>, generate: &GenerateFlags) -> Self {
        Self {
            sampling,
            grammar,
            reasoning_budget: generate.reasoning_budget.and_then(|Limit(tokens)| tokens),
            max_tokens: generate.max_tokens.and_then(|Limit(tokens)| tokens),
            stop: generate.stop.clone(),
            speculation: generate.speculation.speculation(),
        }
    }

    /// A request with these settings.
    fn request(&self, prompt: Prompt) -> Request {
        let Self { sampling, grammar, reasoning_budget, max_tokens, stop, speculation } = self.clone();
        Request { sampling, grammar, reasoning_budget, max_tokens, stop, speculation, ..Request::new(prompt) }
    }
}

/// A piece of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Text of the answer.
    pub text: &'a str,
    /// What the model thinks before it answers.
    pub reasoning: &'a str,
    /// Both as people see them.
    pub shown: &'a str,
    /// Their tokens.
    pub tokens: &'a [u32],
}

/// The key of a model's chat template.
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
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
    /// Whether a grammar or a budget may have forced tokens, which take no step of the model.
    pub may_be_forced: bool,
    /// Whether the oldest tokens were discarded because the context was full.
    pub was_shifted: bool,
    /// Whether the answer was cut before its grammar was satisfied.
    pub is_cut: bool,
}

impl Summary {
    /// Tokens per second of the steps after the first; none where that says nothing about speed.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let (tokens, seconds) = (self.stats.generated_tokens, self.stats.generation_time.as_secs_f64());
        let is_measured = tokens > 1 && seconds > 0.0 && !self.may_be_forced;
        is_measured.then(|| (tokens - 1) as f64 / seconds)
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stats = self.stats;
        write!(f, "{}", counted(stats.prompt_tokens, "prompt token"))?;
        if stats.cached_tokens > 0 {
            write!(f, " ({} cached)", stats.cached_tokens)?;
        }
        let (tokens, first) = (stats.generated_tokens, stats.time_to_first_token.as_secs_f64());
        write!(f, ", {tokens} generated, first token after {first:.2} s")?;
        if let Some(rate) = self.tokens_per_second() {
            write!(f, ", {rate:.1} tokens/s")?;
        }
        let drafts = stats.drafts;
        if drafts.drafted > 0 {
            write!(f, ", {} of {} draft tokens accepted", drafts.accepted, drafts.drafted)?;
        }
        match drafts.not_drafted {
            Some(NotDrafted::NotFollowed) => {
                write!(f, ", not drafted: the draft model has not seen the text before")?;
            }
            Some(NotDrafted::DraftContext) => {
                write!(f, ", not drafted to its end: the draft model was trained for shorter texts")?;
            }
            Some(NotDrafted::Off | NotDrafted::StatefulSampler) | None => {}
        }
        if let Some(seed) = self.seed {
            write!(f, ", seed {seed}")?;
        }
        if stats.sampled_outside_graph > 0 {
            write!(f, ", {} sampled outside the graph", stats.sampled_outside_graph)?;
        }
        match &self.reason {
            FinishReason::EndOfText => {}
            FinishReason::StopString(text) => write!(f, "; stopped at {text:?}")?,
            FinishReason::MaxTokens => write!(f, "; stopped at --max-tokens")?,
            FinishReason::ContextFull => write!(f, "; stopped because the context is full (see --ctx-size)")?,
            FinishReason::Cancelled => write!(f, "; interrupted")?,
        }
        if self.was_shifted {
            write!(f, "; the context was full, its oldest tokens were discarded")?;
        }
        Ok(())
    }
}

/// A number of things in words: `1 message`, `2 messages`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
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
    let threads = flags.threads.and_then(|Limit(threads)| threads);
    let threads = threads.unwrap_or_else(|| masked.unwrap_or_else(cores));
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
    let name = file.path.file_stem().unwrap_or_default().to_string_lossy();
    let _waiting = Waiting::start(false, format!("loading {}", escape(&name)));
    load_counted(file, device, options, &AtomicUsize::new(0))
}

fn load_counted(
    file: &ModelFile,
    device: Device,
    options: &LoadOptions,
    packed_bytes: &AtomicUsize,
) -> anyhow::Result<Stepper<Device>> {
    Stepper::load_counted(device, &file.gguf, options, packed_bytes).map_err(|error| {
        let hint = match &error {
            LoadError::Memory(StateMemoryError::Kv { .. }) => {
                " (--ctx-size, --cache-type-k, --cache-type-v, --cache-mib)"
            }
            LoadError::ContextMemory { .. } => {
                " (--ctx-size, --cache-type-k, --cache-type-v, --cache-mib, --np)"
            }
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
    let path = fetch_model(store, flags)?;
    let gguf = GgufFile::open(&path)?;
    Ok(ModelFile { path, gguf })
}

/// Opens draft models by name, from where the target comes from.
pub fn draft_opener<'a>(
    store: &'a Store,
    target: &'a ModelFlags,
) -> impl Fn(&str) -> anyhow::Result<ModelFile> + 'a {
    move |name| open_model(store, &ModelFlags { model: Some(name.to_owned()), ..target.clone() })
}

/// The path of the model that the flags select, fetched first if it is known and missing.
fn fetch_model(store: &Store, flags: &ModelFlags) -> anyhow::Result<PathBuf> {
    let sources = Sources::new(&flags.hub.endpoint, &flags.hub.modelscope)?;
    pull::resolve_or_pull(store, &sources, flags.model.as_deref()).map_err(|error| {
        let is_unreachable = matches!(error, PullError::Hub(HubError::Unreachable { .. }));
        let error = anyhow::Error::new(error);
        if !is_unreachable {
            return error;
        }
        let names = store.names().unwrap_or_default().join(", ");
        let here = if names.is_empty() { "nothing yet".to_owned() } else { names };
        error.context(format!(
            "the model cannot be fetched; a file works without network (-m FILE.gguf), and so does what is in the store: {here}"
        ))
    })
}

/// A model file that is being loaded, and what the user sees meanwhile.
pub struct Loading {
    /// The file.
    pub file: ModelFile,
    tokenizer: Arc<Tokenizer>,
    packed_bytes: Arc<AtomicUsize>,
    _waiting: Waiting,
}

impl Loading {
    /// Opens the model that the flags select, and says what is odd about it.
    ///
    /// # Errors
    /// When it cannot be fetched, or is not a model.
    pub fn begin(store: &Store, flags: &ModelFlags, is_quiet: bool) -> anyhow::Result<Loading> {
        let path = fetch_model(store, flags)?;
        let packed_bytes = Arc::new(AtomicUsize::new(0));
        // Known once the file is open, or all files of a split model.
        let all_bytes = Arc::new(AtomicUsize::new(usize::MAX));
        let (packed, all) = (Arc::clone(&packed_bytes), Arc::clone(&all_bytes));
        let what = format!("loading {}", escape(&path.file_stem().unwrap_or_default().to_string_lossy()));
        let share = move || packed.load(Ordering::Relaxed) as f64 / all.load(Ordering::Relaxed) as f64;
        let waiting = Waiting::with_share(is_quiet, what, share);
        let file = ModelFile { gguf: GgufFile::open(&path)?, path };
        all_bytes.store(file.gguf.bytes_total(), Ordering::Relaxed);
        let tokenizer = Arc::new(file.tokenizer()?);
        tokenizer.warnings().iter().for_each(|warning| notify(&format!("warning: {warning}")));
        Ok(Loading { file, tokenizer, packed_bytes, _waiting: waiting })
    }

    /// Loads the model and its draft model, and starts its engine. `template` replaces the model's own.
    fn start_engine(
        &self,
        device: Device,
        options: &LoadOptions,
        template: Option<String>,
        (speculation, draft): (&SpeculationFlags, Option<Draft>),
    ) -> anyhow::Result<Engine> {
        let Loading { file, tokenizer, packed_bytes, .. } = self;
        let has_own = file.gguf.metadata().contains(CHAT_TEMPLATE);
        let template = match template {
            None if has_own => Some(file.chat_template()?.to_owned()),
            other => other,
        };
        let mut stepper = load_counted(file, device, options, packed_bytes)?;
        let draft_model = draft.map(|draft| draft.append(&mut stepper, file)).transpose()?;
        let name = file.path.file_stem().unwrap_or_default().to_string_lossy();
        let options = EngineOptions {
            model_name: name.into_owned(),
            drafters: speculation.drafters(),
            draft_model,
            ..EngineOptions::default()
        };
        let text = TextProcessor { tokenizer: Arc::clone(tokenizer), template };
        Ok(Engine::start(stepper, text, options)?)
    }
}

impl Session {
    /// Loads a model for one conversation. `needs_template`: it must have a chat template.
    ///
    /// # Errors
    /// When a flag does not suit the model, the file is not a supported model, or memory does not suffice.
    pub fn open(
        store: &Store,
        model: &ModelFlags,
        flags: &InferenceFlags,
        needs_template: bool,
    ) -> anyhow::Result<Session> {
        let InferenceFlags { generate, template, sequence, device, .. } = flags;
        let grammar = generate.grammar.grammar()?;
        let template = chat_templates::chosen(template)?;
        let lock =
            sequence.session.as_deref().map(|path| SessionLock::take(store, path)).transpose()?.flatten();
        let loading = Loading::begin(store, model, generate.quiet)?;
        let file = &loading.file;
        ensure!(
            !needs_template || template.is_some() || file.gguf.metadata().contains(CHAT_TEMPLATE),
            "the model has no chat template and cannot hold a conversation; use --chat-template, or `verbatim run --no-template`"
        );
        let draft =
            Draft::open(draft_opener(store, model), &generate.speculation, !flags.cache.no_kv_rotation)?;
        let options = load_options(flags);
        let sampling = sampling_for(&loading, generate)?;
        let settings = AnswerSettings::new(sampling, grammar, generate);
        let (device, _) = open_device(device)?;
        let engine = loading.start_engine(device, &options, template, (&generate.speculation, draft))?;
        context_size::explain(&file.gguf, &options, engine.context());
        let name = engine.model_name().to_owned();
        let size = human_bytes(file.path.metadata().map_or(0, |found| found.len()));
        let description = format!(
            "{name}, {} ({size}), context of {} tokens",
            weights_format(&file.gguf),
            engine.context()
        );
        Ok(Session {
            _lock: lock,
            ..Session::with_engine(engine, sequence, settings, description, generate)?
        })
    }

    fn with_engine(
        engine: Engine,
        flags: &SequenceFlags,
        settings: AnswerSettings,
        description: String,
        generate: &GenerateFlags,
    ) -> anyhow::Result<Session> {
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
            if !generate.quiet && conversation.is_empty() {
                notify(&format!("{} holds {}", path.display(), counted(restored.positions, "token")));
            }
        }
        let (id, file, shifts) = (opened.id, flags.session.clone(), flags.context_shift);
        let (is_quiet, hides_reasoning) = (generate.quiet, generate.hide_reasoning);
        Ok(Session {
            engine,
            id,
            file,
            conversation,
            settings,
            description,
            shifts,
            is_quiet,
            hides_reasoning,
            _lock: None,
        })
    }

    /// The conversation that was saved with the session, if any.
    pub fn take_conversation(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.conversation)
    }

    /// The session file, if any.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The model, its size and its context, for people.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.engine.tokenizer()
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
        let _waiting = Waiting::start(self.is_quiet, "saving the session");
        let saved = self.engine.save_session(self.id, path, sections);
        saved.map_err(|error| about_session(error, "was not written"))
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.engine.has_chat_template()
    }

    /// Rejects a system message that the chat template leaves out or rejects. A template that cannot be used at all is left to
    /// the first answer.
    ///
    /// # Errors
    /// When the system message would be lost.
    pub fn check_system(&self, system: &str) -> anyhow::Result<()> {
        let question = Message::new(Role::User, "?");
        let message = Message::new(Role::System, system);
        let format = self.engine.chat_format();
        if system.trim().is_empty() || format.chat_text(std::slice::from_ref(&question)).is_err() {
            return Ok(());
        }
        match format.chat_text(&[message, question]) {
            Ok(text) if text.contains(system.trim()) => Ok(()),
            Ok(_) => bail!(
                "the chat template of this model leaves out system messages: put the text into the prompt, not into --system"
            ),
            Err(error) => Err(anyhow::Error::new(error)
                .context("the chat template of this model takes no system message: put the text into the prompt, not into --system")),
        }
    }

    /// Continues `prompt`, passing each piece to `show` as it arrives. Ctrl-C ends the answer.
    ///
    /// # Errors
    /// When the prompt is empty or does not fit the context, or `show` fails.
    pub fn answer(
        &self,
        prompt: Prompt,
        interrupt: Interrupt,
        show: &mut dyn FnMut(&Piece<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Summary> {
        let depends_on_seed = self.settings.sampling.depends_on_seed();
        let is_constrained = self.settings.grammar.is_some();
        let may_be_forced = is_constrained || self.settings.reasoning_budget.is_some();
        let mut waiting = Some(Waiting::start(self.is_quiet, "reading the prompt"));
        let request = self.settings.request(prompt);
        let answer = self.engine.submit(Request { session: Some(self.id), ..request });
        let _cancelling = interrupt.cancels(answer.canceller());
        let progress = answer.progress();
        let mut used_seed = None;
        let mut is_thinking = false;
        let mut reasoning_style = ReasoningStyle::new(self.hides_reasoning);
        for event in answer {
            match event {
                Event::Started { seed, prompt_tokens, cached_tokens, warning } => {
                    used_seed = Some(seed);
                    warning.iter().for_each(|warning| notify(&format!("warning: {warning}")));
                    let tokens = prompt_tokens - cached_tokens;
                    let what = format!("reading the prompt, {}", counted(tokens, "token"));
                    let progress = progress.clone();
                    let share = move || progress.computed_tokens() as f64 / tokens.max(1) as f64;
                    waiting = Some(Waiting::with_share(self.is_quiet, what, share));
                }
                Event::Text { text, reasoning, tokens, .. } => {
                    let shown = reasoning_style.join(&reasoning, &text);
                    // What is thought and not shown takes its time.
                    let is_hidden = shown.is_empty() && !reasoning.is_empty();
                    if !is_hidden || !is_thinking {
                        waiting = is_hidden.then(|| Waiting::start(self.is_quiet, "thinking"));
                    }
                    is_thinking = is_hidden;
                    show(&Piece { text: &text, reasoning: &reasoning, shown: &shown, tokens: &tokens })?;
                }
                Event::Finished { reason, stats } => {
                    drop(waiting);
                    let is_over = matches!(reason, FinishReason::MaxTokens | FinishReason::ContextFull);
                    let tokens = stats.prompt_tokens + stats.generated_tokens;
                    return Ok(Summary {
                        is_cut: is_constrained && is_over,
                        reason,
                        stats,
                        seed: used_seed.filter(|_| depends_on_seed),
                        may_be_forced,
                        was_shifted: self.shifts && tokens > self.engine.context(),
                    });
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
    /// Otherwise its beginning is marked.
    is_dimmed: bool,
    is_open: bool,
}

impl ReasoningStyle {
    fn new(hide: bool) -> ReasoningStyle {
        let is_shown = !hide && io::stdout().is_terminal();
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
        ReasoningStyle { is_shown, is_dimmed: !is_plain && has_terminal_commands(), is_open: false }
    }

    fn join(&mut self, reasoning: &str, answer: &str) -> String {
        let mut shown = String::new();
        if self.is_shown && !reasoning.is_empty() {
            if self.is_dimmed {
                shown.push_str(&format!("\x1b[2m{reasoning}\x1b[0m"));
            } else {
                shown.push_str(if self.is_open { "" } else { "(thinking) " });
                shown.push_str(reasoning);
            }
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
    let loading = Loading::begin(store, &args.model, args.inference.generate.quiet)?;
    let draft = Draft::open(
        draft_opener(store, &args.model),
        &args.inference.generate.speculation,
        !args.inference.cache.no_kv_rotation,
    )?;
    let (engine, request) = start_for_requests(&loading, &args.inference, sequences, draft)?;
    let system = args.inference.generate.system.clone();
    Ok((engine, Defaults { request, system, is_raw: args.no_template }))
}

/// Loads a model and its draft model for this many requests at once; also returns what the flags say about all requests, with an
/// empty prompt.
///
/// # Errors
/// As [`open_engine`].
pub fn start_for_requests(
    loading: &Loading,
    flags: &InferenceFlags,
    sequences: usize,
    draft: Option<Draft>,
) -> anyhow::Result<(Engine, Request)> {
    let generate = &flags.generate;
    let grammar = generate.grammar.grammar()?;
    let template = chat_templates::chosen(&flags.template)?;
    let options = LoadOptions { sequences, ..load_options(flags) };
    let settings = AnswerSettings::new(sampling_for(loading, generate)?, grammar, generate);
    let (device, _) = open_device(&flags.device)?;
    let engine = loading.start_engine(device, &options, template, (&generate.speculation, draft))?;
    context_size::explain(&loading.file.gguf, &options, engine.context());
    Ok((engine, settings.request(Prompt::Text(String::new()))))
}

fn load_options(flags: &InferenceFlags) -> LoadOptions {
    let InferenceFlags { generate, sequence, cache, .. } = flags;
    LoadOptions {
        context: sequence.context_tokens.and_then(|Limit(tokens)| tokens),
        k: cache.cache_type_k,
        v: cache.cache_type_v,
        hadamard: !cache.no_kv_rotation,
        cache_bytes: sequence.cache_mib.saturating_mul(1 << 20),
        backend_sampling: !generate.sampling.no_backend_sampling,
        memory: Some(machine::memory),
        ..LoadOptions::default()
    }
}

/// The sampling settings of the flags, for what they leave out those of the file.
fn sampling_for(loading: &Loading, generate: &GenerateFlags) -> anyhow::Result<Sampling> {
    let (recommended, problems) = recommended_sampling(&loading.file.gguf);
    problems.iter().for_each(|problem| notify(&format!("warning: {problem}")));
    let sampling = generate.sampling.settings(recommended, &loading.tokenizer)?;
    let has_samplers = generate.sampling.samplers.is_some() || generate.sampling.sampler_letters.is_some();
    if sampling.mirostat && (has_samplers || sampling.adaptive_target >= 0.0) {
        notify("warning: --mirostat replaces --samplers and --adaptive-target, which have no effect");
    }
    Ok(sampling)
}

/// A session error, with the flags that caused it. `what` is the problem if it is the file.
fn about_session(error: SessionError, what: &'static str) -> anyhow::Error {
    match error {
        SessionError::Shift(error) => {
            anyhow::Error::new(error).context("--context-shift does not work with this model")
        }
        SessionError::Keep { keep, context } => {
            anyhow!(
                "--keep {keep} leaves no room in a context of {context} tokens: use at most {}",
                context.saturating_sub(2)
            )
        }
        SessionError::File(error) => {
            let flags = match error {
                SaveError::Restore { error: RestoreError::KvFormatMismatch { .. }, .. } => {
                    " with these --cache-type-k, --cache-type-v and --no-kv-rotation"
                }
                SaveError::Restore { error: RestoreError::State(StateError::ContextFull { .. }), .. } => {
                    " with this --ctx-size"
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
            "{error}; use a larger --ctx-size, a shorter prompt or --context-shift (in a conversation, /clear)"
        ),
        RequestError::State(error @ StateError::OutOfMemory { .. })
        | RequestError::Step(StepError::State(error @ StateError::OutOfMemory { .. })) => {
            anyhow!("{error} (--cache-type-k, --cache-type-v)")
        }
        RequestError::Chat(ChatError::NoTemplate) => {
            anyhow!("{error}; use --no-template, or --chat-template")
        }
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
