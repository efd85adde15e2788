//! A loaded model with its tokenizer, its chat template and one sequence that goes on from answer to answer.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;
use verbatim_engine::{Engine, LoadOptions, Sampler, SequenceId, StateError};
use verbatim_gguf::GgufFile;
use verbatim_text::{ChatTemplate, Detokenizer, Special, Tokenizer};

use crate::cpu_mask::CpuMask;
use crate::flags::{CacheFlags, GenerateFlags, ModelFlags, SequenceFlags, ThreadFlags};
use crate::interrupt::Interrupt;
use crate::model_file::ModelFile;
use crate::pull::{self, Suppliers};
use crate::repl::Message;
use crate::standard_io::{notify, refuse_model};
use crate::store::Store;

/// A model ready to answer.
pub struct Session {
    engine: Engine,
    tokenizer: Tokenizer,
    /// Source of the chat template. Compiled when it is used: without it a broken one does no harm.
    template: Option<String>,
    sequence: SequenceId,
    /// All that the sequence was fed, also what was dropped when the context was full.
    fed: Vec<u32>,
    /// What is dropped when the context is full: half of what comes after so many tokens.
    shift_keep: Option<usize>,
    /// Where the sequence is kept between processes.
    file: Option<PathBuf>,
    /// The conversation that was kept with it.
    conversation: Vec<Message>,
}

/// The section of a session's file with all tokens that were fed.
const FED: &str = "fed";
/// The section with the messages of a conversation, as JSON.
const CONVERSATION: &str = "conversation";

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The model said its last word.
    Model,
    /// As many tokens as were asked for.
    Limit,
    /// The context has no room for another token.
    ContextFull,
    /// Ctrl-C.
    Interrupted,
}

/// What an answer took.
#[derive(Debug, Clone, Copy)]
pub struct Summary {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were still in the sequence from before.
    pub reused_tokens: usize,
    /// Tokens generated, the end token not counted.
    pub tokens: usize,
    /// From the beginning to the first token.
    pub first_token: Duration,
    /// From the first token to the end.
    pub rest: Duration,
    /// Why it ended.
    pub ending: Ending,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first = self.first_token.as_secs_f64();
        write!(f, "{} prompt tokens", self.prompt_tokens)?;
        if self.reused_tokens > 0 {
            write!(f, " ({} reused)", self.reused_tokens)?;
        }
        write!(f, ", {} tokens, first after {first:.2} s", self.tokens)?;
        if self.tokens > 1 {
            write!(f, ", then {:.1} tokens/s", (self.tokens - 1) as f64 / self.rest.as_secs_f64())?;
        }
        match self.ending {
            Ending::Model => Ok(()),
            Ending::Limit => write!(f, "; stopped at the limit"),
            Ending::ContextFull => write!(f, "; stopped because the context is full (see --ctx)"),
            Ending::Interrupted => write!(f, "; interrupted"),
        }
    }
}

/// How many threads compute: as asked for, else one for each CPU of `--cpu-mask`, else one per physical core: threads of one
/// core would share its vector units. From now on they stay on the CPUs of the mask, since threads inherit where they may
/// run.
///
/// # Errors
/// When the mask names CPUs that cannot be used.
pub fn place_threads(flags: &ThreadFlags) -> anyhow::Result<usize> {
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

/// Opens the model that the flags name, fetching it first if it is known and missing.
///
/// # Errors
/// When it cannot be had or is not whole.
pub fn open_model(store: &Store, flags: &ModelFlags) -> anyhow::Result<ModelFile> {
    let suppliers = Suppliers::new(&flags.hub.endpoint)?;
    let path = pull::resolve_or_pull(store, &suppliers, flags.model.as_deref())?;
    let gguf = GgufFile::open(&path)?;
    Ok(ModelFile { path, gguf })
}

impl Session {
    /// Loads a model for one conversation.
    ///
    /// # Errors
    /// When the file is no model that can be run, or memory does not suffice.
    pub fn open(
        store: &Store,
        model: &ModelFlags,
        threads_flags: &ThreadFlags,
        cache: &CacheFlags,
        sequence: &SequenceFlags,
        generate: &GenerateFlags,
    ) -> anyhow::Result<Session> {
        let file = open_model(store, model)?;
        let options = LoadOptions {
            threads: place_threads(threads_flags)?,
            context: generate.context_tokens.map(|tokens| tokens.get() as usize),
            k: cache.cache_type_k,
            v: cache.cache_type_v,
            rotation: !cache.no_kv_rotation,
            cache_bytes: sequence.cache_mib.saturating_mul(1 << 20),
            ..LoadOptions::default()
        };
        Session::load(&file, &options, sequence)
    }

    fn load(file: &ModelFile, options: &LoadOptions, flags: &SequenceFlags) -> anyhow::Result<Session> {
        let tokenizer = file.tokenizer()?;
        let has_template = file.gguf.metadata().contains("tokenizer.chat_template");
        let template = has_template.then(|| file.chat_template()).transpose()?.map(str::to_owned);
        let mut engine = Engine::load(&file.gguf, options).with_context(|| about(&file.path))?;
        let context = engine.context();
        let shift_keep = flags.context_shift.then_some(flags.keep);
        if flags.context_shift {
            engine.can_remove().context("--context-shift cannot be used with this model")?;
            ensure!(
                flags.keep < context.saturating_sub(1),
                "--keep {} leaves nothing to drop of a context of {context}",
                flags.keep
            );
        }
        if let Some(path) = &flags.session {
            refuse_model(path)?;
            check_session(path)?;
        }
        let (mut fed, mut conversation) = (Vec::new(), Vec::new());
        let sequence = match flags.session.as_deref().filter(|path| path.exists()) {
            None => engine.begin()?,
            Some(path) => {
                let (restored, saved) = engine.restore_file(path).context("--session cannot be continued")?;
                let tokens = saved.section(FED).unwrap_or_default().as_chunks::<4>().0.iter();
                fed = tokens.map(|token| u32::from_le_bytes(*token)).collect();
                if let Some(messages) = saved.section(CONVERSATION) {
                    conversation = serde_json::from_slice(messages).with_context(|| {
                        format!("{}: the conversation in it cannot be read", path.display())
                    })?;
                }
                notify(&format!("{} holds {} tokens", path.display(), restored.positions));
                restored.sequence
            }
        };
        let file = flags.session.clone();
        Ok(Session { engine, tokenizer, template, sequence, fed, shift_keep, file, conversation })
    }

    /// The conversation that was kept with the session, if it was one.
    pub fn take_conversation(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.conversation)
    }

    /// Writes what was computed, and the conversation if it was one, to the file that it is to be kept in, if there is one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, conversation: &[Message]) -> anyhow::Result<()> {
        match &self.file {
            None => Ok(()),
            Some(path) => {
                let fed = self.fed.iter().flat_map(|token| token.to_le_bytes()).collect();
                let mut sections = vec![(FED, fed)];
                if !conversation.is_empty() {
                    sections.push((CONVERSATION, serde_json::to_vec(conversation)?));
                }
                self.engine.save_file(self.sequence, sections, path).context("--session was not written")
            }
        }
    }

    /// Whether the model says how to write a conversation.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens of a conversation that the assistant is to continue.
    ///
    /// # Errors
    /// When the model has no chat template, or it refuses the conversation.
    pub fn conversation_tokens(&self, messages: &[Message]) -> anyhow::Result<Vec<u32>> {
        let template = self.template.as_ref().context("the model has no chat template; use --no-template")?;
        let template = ChatTemplate::new(template)?;
        let mut context = json!({ "messages": messages, "add_generation_prompt": true, "tools": null });
        for (name, id) in [("bos_token", self.tokenizer.bos()), ("eos_token", self.tokenizer.eos())] {
            if let Some(id) = id {
                context[name] = String::from_utf8_lossy(self.tokenizer.piece(id)).into();
            }
        }
        // The template writes the special tokens itself, the first one included.
        Ok(self.tokenizer.encode(&template.render(&context)?, Special::Parse, false))
    }

    /// The tokens of a text that is to be continued as it is.
    pub fn text_tokens(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, Special::Parse, true)
    }

    /// Continues `prompt` token by token, handing each piece of text to `show` as soon as its characters are whole.
    ///
    /// The beginning that the prompt shares with what the sequence has seen is not computed again; that changes
    /// nothing but the time.
    ///
    /// # Errors
    /// When the prompt is empty or does not fit the context, or `show` fails.
    pub fn answer(
        &mut self,
        prompt: &[u32],
        generate: &GenerateFlags,
        interrupt: Interrupt,
        show: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Summary> {
        ensure!(!prompt.is_empty(), "the prompt is empty");
        let context = self.engine.context();
        ensure!(
            prompt.len() <= context || self.shift_keep.is_some(),
            "the prompt has {} tokens and the context has room for {context}; use a larger --ctx, a shorter prompt or --context-shift \
             (in a conversation, /reset)",
            prompt.len()
        );
        let sampler =
            Sampler::new(generate.temperature, generate.seed).context("the temperature is no number")?;
        let started = Instant::now();
        let reused_tokens = self.reuse(prompt)?;
        let mut detokenizer = Detokenizer::new();
        let mut summary = Summary {
            prompt_tokens: prompt.len(),
            reused_tokens,
            tokens: 0,
            first_token: Duration::ZERO,
            rest: Duration::ZERO,
            ending: Ending::Limit,
        };
        let limit = generate.max_tokens.map_or(usize::MAX, |tokens| tokens as usize);
        let mut fed = prompt[reused_tokens..].to_vec();
        let mut first = None;
        while summary.tokens < limit {
            if self.engine.len(self.sequence)? == context && !self.shift()? {
                summary.ending = Ending::ContextFull;
                break;
            }
            // A prompt may be longer than the context, where that shifts: it shifts at the same tokens as if they were fed
            // one by one, so what is left does not depend on how they came.
            let room = context - self.engine.len(self.sequence)?;
            let later = fed.split_off(fed.len().min(room));
            let Some(token) = self.advance(&fed, &sampler, interrupt)? else {
                summary.ending = Ending::Interrupted;
                break;
            };
            if !later.is_empty() {
                fed = later;
                continue;
            }
            first.get_or_insert_with(Instant::now);
            if self.tokenizer.is_end(token) {
                summary.ending = Ending::Model;
                break;
            }
            summary.tokens += 1;
            let text = detokenizer.push(self.tokenizer.visible_piece(token));
            if !text.is_empty() {
                show(text)?;
            }
            fed = vec![token];
        }
        let rest = detokenizer.finish();
        if !rest.is_empty() {
            show(rest)?;
        }
        interrupt.take();
        summary.first_token = first.map_or_else(|| started.elapsed(), |first| first - started);
        summary.rest = first.map_or(Duration::ZERO, |first| first.elapsed());
        Ok(summary)
    }

    fn advance(
        &mut self,
        fed: &[u32],
        sampler: &Sampler,
        interrupt: Interrupt,
    ) -> anyhow::Result<Option<u32>> {
        let drawn = self.engine.advance(self.sequence, fed, sampler, || !interrupt.is_raised());
        // Whatever happened, the books follow what the engine has committed.
        let added = (self.engine.len(self.sequence)? + self.engine.removed(self.sequence)?)
            .saturating_sub(self.fed.len());
        self.fed.extend_from_slice(&fed[..added.min(fed.len())]);
        Ok(drawn?)
    }

    /// Drops half of what comes after the tokens that are always kept. `false` if nothing is to be dropped.
    fn shift(&mut self) -> anyhow::Result<bool> {
        let Some(keep) = self.shift_keep else { return Ok(false) };
        let drop = (self.engine.len(self.sequence)? - keep).div_ceil(2);
        self.engine.remove(self.sequence, keep..keep + drop)?;
        Ok(true)
    }

    /// Keeps the longest common beginning of the sequence and the prompt, short of the prompt's last token: that one has
    /// to be fed for its logits.
    fn reuse(&mut self, prompt: &[u32]) -> anyhow::Result<usize> {
        let most = prompt.len() - 1;
        let common = self.fed.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(most);
        match self.engine.removed(self.sequence)? {
            0 => match self.engine.truncate(self.sequence, common) {
                Ok(()) => self.fed.truncate(common),
                // What stays cannot be gone on from; perhaps from a point before it.
                Err(StateError::CannotGoBack { .. }) => {
                    self.engine.end(self.sequence)?;
                    self.sequence = self.engine.begin()?;
                    let reused = self.engine.reuse(self.sequence, &prompt[..most])?;
                    self.fed = prompt[..reused].to_vec();
                }
                Err(error) => return Err(error.into()),
            },
            _ if common == self.fed.len() => {}
            // Where something was dropped from the middle, there is no going back but to the start.
            _ => {
                self.engine.truncate(self.sequence, 0)?;
                self.fed.clear();
            }
        }
        Ok(self.fed.len())
    }
}

/// Whether a session can be kept in this file, before anything is computed for it.
fn check_session(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    ensure!(!path.exists() || path.is_file(), "--session {shown}: this is not a regular file");
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let problem = || format!("--session {shown}: nothing can be written in the folder {}", folder.display());
    tempfile::tempfile_in(folder).with_context(problem).map(drop)
}

fn about(path: &Path) -> String {
    format!("{} cannot be loaded", path.display())
}

/// Says that a prompt is continued as it is because the model has no chat template.
pub fn notify_no_template() {
    notify("the model has no chat template: the prompt is continued as it is");
}
