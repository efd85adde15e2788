//! Every command and every flag of `verbatim`, each defined once: here, or in `grammar_flags`, `sampling_flags` and
//! `speculation_flags`.
//!
//! The parser, `--help`, the man pages, the shell completions and the environment variables all come from these
//! definitions. A flag on the command line wins over its environment variable.
//! Flags that several commands share are in separate structs ([`ModelFlags`], [`CacheFlags`], …), so that a
//! flag means the same thing wherever it appears.
//!
//! The variables are not read by clap but by [`command_line`](crate::command_line), so that errors can name them and a flag
//! overrides every variable that contradicts it.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::builder::{FalseyValueParser, NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::{ArgValueCompleter, Shell};
use verbatim_device::DeviceKind;
use verbatim_engine::KvType;
use verbatim_lab::synth::QuantType;

use crate::completer;
use crate::cpu_mask::CpuMask;
use crate::grammar_flags::GrammarFlags;
use crate::sampling_flags::SamplingFlags;
use crate::server_flags::ServerFlags;
use crate::speculation_flags::SpeculationFlags;
use crate::values::{self, Limit};

/// The command line of `verbatim`.
#[derive(Debug, Parser)]
#[command(
    name = "verbatim",
    version,
    about = "Run language models on this machine, with bit-for-bit reproducible output",
    long_about = "Run language models on this machine. The output is bit for bit that of plain token-by-token \
                  decoding, whatever the number of threads or requests.",
    after_help = "The options of llama-cli are accepted under their names there: `verbatim -m model.gguf -p \"Hello\"`. So is \
                  Ollama's `verbatim run MODEL \"Hello\"`.",
    args_override_self = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub common: CommonFlags,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
pub struct CommonFlags {
    /// Folder that holds the models [default: `verbatim` in the user's data folder]
    #[arg(long, value_name = "DIR", env = "VERBATIM_HOME", global = true, value_hint = ValueHint::DirPath)]
    pub home: Option<PathBuf>,
    /// Config file [default: `verbatim/config.toml` in the user's config folder]
    #[arg(
        long,
        value_name = "FILE",
        env = "VERBATIM_CONFIG_FILE",
        global = true,
        value_hint = ValueHint::FilePath
    )]
    pub config_file: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one prompt
    Run(RunArgs),
    /// Hold a conversation in the terminal
    Chat(ChatArgs),
    /// Answer over HTTP, by the APIs of OpenAI, Anthropic, llama.cpp and Ollama
    Serve(ServeArgs),
    /// Show what a model is, what it needs and what is inside its file; the exit status is 0 only if it can be loaded
    #[command(visible_alias = "show")]
    Inspect(InspectArgs),
    /// Turn text on standard input into token ids, or ids back into text
    Tokenize(TokenizeArgs),
    /// Render chat messages on standard input with a chat template
    Template(TemplateArgs),
    /// Write the logits of every token of a sequence to a .safetensors file
    Logits(LogitsArgs),
    /// Measure how fast a model runs on this machine
    Bench(BenchArgs),
    /// Measure the perplexity of a text
    Perplexity(PerplexityArgs),
    /// Check on this machine that batching, drafts and caches change no token of a model's answers
    Verify(VerifyArgs),
    /// Write a model of a known shape with random weights, for benchmarks
    Synth(SynthArgs),
    /// Fetch a model into the store, or list those that can be fetched by name
    Pull(PullArgs),
    /// List the models in the store
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Remove models from the store
    Rm(RmArgs),
    /// Add another name for a model in the store
    Cp(CpArgs),
    /// Show and change the settings in the config file
    Config(ConfigArgs),
    /// Write the manual page, or one page per command into a folder
    Man(ManArgs),
    /// Write a shell's completion script to standard output
    Completions(CompletionsArgs),
}

/// Which model to use.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    /// Model: a file, a name in the store, or what `verbatim pull` takes [default: qwen3:0.6b]
    #[arg(short, long, value_name = "MODEL", env = "VERBATIM_MODEL", add = ArgValueCompleter::new(completer::models))]
    pub model: Option<String>,
    /// Where missing models are fetched from.
    #[command(flatten)]
    pub hub: HubFlags,
}

/// Where models are fetched from.
#[derive(Debug, Clone, Args)]
pub struct HubFlags {
    /// Model hub to fetch from; its access token is read from HF_TOKEN
    #[arg(
        long = "hub",
        id = "hub",
        value_name = "URL",
        env = "HF_ENDPOINT",
        default_value = "https://huggingface.co",
        value_hint = ValueHint::Url
    )]
    pub endpoint: String,
    /// ModelScope's address, for ms:OWNER/REPO
    #[arg(
        long,
        value_name = "URL",
        env = "VERBATIM_MODELSCOPE",
        default_value = "https://modelscope.cn",
        value_hint = ValueHint::Url
    )]
    pub modelscope: String,
}

/// Backend and threads. The text depends on the backend and not on the threads.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Backend and threads")]
pub struct DeviceFlags {
    /// Backend: cpu, or reference (slow scalar code, to compare with)
    #[arg(
        long,
        value_name = "NAME",
        env = "VERBATIM_BACKEND",
        default_value = "cpu",
        ignore_case = true,
        value_parser = device_kind()
    )]
    pub backend: DeviceKind,
    /// Number of threads [default: one per physical core]; does not change the text
    #[arg(short, long, value_name = "N", env = "VERBATIM_THREADS", value_parser = values::threads)]
    pub threads: Option<Limit>,
    /// Logical CPUs to compute on, in hexadecimal: bit i is CPU i [default: all]
    #[arg(long, value_name = "MASK", env = "VERBATIM_CPU_MASK")]
    pub cpu_mask: Option<CpuMask>,
}

/// Types of the KV cache. The text depends on them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "KV cache")]
pub struct CacheFlags {
    /// Type of K in the KV cache
    #[arg(
        long,
        visible_alias = "ctk",
        value_name = "FORMAT",
        env = "VERBATIM_CTK",
        default_value = "f16",
        ignore_case = true,
        value_parser = values::kv_type()
    )]
    pub cache_type_k: KvType,
    /// Type of V in the KV cache
    #[arg(
        long,
        visible_alias = "ctv",
        value_name = "FORMAT",
        env = "VERBATIM_CTV",
        default_value = "f16",
        ignore_case = true,
        value_parser = values::kv_type()
    )]
    pub cache_type_v: KvType,
    /// Disable the Hadamard transform before KV quantisation (less accurate)
    #[arg(long, env = "VERBATIM_NO_KV_ROTATION", value_parser = switch())]
    pub no_kv_rotation: bool,
}

/// A backend, by its name.
fn device_kind() -> impl TypedValueParser<Value = DeviceKind> {
    PossibleValuesParser::new(DeviceKind::ALL.map(DeviceKind::name))
        .try_map(|name| name.to_ascii_lowercase().parse::<DeviceKind>())
}

/// Size of the prefix cache in MiB where nothing is said.
pub const DEFAULT_CACHE_MIB: usize = 256;

/// Context size, context shift, session file and prefix cache.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Context and session")]
pub struct SequenceFlags {
    /// Context size in tokens: memory is taken as it is used [default: what the model was trained for, or what fits the memory]
    #[arg(
        short = 'c',
        long = "ctx-size",
        visible_alias = "ctx",
        value_name = "N",
        env = "VERBATIM_CTX",
        value_parser = values::context
    )]
    pub context_tokens: Option<Limit>,
    /// When the context is full, keep the first --keep tokens, discard the older half of the rest and continue, instead of stopping
    #[arg(long, env = "VERBATIM_CONTEXT_SHIFT", value_parser = switch(), overrides_with = "no_context_shift")]
    pub context_shift: bool,
    /// Stop when the context is full: this is the default
    #[arg(long, env = "VERBATIM_NO_CONTEXT_SHIFT", value_parser = switch(), overrides_with = "context_shift")]
    pub no_context_shift: bool,
    /// Tokens at the start that --context-shift never discards
    #[arg(long, value_name = "N", env = "VERBATIM_KEEP", default_value = "4", value_parser = values::count)]
    pub keep: usize,
    /// Session file with the conversation and its KV cache: continued if it exists, saved after each answer
    #[arg(long, value_name = "FILE", env = "VERBATIM_SESSION", value_hint = ValueHint::FilePath)]
    pub session: Option<PathBuf>,
    /// Size of the prefix cache in MiB
    #[arg(
        long,
        value_name = "MIB",
        env = "VERBATIM_CACHE_MIB",
        default_value_t = DEFAULT_CACHE_MIB,
        value_parser = values::count
    )]
    pub cache_mib: usize,
}

/// When to stop, and what comes before the conversation.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Answer")]
pub struct GenerateFlags {
    /// Maximum number of tokens to generate [default: until the model stops or the context is full]
    #[arg(
        short = 'n',
        long,
        visible_aliases = ["predict", "n-predict"],
        value_name = "N",
        env = "VERBATIM_MAX_TOKENS",
        value_parser = values::max_tokens
    )]
    pub max_tokens: Option<Limit>,
    /// Stop string, not part of the answer; may be given several times
    #[arg(
        long,
        visible_alias = "reverse-prompt",
        value_name = "TEXT",
        env = "VERBATIM_STOP",
        allow_hyphen_values = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub stop: Vec<String>,
    /// System message that comes before the conversation
    #[arg(
        long,
        visible_alias = "system-prompt",
        value_name = "TEXT",
        env = "VERBATIM_SYSTEM",
        allow_hyphen_values = true
    )]
    pub system: Option<String>,
    /// Tokens that the model may think before it must answer; 0 is none, -1 is any number [default: -1]
    #[arg(long, value_name = "N", env = "VERBATIM_REASONING_BUDGET", value_parser = values::budget)]
    pub reasoning_budget: Option<Limit>,
    /// Show only the answer, not what the model thinks before it
    #[arg(long, env = "VERBATIM_HIDE_REASONING", value_parser = switch())]
    pub hide_reasoning: bool,
    /// Print nothing but the answer: no summary, banner or progress
    #[arg(short, long, env = "VERBATIM_QUIET", value_parser = switch())]
    pub quiet: bool,
    /// What answers must look like.
    #[command(flatten)]
    pub grammar: GrammarFlags,
    /// How to choose the next token.
    #[command(flatten)]
    pub sampling: SamplingFlags,
    /// How to draft the next tokens.
    #[command(flatten)]
    pub speculation: SpeculationFlags,
}

/// How conversations are written for the model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Chat template")]
pub struct ChatTemplateFlags {
    /// Template in place of the model's: a name (chatml, llama2, llama3, gemma, mistral, phi3, zephyr, vicuna), a file, or Jinja
    #[arg(long, value_name = "TEMPLATE", env = "VERBATIM_CHAT_TEMPLATE", value_hint = ValueHint::FilePath)]
    pub chat_template: Option<String>,
    /// Like --chat-template, but from a file
    #[arg(long, value_name = "FILE", env = "VERBATIM_CHAT_TEMPLATE_FILE", value_hint = ValueHint::FilePath)]
    pub chat_template_file: Option<PathBuf>,
}

/// What to answer.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Prompt")]
pub struct PromptFlags {
    /// Prompt: for `run` the same as the argument PROMPT, for `chat` the first message
    #[arg(short, long, value_name = "TEXT", env = "VERBATIM_PROMPT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// File with the prompt
    #[arg(short, long, value_name = "FILE", env = "VERBATIM_PROMPT_FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Process the escape sequences \n, \t, \r, \", \', \\ and \xHH in the prompt
    #[arg(short, long, env = "VERBATIM_ESCAPE", value_parser = switch())]
    pub escape: bool,
}

/// `verbatim run`: one prompt, one answer.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Prompt, or a model and a prompt. `-`, or no prompt, reads standard input; input piped in with a prompt is appended to it. A
    /// model without a prompt starts a chat
    #[arg(value_name = "[MODEL] PROMPT", add = ArgValueCompleter::new(completer::models))]
    pub words: Vec<String>,
    /// What to answer.
    #[command(flatten)]
    pub prompt: PromptFlags,
    /// Which model.
    #[command(flatten)]
    pub model: ModelFlags,
    /// What is printed.
    #[command(flatten)]
    pub output: RunOutputFlags,
    /// The flags that `chat` has too.
    #[command(flatten)]
    pub inference: InferenceFlags,
    /// Raw completion: continue the prompt without applying the chat template
    #[arg(long, env = "VERBATIM_NO_TEMPLATE", value_parser = switch(), help_heading = "Chat template")]
    pub no_template: bool,
    /// Many prompts at once.
    #[command(flatten)]
    pub parallel: ParallelFlags,
}

/// Many prompts at once.
#[derive(Debug, Clone, Args)]
pub struct ParallelFlags {
    /// Answer every line of this file, such as {"prompt": "…"}, or a request of OpenAI's batch API; `-` is standard input
    #[arg(
        long = "parallel",
        id = "parallel",
        value_name = "FILE.jsonl",
        env = "VERBATIM_PARALLEL",
        value_hint = ValueHint::FilePath,
        help_heading = "Many prompts"
    )]
    pub file: Option<PathBuf>,
    /// Append the answers to this file instead of printing them; lines that already have an answer there are skipped
    #[arg(
        short = 'o',
        long,
        value_name = "FILE.jsonl",
        env = "VERBATIM_OUT",
        value_hint = ValueHint::FilePath,
        help_heading = "Many prompts"
    )]
    pub out: Option<PathBuf>,
    /// Requests computed at once; each has memory for a whole context [default: 8]
    #[arg(
        long = "np",
        visible_alias = "slots",
        value_name = "N",
        env = "VERBATIM_NP",
        value_parser = values::positive,
        help_heading = "Many prompts"
    )]
    pub slots: Option<usize>,
}

impl ParallelFlags {
    /// Requests computed at once.
    pub fn slots(&self) -> usize {
        self.slots.unwrap_or(8)
    }
}

/// How `verbatim run` prints an answer.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct RunOutputFlags {
    /// Print a JSON object with the text, its tokens, finish_reason, seed and timings
    #[arg(long, env = "VERBATIM_JSON", value_parser = switch(), overrides_with = "json_lines")]
    pub json: bool,
    /// Print a line of JSON for each piece of text, then one with finish_reason, seed and timings
    #[arg(long, env = "VERBATIM_JSON_LINES", value_parser = switch(), overrides_with = "json")]
    pub json_lines: bool,
}

/// What `run` and `chat` share.
#[derive(Debug, Clone, Args)]
pub struct InferenceFlags {
    /// Profile of the config file (`verbatim config`) to apply over its profile `default`; `none` ignores the config file
    #[arg(long, value_name = "NAME", env = "VERBATIM_PROFILE")]
    pub profile: Option<String>,
    /// Limits, grammar and sampling.
    #[command(flatten)]
    pub generate: GenerateFlags,
    /// The template.
    #[command(flatten)]
    pub template: ChatTemplateFlags,
    /// Context, session and prefix cache.
    #[command(flatten)]
    pub sequence: SequenceFlags,
    /// KV cache types.
    #[command(flatten)]
    pub cache: CacheFlags,
    /// Backend and threads.
    #[command(flatten)]
    pub device: DeviceFlags,
}

/// `verbatim chat`: a conversation in the terminal.
#[derive(Debug, Clone, Args)]
pub struct ChatArgs {
    /// The model, as --model
    #[arg(value_name = "MODEL", add = ArgValueCompleter::new(completer::models))]
    pub name: Option<String>,
    /// The first message.
    #[command(flatten)]
    pub prompt: PromptFlags,
    /// Which model.
    #[command(flatten)]
    pub model: ModelFlags,
    /// The flags that `run` has too.
    #[command(flatten)]
    pub inference: InferenceFlags,
}

/// `verbatim serve`: an HTTP server.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// The model, as --model
    #[arg(value_name = "MODEL", add = ArgValueCompleter::new(completer::models))]
    pub name: Option<String>,
    /// Which model.
    #[command(flatten)]
    pub model: ModelFlags,
    /// Where to listen, and limits.
    #[command(flatten)]
    pub server: ServerFlags,
    /// What requests have in common unless they say otherwise: the flags that `run` has too.
    #[command(flatten)]
    pub inference: InferenceFlags,
}

/// `verbatim config`: the config file.
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    /// The profile to show or change [default: the profile `default`]
    #[arg(long, value_name = "NAME", env = "VERBATIM_PROFILE", global = true)]
    pub profile: Option<String>,
    /// What to do; `list` if nothing is given
    #[command(subcommand)]
    pub action: Option<ConfigAction>,
}

/// What to do with the config file.
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigAction {
    /// Print the value of a setting
    Get {
        /// A flag of `run` and `chat` without its dashes, such as temp
        #[arg(value_name = "KEY")]
        key: String,
    },
    /// Change a setting
    Set {
        /// A flag of `run` and `chat` without its dashes, such as temp
        #[arg(value_name = "KEY")]
        key: String,
        /// Its value, or several for a flag that may be given several times; leave it out to remove the setting
        #[arg(value_name = "VALUE", allow_hyphen_values = true)]
        values: Vec<String>,
    },
    /// Print the settings of all profiles
    List,
    /// Print where the config file is
    Path,
}

/// `verbatim logits`: the logits for given tokens, as a file.
#[derive(Debug, Clone, Args)]
pub struct LogitsArgs {
    /// Which model.
    #[command(flatten)]
    pub model: ModelFlags,
    /// Token ids to evaluate, separated by commas
    #[arg(long, value_name = "IDS", env = "VERBATIM_TOKENS", required = true, value_delimiter = ',')]
    pub tokens: Vec<u32>,
    /// The .safetensors file to write
    #[arg(long, value_name = "FILE", env = "VERBATIM_LOGITS_OUT", value_hint = ValueHint::FilePath)]
    pub out: PathBuf,
    /// Also write the hidden states after every layer
    #[arg(long, env = "VERBATIM_LAYERS", value_parser = switch())]
    pub layers: bool,
    /// Backend and threads.
    #[command(flatten)]
    pub device: DeviceFlags,
    /// Use an f16 KV cache, as `run` does by default, instead of f32
    #[arg(long, env = "VERBATIM_F16_CACHE", value_parser = switch())]
    pub f16_cache: bool,
}

/// `verbatim inspect`: what is inside a model file.
#[derive(Debug, Clone, Args)]
pub struct InspectArgs {
    /// Model file, or the name of a model in the store
    #[arg(value_name = "MODEL", add = ArgValueCompleter::new(completer::models))]
    pub file: String,
    /// Also list every tensor
    #[arg(long, env = "VERBATIM_TENSORS", value_parser = switch())]
    pub tensors: bool,
    /// How to print.
    #[command(flatten)]
    pub output: OutputFlags,
}

/// How to print a result.
#[derive(Debug, Clone, Args)]
pub struct OutputFlags {
    /// Print JSON, with nothing abbreviated
    #[arg(long, env = "VERBATIM_JSON", value_parser = switch())]
    pub json: bool,
}

/// `verbatim tokenize`: text to ids and back.
#[derive(Debug, Clone, Args)]
pub struct TokenizeArgs {
    /// Which vocabulary.
    #[command(flatten)]
    pub vocabulary: VocabularyFlags,
    /// Do not parse special tokens such as <|im_end|>; with --decode, skip them
    #[arg(long, env = "VERBATIM_NO_SPECIAL", value_parser = switch())]
    pub no_special: bool,
    /// Add BOS and EOS if the model file specifies them
    #[arg(long, env = "VERBATIM_ADD_BOS", value_parser = switch())]
    pub add_bos: bool,
    /// Read a JSON array of ids and write their bytes
    #[arg(long, env = "VERBATIM_DECODE", value_parser = switch())]
    pub decode: bool,
}

/// A model file of which only the vocabulary or the chat template is read.
#[derive(Debug, Clone, Args)]
pub struct VocabularyFlags {
    /// Model file, or the name of a model in the store
    #[arg(short, long, value_name = "FILE", env = "VERBATIM_MODEL", add = ArgValueCompleter::new(completer::models))]
    pub model: String,
}

/// `verbatim template`: messages to the text that the model reads.
#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("source").required(true).multiple(true).args(["model", "template_file"])))]
pub struct TemplateArgs {
    /// Model file, or the name of a model in the store, whose template and special tokens are used
    #[arg(short, long, value_name = "FILE", env = "VERBATIM_MODEL", add = ArgValueCompleter::new(completer::models))]
    pub model: Option<String>,
    /// End with the generation prompt: the header of the assistant's turn
    #[arg(long, env = "VERBATIM_ADD_GENERATION_PROMPT", value_parser = switch())]
    pub add_generation_prompt: bool,
    /// JSON file with the array of tools that the model may call
    #[arg(long, value_name = "FILE", env = "VERBATIM_TOOLS", value_hint = ValueHint::FilePath)]
    pub tools: Option<PathBuf>,
    /// Jinja file to render instead of a model's template
    #[arg(long, value_name = "FILE", env = "VERBATIM_TEMPLATE_FILE", value_hint = ValueHint::FilePath)]
    pub template_file: Option<PathBuf>,
    /// JSON object with every variable of the template (`-`: standard input), instead of messages
    #[arg(long, value_name = "FILE", env = "VERBATIM_CONTEXT", value_hint = ValueHint::FilePath)]
    pub context: Option<PathBuf>,
    /// Time returned by strftime_now in templates, such as 2025-02-03T04:05:06 [default: the clock]
    #[arg(long, value_name = "TIME", env = "VERBATIM_NOW")]
    pub now: Option<jiff::civil::DateTime>,
}

/// `verbatim pull`: fetch a model into the store.
#[derive(Debug, Clone, Args)]
pub struct PullArgs {
    /// What to fetch: a known name such as qwen3:4b; hf:OWNER/REPO, for the file that suits this machine; hf:OWNER/REPO:Q4_K_M or
    /// hf:OWNER/REPO/FILE.gguf, each optionally followed by @REVISION; the same with ms: for ModelScope; a URL; or a file. Without
    /// it, the known names are listed
    #[arg(value_name = "MODEL", add = ArgValueCompleter::new(completer::sources))]
    pub source: Option<String>,
    /// Name for the model in the store [default: the known name, or the file's name without .gguf]
    #[arg(long, value_name = "NAME", env = "VERBATIM_PULL_NAME")]
    pub name: Option<String>,
    /// Fail unless the file's SHA-256 is HEX
    #[arg(long, value_name = "HEX", env = "VERBATIM_SHA256")]
    pub sha256: Option<String>,
    /// Where to fetch from.
    #[command(flatten)]
    pub hub: HubFlags,
}

/// `verbatim list`: the models in the store.
#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// List the models that `pull` can fetch by name
    #[arg(long, visible_alias = "catalogue", env = "VERBATIM_KNOWN", value_parser = switch())]
    pub known: bool,
    /// How to print.
    #[command(flatten)]
    pub output: OutputFlags,
}

/// `verbatim rm`: remove models from the store.
#[derive(Debug, Clone, Args)]
pub struct RmArgs {
    /// Names of models in the store
    #[arg(value_name = "NAME", required = true, add = ArgValueCompleter::new(completer::store_names))]
    pub names: Vec<String>,
}

/// `verbatim cp`: another name for a model.
#[derive(Debug, Clone, Args)]
pub struct CpArgs {
    /// Name of the model in the store
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(completer::store_names))]
    pub from: String,
    /// Its additional name
    #[arg(value_name = "NEW")]
    pub to: String,
}

/// `verbatim man`: the manual.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Write verbatim.1 and one page per command into this folder
    #[arg(long, value_name = "DIR", env = "VERBATIM_MAN_OUT", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
}

/// `verbatim completions`: completion scripts.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// Shell to generate the script for
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// `verbatim bench`: how fast a model runs. The names of tests are llama-bench's.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Which model.
    #[command(flatten)]
    pub model: ModelFlags,
    /// Prompt processing (pp) lengths, separated by commas; 0 for none
    #[arg(
        short = 'p',
        long = "n-prompt",
        value_name = "N,…",
        env = "VERBATIM_BENCH_PROMPT",
        default_value = "512",
        value_delimiter = ','
    )]
    pub prompts: Vec<usize>,
    /// Token generation (tg) lengths, separated by commas; 0 for none
    #[arg(
        short = 'n',
        long = "n-gen",
        value_name = "N,…",
        env = "VERBATIM_BENCH_GENERATE",
        default_value = "128",
        value_delimiter = ','
    )]
    pub generations: Vec<usize>,
    /// Context depths: tokens in the KV cache before each test, separated by commas
    #[arg(
        short = 'd',
        long = "n-depth",
        value_name = "N,…",
        env = "VERBATIM_BENCH_DEPTH",
        default_value = "0",
        value_delimiter = ','
    )]
    pub depths: Vec<usize>,
    /// Verification batch sizes: one test per N of a forward pass over N tokens of one sequence, all with logits, as when
    /// verifying draft tokens (row `widthN`); separated by commas; 0 for none
    #[arg(
        long,
        value_name = "N,…",
        env = "VERBATIM_BENCH_WIDTHS",
        default_value = "1,2,4,8",
        value_delimiter = ','
    )]
    pub widths: Vec<usize>,
    /// Repetitions of each test, after a warm-up
    #[arg(short, long, value_name = "N", env = "VERBATIM_BENCH_REPETITIONS", default_value = "5")]
    pub repetitions: NonZeroU32,
    /// Backend and threads.
    #[command(flatten)]
    pub device: DeviceFlags,
    /// KV cache types.
    #[command(flatten)]
    pub cache: CacheFlags,
    /// Measure KV cache operations instead, at --n-depth (8192 if 0): accepting and rejecting draft tokens, forking,
    /// saving
    #[arg(long, alias = "state", env = "VERBATIM_BENCH_CACHE_OPS", value_parser = switch())]
    pub cache_ops: bool,
    /// Also measure this machine's memory bandwidth and peak int8 and f32 throughput
    #[arg(long, env = "VERBATIM_BENCH_PEAKS", value_parser = switch())]
    pub peaks: bool,
    /// Also profile each test: time by op, compared with the peaks
    #[arg(long, env = "VERBATIM_BENCH_PROFILE", value_parser = switch())]
    pub profile: bool,
    /// Write the profile chart to FILE (.svg or .html)
    #[arg(
        long,
        value_name = "FILE",
        env = "VERBATIM_BENCH_PROFILE_OUT",
        value_hint = ValueHint::FilePath
    )]
    pub profile_out: Option<PathBuf>,
    /// Output format
    #[arg(
        short,
        long = "output",
        value_name = "FORMAT",
        env = "VERBATIM_BENCH_OUTPUT",
        default_value = "md"
    )]
    pub output: BenchOutput,
}

/// How measurements are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchOutput {
    /// A table
    Md,
    /// A list of rows, with every sample
    Json,
    /// CSV with a header
    Csv,
}

/// `verbatim perplexity`: the perplexity of a text, computed as llama-perplexity does.
#[derive(Debug, Clone, Args)]
pub struct PerplexityArgs {
    /// Which model.
    #[command(flatten)]
    pub model: ModelFlags,
    /// Text file; `-` reads standard input
    #[arg(short, long, value_name = "FILE", env = "VERBATIM_PERPLEXITY_FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Chunk size in tokens; only the second half of each chunk is scored, as in llama-perplexity
    #[arg(long, value_name = "N", env = "VERBATIM_PERPLEXITY_CTX", default_value = "512")]
    pub ctx: usize,
    /// Maximum number of chunks [default: all]
    #[arg(long, value_name = "N", env = "VERBATIM_PERPLEXITY_CHUNKS")]
    pub chunks: Option<NonZeroU32>,
    /// Backend and threads.
    #[command(flatten)]
    pub device: DeviceFlags,
    /// KV cache types.
    #[command(flatten)]
    pub cache: CacheFlags,
    /// Also report the KL divergence from a KV cache of these types, such as f32,f32
    #[arg(long, value_name = "CTK,CTV", env = "VERBATIM_KL_AGAINST", value_parser = cache_pair)]
    pub kl_against: Option<CachePair>,
    /// Output format
    #[arg(long, value_name = "FORMAT", env = "VERBATIM_PERPLEXITY_FORMAT", default_value = "text")]
    pub format: PerplexityFormat,
}

/// `verbatim verify`: answers compared with plain decoding.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// Which model.
    #[command(flatten)]
    pub model: ModelFlags,
    /// Compare what this draft model (EAGLE-3 or DFlash) drafts, too
    #[arg(
        long,
        visible_alias = "spec-draft-model",
        value_name = "MODEL",
        env = "VERBATIM_MODEL_DRAFT",
        add = ArgValueCompleter::new(completer::models)
    )]
    pub model_draft: Option<String>,
    /// Backend and threads.
    #[command(flatten)]
    pub device: DeviceFlags,
    /// Compare with f16, q8_0 and q4_0 KV caches and with every draft length; more and longer answers
    #[arg(long, env = "VERBATIM_VERIFY_FULL", value_parser = FalseyValueParser::new())]
    pub full: bool,
}

/// KV cache types of K and V.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachePair(pub [KvType; 2]);

/// How a perplexity is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PerplexityFormat {
    /// Plain text
    Text,
    /// A table with one row
    Markdown,
    /// An object with every value
    Json,
}

/// `verbatim synth`: a model of a known shape with random weights.
#[derive(Debug, Clone, Args)]
pub struct SynthArgs {
    /// Shape: qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3.6-27b, gemma-3-270m or llama-3.2-1b; with --config, only
    /// the name for the model
    #[arg(value_name = "SHAPE")]
    pub shape: String,
    /// File to write
    #[arg(value_name = "OUT.gguf", value_hint = ValueHint::FilePath)]
    pub out: PathBuf,
    /// Quantisation type of the weights: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K_M, Q5_K_M, Q6_K or IQ4_XS
    #[arg(long, value_name = "TYPE", env = "VERBATIM_QUANT", default_value = "Q4_K_M")]
    pub quant: QuantType,
    /// Seed of the weights; the same seed gives the same file
    #[arg(
        long,
        value_name = "SEED",
        env = "VERBATIM_SEED",
        default_value = "0",
        allow_negative_numbers = true
    )]
    pub seed: u64,
    /// Use the shape from this HF config.json
    #[arg(long, value_name = "FILE", env = "VERBATIM_CONFIG", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Backend and threads.
    #[command(flatten)]
    pub device: DeviceFlags,
}

/// Parses the variable of a switch: empty, `0`, `false`, `no`, `off`, `n` and `f` mean no, everything else yes.
fn switch() -> FalseyValueParser {
    FalseyValueParser::new()
}

/// Parses the KV cache types of K and V.
fn cache_pair(text: &str) -> Result<CachePair, String> {
    let (k, v) = text.split_once(',').ok_or("two types are needed, such as f32,f32")?;
    Ok(CachePair([values::kv_type_of(k)?, values::kv_type_of(v)?]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::{CommandFactory, FromArgMatches};

    use super::*;
    use crate::sampling_flags::Seed;

    /// `run`, `chat` and `logits` as the commands that their argument structs define.
    fn engine_commands() -> Vec<clap::Command> {
        vec![
            RunArgs::augment_args(clap::Command::new("run")),
            ChatArgs::augment_args(clap::Command::new("chat")),
            LogitsArgs::augment_args(clap::Command::new("logits")),
        ]
    }

    fn all_commands() -> Vec<clap::Command> {
        let cli = Cli::command();
        let mut commands = engine_commands();
        commands.extend(cli.get_subcommands().cloned());
        commands.push(cli);
        commands
    }

    fn run_args(arguments: &[&str]) -> Result<RunArgs, clap::Error> {
        let matches = engine_commands().remove(0).try_get_matches_from(arguments)?;
        RunArgs::from_arg_matches(&matches)
    }

    #[test]
    fn the_definitions_are_consistent() {
        for command in all_commands() {
            command.debug_assert();
        }
    }

    #[test]
    fn every_flag_has_help_and_an_environment_variable() {
        let mut flags = 0;
        for command in all_commands() {
            for argument in command.get_arguments() {
                let place = format!("{} {}", command.get_name(), argument.get_id());
                assert!(
                    argument.get_help().is_some_and(|help| !help.to_string().is_empty()),
                    "{place}: no help"
                );
                if argument.is_positional() || ["help", "version"].contains(&argument.get_id().as_str()) {
                    continue;
                }
                flags += 1;
                let variable =
                    argument.get_env().unwrap_or_else(|| panic!("{place}: no environment variable"));
                let variable = variable.to_str().unwrap();
                assert!(
                    variable.starts_with("VERBATIM_") || variable == "HF_ENDPOINT",
                    "{place}: {variable}"
                );
            }
        }
        assert!(flags > 20, "only {flags} flags were looked at");
    }

    #[test]
    fn an_environment_variable_belongs_to_one_flag() {
        let mut flags = BTreeMap::new();
        for command in all_commands() {
            for argument in command.get_arguments().filter(|argument| argument.get_env().is_some()) {
                let variable = argument.get_env().unwrap().to_owned();
                let long = argument.get_long().expect("a flag with a variable has a long name").to_owned();
                let known = flags.entry(variable.clone()).or_insert_with(|| long.clone());
                assert_eq!(*known, long, "{variable:?} sets two different flags");
            }
        }
    }

    #[test]
    fn the_flags_of_every_command_belong_to_no_other_flag() {
        let program = Cli::command();
        for global in program.get_arguments() {
            for command in program.get_subcommands() {
                let is_own = command.get_arguments().any(|flag| flag.get_id() == global.get_id());
                assert!(!is_own, "{} {}", command.get_name(), global.get_id());
            }
        }
    }

    #[test]
    fn every_command_has_help() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
        }
    }

    #[test]
    fn run_takes_its_documented_flags() {
        let args = run_args(&[
            "run",
            "-m",
            "m.gguf",
            "-n",
            "5",
            "--temp",
            "0.5",
            "--seed",
            "7",
            "--threads",
            "2",
            "--ctx",
            "64",
            "--ctk",
            "f32",
            "--ctv",
            "f16",
            "--system",
            "Be brief.",
            "Hello",
        ])
        .unwrap();
        assert_eq!(args.words, ["Hello"]);
        assert_eq!(args.model.model.as_deref(), Some("m.gguf"));
        let InferenceFlags { generate, device, cache, sequence, .. } = args.inference;
        assert_eq!(generate.max_tokens, Some(Limit(Some(5))));
        assert_eq!(generate.sampling.temperature, Some(0.5));
        assert_eq!(generate.sampling.seed, Some(Seed(Some(7))));
        assert_eq!(sequence.context_tokens, Some(Limit(Some(64))));
        assert_eq!(device.threads, Some(Limit(Some(2))));
        assert_eq!((cache.cache_type_k, cache.cache_type_v), (KvType::F32, KvType::F16));
        assert!(!args.no_template);
    }

    #[test]
    fn a_dash_is_a_prompt() {
        assert_eq!(run_args(&["run", "-"]).unwrap().words, ["-"]);
        assert!(run_args(&["run"]).unwrap().words.is_empty());
    }

    #[test]
    fn a_pair_of_formats_is_read() {
        assert_eq!(cache_pair("f32,f16"), Ok(CachePair([KvType::F32, KvType::F16])));
        for wrong in ["", "f32", "f32,f16,f16", "f32, f16", "f32,f7"] {
            assert!(cache_pair(wrong).is_err(), "{wrong} was taken");
        }
    }

    #[test]
    fn logits_takes_a_list_of_ids() {
        let matches = engine_commands()
            .remove(2)
            .try_get_matches_from([
                "logits",
                "-m",
                "m.gguf",
                "--tokens",
                "1,2,3",
                "--out",
                "o.safetensors",
                "--layers",
            ])
            .unwrap();
        let args = LogitsArgs::from_arg_matches(&matches).unwrap();
        assert_eq!(args.tokens, [1, 2, 3]);
        assert!(args.layers);
    }
}
