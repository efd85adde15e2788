//! Command lines of llama-cli, llama-server and Ollama in this program's own words, before they are parsed.
//!
//! `OPTIONS` has the options whose names the parser cannot express (a single dash and several letters) and those that have no
//! meaning here. All others are in [`flags`](crate::flags) under llama.cpp's names.

use std::ffi::{OsStr, OsString};

use clap::{ArgAction, Command};

/// How an option is rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// It is this flag. Its value, if it has one, follows it.
    Is(&'static str),
    /// It is `--model hf:VALUE`.
    HubModel,
    /// It is the file of that model.
    HubFile,
    /// A value that says no is `--reasoning-budget 0`; the others are always so. The value may be missing.
    Reasoning(Value),
    /// It is `--json-schema {}` for the value `json`, else the value is the schema.
    Format,
    /// The command is `chat`.
    Chat,
    /// The command is `run`.
    Run,
    /// It is always so: accepted without a word.
    Always,
    /// It has no effect, for this reason.
    Ignored(Value, &'static str),
}

/// Whether an option that has no effect has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    None,
    One,
    /// `on`, `off`, `auto` and the like, if that follows.
    Switch,
}

const NO_GPU: &str = "there is no GPU backend yet";
const READ_ONCE: &str = "weights are read and packed once";
const BATCH: &str = "the batch size is fixed; it would not change the text";
const LOG: &str = "there is no log";
const TERMINAL: &str = "the terminal is detected automatically";
const THREADS: &str = "threads are not configured this way";
const NO_EQUIVALENT: &str = "Verbatim has no equivalent";
const PAGES: &str = "all sequences share the pages of one KV cache";
const FITTING: &str = "memory is taken as it is used; `verbatim show` tells what fits";
const TOLD_APART: &str = "reasoning is always told apart from the answer";

#[rustfmt::skip]
const OPTIONS: &[(&[&str], Rule)] = &[
    (&["-ctk"], Rule::Is("--cache-type-k")),
    (&["-ctv"], Rule::Is("--cache-type-v")),
    (&["-sys"], Rule::Is("--system")),
    (&["-np"], Rule::Is("--np")),
    (&["--hidethinking"], Rule::Is("--hide-reasoning")),
    (&["-jf"], Rule::Is("--json-schema-file")),
    (&["-mu", "--model-url"], Rule::Is("--model")),
    (&["-r"], Rule::Is("--stop")),
    (&["-bs"], Rule::Is("--backend-sampling")),
    (&["-md"], Rule::Is("--model-draft")),
    (&["-ctkd"], Rule::Is("--cache-type-k-draft")),
    (&["-ctvd"], Rule::Is("--cache-type-v-draft")),
    (&["-sysf"], Rule::Is("--system-prompt-file")),
    (&["-hf", "-hfr", "--hf-repo"], Rule::HubModel),
    (&["-hff", "--hf-file"], Rule::HubFile),
    (&["-C"], Rule::Is("--cpu-mask")),
    (&["-cram", "--cache-ram"], Rule::Is("--cache-mib")),
    (&["--no-show-timings"], Rule::Is("--quiet")),
    (&["--think"], Rule::Reasoning(Value::None)),
    (&["-rea", "--reasoning"], Rule::Reasoning(Value::One)),
    (&["--format"], Rule::Format),
    (&["-no-cnv", "--no-conversation"], Rule::Is("--no-template")),
    (&["-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first"], Rule::Chat),
    (&["-st", "--single-turn"], Rule::Run),
    (&["--jinja", "--no-display-prompt", "-no-dp", "--verbose", "--no-perf", "-mli", "--multiline-input", "--no-escape", "--show-timings"], Rule::Always),
    (&["-ngl", "--gpu-layers", "--n-gpu-layers"], Rule::Ignored(Value::One, NO_GPU)),
    (&["-dev", "--device", "-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"], Rule::Ignored(Value::One, NO_GPU)),
    (&["-ot", "--override-tensor", "-ncmoe", "--n-cpu-moe"], Rule::Ignored(Value::One, NO_GPU)),
    (&["-cmoe", "--cpu-moe", "-nkvo", "--no-kv-offload", "-kvo", "--kv-offload"], Rule::Ignored(Value::None, NO_GPU)),
    (&["--op-offload", "--no-op-offload"], Rule::Ignored(Value::None, NO_GPU)),
    (&["-fit", "--fit"], Rule::Ignored(Value::Switch, FITTING)),
    (&["-fitt", "--fit-target", "-fitc", "--fit-ctx"], Rule::Ignored(Value::One, FITTING)),
    (&["-fa", "--flash-attn"], Rule::Ignored(Value::Switch, "flash attention is always used")),
    (&["--mlock", "--mmap", "--no-mmap", "-nr", "--no-repack", "--repack", "--check-tensors"], Rule::Ignored(Value::None, READ_ONCE)),
    (&["--no-host", "-dio", "--direct-io", "-ndio", "--no-direct-io"], Rule::Ignored(Value::None, READ_ONCE)),
    (&["-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"], Rule::Ignored(Value::None, PAGES)),
    (&["-dt", "--defrag-thold", "-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"], Rule::Ignored(Value::One, PAGES)),
    (&["--reasoning-format"], Rule::Ignored(Value::One, TOLD_APART)),
    (&["--warmup", "--no-warmup", "--swa-full"], Rule::Ignored(Value::None, NO_EQUIVALENT)),
    (&["-b", "--batch-size", "-ub", "--ubatch-size"], Rule::Ignored(Value::One, BATCH)),
    (&["-cb", "--cont-batching", "-nocb", "--no-cont-batching"], Rule::Ignored(Value::None, BATCH)),
    (&["-tb", "--threads-batch"], Rule::Ignored(Value::One, "all threads compute prompts as well")),
    (&["-Cb", "--cpu-mask-batch", "-Crb", "--cpu-range-batch"], Rule::Ignored(Value::One, "all threads compute prompts as well")),
    (&["--numa", "--prio", "--prio-batch", "--poll", "--poll-batch"], Rule::Ignored(Value::One, THREADS)),
    (&["--cpu-strict", "--cpu-strict-batch"], Rule::Ignored(Value::One, THREADS)),
    (&["-co", "--color"], Rule::Ignored(Value::Switch, TERMINAL)),
    (&["--simple-io"], Rule::Ignored(Value::None, TERMINAL)),
    (&["--display-prompt", "-dp", "-sp", "--special"], Rule::Ignored(Value::None, "only the answer is printed")),
    (&["--log-disable", "-v", "--log-verbose", "--perf", "--verbose-prompt"], Rule::Ignored(Value::None, LOG)),
    (&["--log-prefix", "--no-log-prefix", "--log-timestamps", "--no-log-timestamps"], Rule::Ignored(Value::None, LOG)),
    (&["--log-colors"], Rule::Ignored(Value::Switch, LOG)),
    (&["--print-token-count"], Rule::Ignored(Value::One, LOG)),
    (&["--nowordwrap"], Rule::Ignored(Value::None, "lines are wrapped on a terminal only")),
    (&["-lv", "--verbosity", "--log-verbosity", "--log-file"], Rule::Ignored(Value::One, LOG)),
    (&["--keepalive"], Rule::Ignored(Value::One, "nothing stays loaded after the answer")),
    (&["--offline"], Rule::Ignored(Value::None, "only missing models are fetched")),
];

/// Options of llama-server, for `serve`. They come before those above.
#[rustfmt::skip]
const SERVER_OPTIONS: &[(&[&str], Rule)] = &[
    (&["-to"], Rule::Is("--timeout")),
    (&["--slots", "--metrics", "--props", "--cache-prompt", "--no-warmup", "--kv-unified", "-kvu"], Rule::Always),
    (&["-cnv", "--conversation", "-st", "--single-turn", "-i", "--interactive", "-if", "--interactive-first"], Rule::Always),
    (&["--no-slots", "--webui", "--no-webui", "--ui", "--no-ui"], Rule::Ignored(Value::None, NO_EQUIVALENT)),
    (&["--threads-http"], Rule::Ignored(Value::One, "HTTP has two threads of its own")),
    (&["--cache-reuse", "-sps", "--slot-prompt-similarity", "--slot-save-path", "--reasoning-format"], Rule::Ignored(Value::One, NO_EQUIVALENT)),
    (&["--log-disable"], Rule::Ignored(Value::None, "use --log-format off")),
];

/// Values of [`Value::Switch`].
const SWITCHES: [&str; 9] = ["on", "off", "auto", "enabled", "disabled", "true", "false", "1", "0"];

/// A command line for the parser, and what to tell the user about it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// The arguments, the program's name first.
    pub arguments: Vec<OsString>,
    /// Options that have no effect, and why.
    pub notes: Vec<String>,
}

/// The index of the command in the arguments; if flags that the program itself does not have come first, `Err` with their index.
///
/// `None` when there is neither.
pub fn command_index(arguments: &[OsString], program: &Command) -> Option<Result<usize, usize>> {
    let mut index = 1;
    while let Some(argument) = arguments.get(index).map(|argument| argument.to_string_lossy()) {
        if !argument.starts_with('-') || argument == "-" {
            return Some(Ok(index));
        }
        let (name, has_value) = split(&argument);
        let is_own = matches!(name, "-h" | "--help" | "-V" | "--version") || find(program, name).is_some();
        if !is_own {
            return Some(Err(index));
        }
        index += if !has_value && takes_value(program, name) { 2 } else { 1 };
    }
    None
}

/// Rewrites a command line. Without a command, flags are those of `serve` if they say where to listen, those of `run` if they
/// have a prompt, else those of `chat`.
pub fn rewrite(mut arguments: Vec<OsString>, program: &Command) -> Rewritten {
    let index = match command_index(&arguments, program) {
        None => return Rewritten { arguments, notes: Vec::new() },
        Some(Ok(index)) => index,
        Some(Err(index)) => {
            let serves = ["--host", "--port", "--api-key", "--api-key-file", "--metrics"];
            let has_prompt = ["-p", "--prompt", "-f", "--file", "-no-cnv", "--no-conversation"];
            let has_any = |names: &[&str]| {
                arguments.iter().any(|argument| names.contains(&split(&argument.to_string_lossy()).0))
            };
            let command = match (has_any(&serves), has_any(&has_prompt)) {
                (true, _) => "serve",
                (false, true) => "run",
                (false, false) => "chat",
            };
            arguments.insert(index, command.into());
            index
        }
    };
    let Some(command) = program.find_subcommand(&arguments[index]) else {
        return Rewritten { arguments, notes: Vec::new() };
    };
    if !["run", "chat", "serve", "verify"].contains(&command.get_name()) {
        return Rewritten { arguments, notes: Vec::new() };
    }
    let rest = arguments.split_off(index + 1);
    let mut rewriting = Rewriting { command, name: None, file: None, done: arguments, ignored: Vec::new() };
    rewriting.rewrite(rest);
    let Rewriting { name, file, mut done, ignored, .. } = rewriting;
    if let Some(file) = file {
        add_file(&mut done, &file);
    }
    if let Some(name) = name {
        done[index] = name.into();
    }
    Rewritten { arguments: done, notes: notes(&ignored) }
}

struct Rewriting<'a> {
    command: &'a Command,
    /// The command that the options ask for, if it is another one.
    name: Option<&'static str>,
    /// The file of the model on the hub.
    file: Option<OsString>,
    done: Vec<OsString>,
    ignored: Vec<(String, &'static str)>,
}

impl Rewriting<'_> {
    fn rule(&self, name: &str) -> Option<Rule> {
        let of_server = if self.command.get_name() == "serve" { SERVER_OPTIONS } else { &[] };
        of_server.iter().chain(OPTIONS).find(|(names, _)| names.contains(&name)).map(|(_, rule)| *rule)
    }

    fn rewrite(&mut self, rest: Vec<OsString>) {
        let mut rest = rest.into_iter().peekable();
        while let Some(mut argument) = rest.next() {
            if argument == "--" {
                self.done.push(argument);
                self.done.extend(rest);
                return;
            }
            let mut text = argument.to_string_lossy().into_owned();
            if is_long_with_one_dash(&text) && self.rule(split(&text).0).is_none() {
                // `-temp` is `--temp`, and not `-t emp`.
                text.insert(0, '-');
                argument = OsString::from(&text);
            }
            let (name, has_value) = split(&text);
            let Some(rule) = self.rule(name) else {
                let takes_next = !has_value && takes_value(self.command, name);
                self.done.push(argument);
                self.done.extend(rest.next_if(|_| takes_next));
                continue;
            };
            let value = has_value.then(|| text[name.len() + 1..].to_owned());
            let mut next = || value.clone().map(OsString::from).or_else(|| rest.next());
            match rule {
                Rule::Is(flag) => {
                    self.done.push(flag.into());
                    let wanted = takes_value(self.command, flag);
                    self.done.extend(wanted.then(next).flatten());
                }
                Rule::HubModel => {
                    let value = next().unwrap_or_default();
                    self.done.extend(["--model".into(), format!("hf:{}", value.to_string_lossy()).into()]);
                }
                Rule::Format => {
                    let value = next().unwrap_or_default();
                    let schema = if value == "json" { "{}".into() } else { value };
                    self.done.extend(["--json-schema".into(), schema]);
                }
                Rule::HubFile => self.file = next(),
                Rule::Reasoning(takes) => {
                    let value = if takes == Value::One { next() } else { value.map(OsString::from) };
                    if value.is_some_and(|value| ["off", "false", "0", "no"].iter().any(|no| value == *no)) {
                        self.done.extend(["--reasoning-budget", "0"].map(OsString::from));
                    }
                }
                Rule::Chat => self.name = Some("chat"),
                Rule::Run => self.name = Some("run"),
                Rule::Always => {}
                Rule::Ignored(takes, why) => {
                    self.ignored.push((name.to_owned(), why));
                    match takes {
                        Value::One => drop(next()),
                        Value::Switch if !has_value => {
                            rest.next_if(|next| SWITCHES.iter().any(|switch| next == switch));
                        }
                        Value::Switch | Value::None => {}
                    }
                }
            }
        }
    }
}

/// Whether this is an option of several letters behind a single dash, such as `-temp`, rather than one of one letter with its value,
/// `-n5`, or a text.
fn is_long_with_one_dash(argument: &str) -> bool {
    let name = split(argument).0.strip_prefix('-').unwrap_or_default();
    let is_name =
        |name: &str| name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
    name.len() > 1 && name.chars().take(2).all(|letter| letter.is_ascii_alphabetic()) && is_name(name)
}

/// Puts the name of a file behind the repository of the hub that is the model, in place of a type.
fn add_file(arguments: &mut [OsString], file: &OsStr) {
    let models = arguments.iter_mut().filter(|argument| argument.to_string_lossy().starts_with("hf:"));
    for model in models {
        let text = model.to_string_lossy();
        let repository =
            text.rsplit_once(':').map_or(&*text, |(before, _)| if before == "hf" { &text } else { before });
        *model = format!("{repository}/{}", file.to_string_lossy()).into();
    }
}

/// One line for each reason.
fn notes(ignored: &[(String, &'static str)]) -> Vec<String> {
    let mut reasons: Vec<&str> = Vec::new();
    for (_, reason) in ignored {
        if !reasons.contains(reason) {
            reasons.push(reason);
        }
    }
    let note = |reason: &&str| {
        let named = ignored.iter().filter(|(_, why)| why == reason).map(|(name, _)| name.as_str());
        format!("{}: accepted without effect, {reason}", named.collect::<Vec<_>>().join(", "))
    };
    reasons.iter().map(note).collect()
}

/// The name of an option, and whether its value is part of the argument.
fn split(argument: &str) -> (&str, bool) {
    match argument.split_once('=') {
        Some((name, _)) if name.starts_with('-') => (name, true),
        _ => (argument, false),
    }
}

/// The flag of this name, with its dashes.
pub fn find<'a>(command: &'a Command, name: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|flag| match name.strip_prefix("--") {
        Some(long) => {
            flag.get_long() == Some(long)
                || flag.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
        }
        None => name.strip_prefix('-').is_some_and(|short| {
            let mut letters = short.chars();
            letters.next().is_some_and(|letter| flag.get_short() == Some(letter)) && letters.next().is_none()
        }),
    })
}

fn takes_value(command: &Command, name: &str) -> bool {
    find(command, name).is_some_and(|flag| matches!(flag.get_action(), ArgAction::Set | ArgAction::Append))
}

/// What to type for an option or a command of other programs that this one does not have.
#[rustfmt::skip]
const MEANINGS: &[(&[&str], &str)] = &[
    (&["--max-length", "--max-new-tokens", "--max_tokens", "--num-predict", "--num_predict", "--length"], "use --max-tokens (-n)"),
    (&["--num-ctx", "--num_ctx", "--context", "--context-size", "--context-length", "--max-seq-len"], "use --ctx-size (-c)"),
    (&["--num-thread", "--num-threads", "--n-threads", "--cpus"], "use --threads (-t)"),
    (&["--repetition-penalty", "--repeat_penalty", "--rep-pen"], "use --repeat-penalty"),
    (&["--random-seed", "--rng-seed"], "use --seed (-s)"),
    (&["--input", "--prompt-file"], "use --file (-f)"),
    (&["--instruct", "--interactive-chat", "--repl"], "use `verbatim chat`"),
    (&["--raw", "--no-chat", "--completion"], "use --no-template"),
    (&["--schema", "--json-mode"], "use --json-schema (-j); '{}' is any JSON object"),
    (&["--thinking", "--no-think", "--nothink"], "use --reasoning-budget; 0 turns thinking off"),
    (&["--chat-template-kwargs"], "not supported yet; --reasoning-budget 0 turns thinking off"),
    (&["--no-jinja", "--skip-chat-parsing"], "use --no-template to continue a prompt as it is"),
    (&["--in-prefix", "--in-suffix", "--in-prefix-bos"], "use --chat-template with a template of your own"),
    (&["--binary-file", "--bf"], "use --file (-f)"),
    (&["--usage"], "use --help"),
    (&["--cache-list", "--cl"], "use `verbatim list`"),
    (&["--completion-bash"], "use `verbatim completions bash`"),
    (&["--cpu-range", "--Cr"], "use --cpu-mask (-C)"),
    (&["--docker-repo", "--dr"], "use -hf OWNER/REPO, or -m with a file or an address"),
    (&["--hf-token", "--hft"], "set the variable HF_TOKEN"),
    (&["--list-devices"], "there is no GPU backend yet"),
    (&["--override-kv"], "what the model file says cannot be overridden"),
    (&["--grp-attn-n", "--gan", "--grp-attn-w", "--gaw"], "RoPE is set up by the model file"),
    (&["--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast"], "RoPE is set up by the model file"),
    (&["--gpu", "--cuda", "--metal", "--vulkan"], "there is no GPU backend yet"),
    (&["--greedy", "--do-sample"], "use --temp; 0 is greedy"),
    (&["--stop-string", "--stop-sequence", "--stops", "--eos"], "use --stop"),
    (&["--stream", "--no-stream"], "answers are always streamed; --json-lines streams JSON, --json does not stream"),
    (&["--insecure"], "models are fetched over HTTPS; use --hub for another server"),
    (&["--penalize-nl", "--no-penalize-nl"], "llama.cpp has no such option any more"),
    (&["--mmproj", "--mm", "--mmproj-url", "--mmu", "--no-mmproj", "--image", "--audio"], "only text is supported yet"),
    (&["--lora", "--lora-scaled", "--control-vector"], "adapters are not supported yet"),
    (&["--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"], "RoPE is set up by the model file"),
    (&["--system-prompt-file"], "use --system \"$(cat FILE)\""),
    (&["--prompt-cache", "--prompt-cache-all", "--prompt-cache-ro"], "use --session"),
    (&["--ssl-key-file", "--ssl-cert-file"], "TLS is not supported yet: use a proxy such as Caddy or nginx"),
    (&["--embedding", "--embeddings", "--rerank", "--reranking"], "embeddings are not supported yet"),
    (&["ps", "stop"], "nothing stays loaded after a command"),
    (&["create"], "settings are kept in profiles: `verbatim config set --profile NAME KEY VALUE`"),
    (&["push"], "models are only fetched, not published"),
    (&["remove", "delete"], "use `verbatim rm`"),
    (&["search", "models"], "use `verbatim list --known`"),
    (&["version", "--version"], "use `verbatim --version`"),
    (&["generate", "prompt", "ask", "complete"], "use `verbatim run`"),
    (&["talk", "repl", "converse"], "use `verbatim chat`"),
    (&["download", "fetch", "get"], "use `verbatim pull`"),
];

/// What to type in place of an option or a command that does not exist.
pub fn meaning(name: &OsStr) -> Option<&'static str> {
    let name = name.to_str()?.to_ascii_lowercase();
    MEANINGS.iter().find(|(names, _)| names.contains(&&*name)).map(|(_, tip)| *tip)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::flags::Cli;

    fn rewritten(line: &str) -> (String, Vec<String>) {
        let arguments = line.split(' ').map(OsString::from).collect();
        let Rewritten { arguments, notes } = rewrite(arguments, &Cli::command());
        (arguments.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" "), notes)
    }

    #[test]
    fn a_command_is_found_behind_the_programs_own_flags() {
        let index = |line: &str| {
            let arguments: Vec<_> = line.split(' ').map(OsString::from).collect();
            command_index(&arguments, &Cli::command())
        };
        assert_eq!(index("v --home x run"), Some(Ok(3)));
        assert_eq!(index("v --home=x run"), Some(Ok(2)));
        assert_eq!(index("v --home x -m y"), Some(Err(3)));
        assert_eq!((index("v --help"), index("v")), (None, None));
    }

    #[test]
    fn single_dash_names_are_rewritten_and_values_left_alone() {
        assert_eq!(rewritten("v run -ctk q8_0 -sys Hi x").0, "v run --cache-type-k q8_0 --system Hi x");
        assert_eq!(rewritten("v -m x -p hi -no-cnv").0, "v run -m x -p hi --no-template");
        assert_eq!(rewritten("v -m x").0, "v chat -m x");
        assert_eq!(rewritten("v -m x -p hi -cnv").0, "v chat -m x -p hi");
        assert_eq!(rewritten("v chat -st -p hi").0, "v run -p hi");
        assert_eq!(rewritten("v run --stop -st -p -cnv -- -ngl").0, "v run --stop -st -p -cnv -- -ngl");
        assert_eq!(rewritten("v run -hf a/b:q8_0").0, "v run --model hf:a/b:q8_0");
        assert_eq!(rewritten("v run m hi --format json").0, "v run m hi --json-schema {}");
        assert_eq!(rewritten("v run -hf a/b -hff c.gguf").0, "v run --model hf:a/b/c.gguf");
        assert_eq!(rewritten("v run -hff c.gguf -hf a/b:q8_0").0, "v run --model hf:a/b/c.gguf");
        assert_eq!(rewritten("v run -temp 0 -top-k=3 -n5 x").0, "v run --temp 0 --top-k=3 -n5 x");
        assert_eq!(rewritten("v run -fit on -nr x").0, "v run x");
        assert_eq!(rewritten("v run m --think=false x").0, "v run m --reasoning-budget 0 x");
        assert_eq!(rewritten("v run m --think x -rea off").0, "v run m x --reasoning-budget 0");
        assert_eq!(rewritten("v bench -b 3").0, "v bench -b 3");
    }

    #[test]
    fn command_lines_of_llama_server_are_understood() {
        let line = "v serve -m x -np 2 -to 9 -cram 64 --slots --metrics -cb -ngl 99 --threads-http 3";
        let (line, notes) = rewritten(line);
        assert_eq!(line, "v serve -m x --np 2 --timeout 9 --cache-mib 64");
        assert_eq!(notes.len(), 3);
        assert_eq!(rewritten("v -m x --port 80 -np 2").0, "v serve -m x --port 80 --np 2");
        assert_eq!(rewritten("v run --slots 3 x").0, "v run --slots 3 x");
    }

    #[test]
    fn options_without_effect_are_named() {
        let (line, notes) = rewritten("v run -ngl 99 -fa on --mlock -b 512 -ub=64 --jinja x");
        assert_eq!(line, "v run x");
        assert_eq!(notes.len(), 4);
        assert_eq!(notes[0], "-ngl: accepted without effect, there is no GPU backend yet");
        assert_eq!(rewritten("v run -fa x").0, "v run x");
    }

    #[test]
    fn an_option_has_one_rule_and_is_no_flag() {
        let program = Cli::command();
        let names = || OPTIONS.iter().flat_map(|(names, _)| names.iter());
        for name in names() {
            assert_eq!(names().filter(|other| other == &name).count(), 1, "{name}");
            let command = program.find_subcommand("run").unwrap();
            assert!(find(command, name).is_none(), "{name} is a flag");
        }
        let serve = program.find_subcommand("serve").unwrap();
        for (names, rule) in SERVER_OPTIONS {
            assert!(names.iter().all(|name| find(serve, name).is_none()), "{names:?} are flags");
            assert!(!matches!(rule, Rule::Is(flag) if find(serve, flag).is_none()), "{rule:?}");
        }
        for (_, rule) in OPTIONS {
            if let Rule::Is(flag) = rule {
                let is_flag = find(program.find_subcommand("run").unwrap(), flag).is_some();
                assert!(is_flag || meaning(OsStr::new(flag)).is_some(), "{flag}");
            }
        }
        for name in MEANINGS.iter().flat_map(|(names, _)| names.iter()) {
            assert!(
                !names().any(|other| other == name)
                    && find(program.find_subcommand("run").unwrap(), name).is_none(),
                "{name}"
            );
        }
    }
}
