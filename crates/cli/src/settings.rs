//! `/set`: the settings of a chat, shown and changed by the names of the flags.

use anyhow::{bail, ensure};
use clap::builder::Resettable;
use clap::{Args, Command, FromArgMatches};
use verbatim_engine::Sampling;
use verbatim_text::Tokenizer;

use crate::argv;
use crate::flags::GenerateFlags;
use crate::session::AnswerSettings;
use crate::values::Limit;

/// Flags that cannot be changed while a model is loaded, or have a command of their own.
const FIXED: [(&str, &str); 7] = [
    ("system", "use /system"),
    ("hide-reasoning", "start again with --hide-reasoning"),
    ("quiet", "start again with --quiet"),
    ("backend-sampling", "start again with --backend-sampling"),
    ("no-backend-sampling", "start again with --no-backend-sampling"),
    ("ctx-size", "start again with --ctx-size"),
    ("model", "start again with --model"),
];

fn flags() -> Command {
    // Nothing comes from the environment: what was given is known already.
    let command = GenerateFlags::augment_args(Command::new("set").no_binary_name(true));
    command.mut_args(|flag| flag.env(Resettable::Reset))
}

/// The names of the settings.
pub fn keys() -> Vec<String> {
    let flags = flags();
    let names = flags.get_arguments().filter_map(clap::Arg::get_long).filter(|name| fixed(name).is_none());
    names.map(str::to_owned).collect()
}

fn fixed(name: &str) -> Option<&'static str> {
    FIXED.iter().find(|(fixed, _)| *fixed == name).map(|(_, tip)| *tip)
}

/// Changes one setting, `temp 0.5`, or shows one or all. Returns the names and values to show.
///
/// # Errors
/// When there is no such setting, or the value does not suit it.
pub fn set(
    settings: &mut AnswerSettings,
    words: &str,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Vec<(String, String)>> {
    let (key, value) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
    let (wanted, value) = (key.trim_start_matches('-').replace('_', "-"), value.trim());
    let wanted = match wanted.as_str() {
        "" => return Ok(shown(settings).into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        // Ollama's names.
        "num-predict" => "max-tokens",
        "num-ctx" => "ctx-size",
        other => other,
    };
    let command = flags();
    let name = argv::find(&command, &format!("--{wanted}")).and_then(|flag| flag.get_long());
    let tip = fixed(name.unwrap_or(wanted));
    ensure!(tip.is_none(), "{wanted} cannot be changed here: {}", tip.unwrap_or_default());
    let Some(name) = name.map(str::to_owned) else {
        bail!("there is no setting {key}: /set shows all");
    };
    let is_switch = name == "ignore-eos";
    if value.is_empty() && !is_switch {
        let found = shown(settings).into_iter().find(|(known, _)| *known == name);
        return Ok(vec![(name, found.map_or("not set".to_owned(), |(_, value)| value))]);
    }
    ensure!(!is_switch || value.is_empty(), "{name} is on once it is set, and takes no value");
    let argument = if is_switch { format!("--{name}") } else { format!("--{name}={value}") };
    let parsed = command.try_get_matches_from([argument]);
    let parsed = parsed.and_then(|matches| GenerateFlags::from_arg_matches(&matches)).map_err(|error| {
        let text = error.to_string();
        anyhow::anyhow!(
            "{}",
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        )
    })?;
    change(settings, &parsed, &name, tokenizer)?;
    Ok(vec![(name, if is_switch { "on".to_owned() } else { value.to_owned() })])
}

fn change(
    settings: &mut AnswerSettings,
    given: &GenerateFlags,
    name: &str,
    tokenizer: &Tokenizer,
) -> anyhow::Result<()> {
    match name {
        "max-tokens" => settings.max_tokens = given.max_tokens.and_then(|Limit(tokens)| tokens),
        "reasoning-budget" => {
            settings.reasoning_budget = given.reasoning_budget.and_then(|Limit(tokens)| tokens)
        }
        "stop" => settings.stop.clone_from(&given.stop),
        "json-schema" | "json-schema-file" | "grammar" | "grammar-file" => {
            settings.grammar = given.grammar.grammar()?;
        }
        "spec" | "spec-type" | "spec-draft-n-max" => settings.speculation = given.speculation.speculation(),
        _ => settings.sampling = given.sampling.settings(settings.sampling.clone(), tokenizer)?,
    }
    Ok(())
}

/// The settings, by the names of their flags.
fn shown(settings: &AnswerSettings) -> Vec<(&'static str, String)> {
    let Sampling { samplers, .. } = &settings.sampling;
    let sampling = &settings.sampling;
    let limit = |limit: Option<usize>| limit.map_or("-1".to_owned(), |limit| limit.to_string());
    let names = samplers.iter().map(|kind| kind.name()).collect::<Vec<_>>().join("; ");
    vec![
        ("temp", sampling.temperature.to_string()),
        ("seed", sampling.seed.map_or("-1 (random)".to_owned(), |seed| seed.to_string())),
        ("top-k", sampling.top_k.to_string()),
        ("top-p", sampling.top_p.to_string()),
        ("min-p", sampling.min_p.to_string()),
        ("typical", sampling.typical_p.to_string()),
        ("top-nsigma", sampling.top_n_sigma.to_string()),
        ("dynatemp-range", sampling.dynatemp_range.to_string()),
        ("repeat-penalty", sampling.repeat_penalty.to_string()),
        ("repeat-last-n", limit(sampling.repeat_last_n)),
        ("presence-penalty", sampling.presence_penalty.to_string()),
        ("frequency-penalty", sampling.frequency_penalty.to_string()),
        ("dry-multiplier", sampling.dry_multiplier.to_string()),
        ("xtc-probability", sampling.xtc_probability.to_string()),
        ("xtc-threshold", sampling.xtc_threshold.to_string()),
        ("mirostat", if sampling.mirostat { "2" } else { "0" }.to_owned()),
        ("samplers", names),
        ("max-tokens", limit(settings.max_tokens)),
        ("reasoning-budget", limit(settings.reasoning_budget)),
        ("stop", settings.stop.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(" ")),
        ("grammar", if settings.grammar.is_some() { "given" } else { "none" }.to_owned()),
    ]
}
