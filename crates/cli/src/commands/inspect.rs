//! `verbatim inspect`, also called `show`: what a model is, whether it can be loaded, and what is inside its file.
//!
//! The exit status is 0 only if the file can be loaded; else it is 1, with the reason on standard error. What
//! can be read is printed even if the file cannot be loaded.

use std::fmt::Write;
use std::process::ExitCode;

use serde_json::{Map, Value as Json, json};
use verbatim_engine::{LoadOptions, Requirements, SamplerKind, Sampling, recommended_sampling};
use verbatim_gguf::{GgufFile, Metadata, TensorInfo, Value};
use verbatim_text::ChatTemplate;

use crate::catalogue::{self, KnownModel};
use crate::flags::{DEFAULT_CACHE_MIB, InspectArgs};
use crate::machine;
use crate::model_file::{ModelFile, TypeShare, type_shares, weights_format};
use crate::model_summary::ModelSummary;
use crate::standard_io::{self, escape, escape_bytes, human_bytes, json_text};
use crate::store::{Store, StoreError};

/// Maximum elements of an array and characters of a string that are shown.
const ARRAY_SHOWN: usize = 6;
const STRING_SHOWN: usize = 100;

/// Keys whose values are tokens with a role.
const TOKEN_ROLES: [&str; 8] = ["bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask"];

/// Prints the file's content.
///
/// # Errors
/// When the file cannot be opened, or what is in it cannot be loaded as a model.
pub fn run(args: &InspectArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let model = match ModelFile::open(store, &args.file) {
        Err(error) if !args.output.json => {
            // What the catalogue knows of a model that is not here yet.
            if let (Some(StoreError::NotPulled { .. }), Some(known)) =
                (error.downcast_ref(), catalogue::find(&args.file))
            {
                standard_io::write(known_text(known).as_bytes())?;
            }
            return Err(error);
        }
        opened => opened?,
    };
    let loaded = check(&model);
    let text = if args.output.json {
        json_text(&report_json(&model, &loaded))
    } else {
        report_text(&model, &loaded, args.tensors)
    };
    standard_io::write(text.as_bytes())?;
    loaded.map(|_| ExitCode::SUCCESS)
}

/// An entry of the catalogue, in the form of the summary.
fn known_text(known: &KnownModel) -> String {
    let mut text = format!("model     {}, {}\n", known.name, known.architecture);
    let size = known.bytes.map_or("size unknown".to_owned(), human_bytes);
    let _ = writeln!(text, "weights   {} parameters, {}, {size}", known.parameters, known.quant);
    let _ = writeln!(text, "licence   {}", known.license);
    let _ = writeln!(text, "source    {}", known.hub_file);
    if let (Some(bytes), Some(available)) = (known.bytes, machine::available_memory()) {
        let fits = if machine::fits(bytes, available) { "enough" } else { "too little for this model" };
        let _ = writeln!(text, "memory    {} are available: {fits}", human_bytes(available));
    }
    text
}

/// What loading a model needs, and what is odd about its file.
struct Checked {
    needs: Requirements,
    warnings: Vec<String>,
}

/// Checks that the file can be loaded on this machine, as `run` does without flags.
fn check(model: &ModelFile) -> anyhow::Result<Checked> {
    let cache_bytes = DEFAULT_CACHE_MIB << 20;
    let options = LoadOptions { cache_bytes, memory: Some(machine::memory), ..LoadOptions::default() };
    let needs = Requirements::read(&model.gguf, &options)?;
    let mut warnings = Vec::new();
    if model.gguf.metadata().contains("tokenizer.ggml.model") {
        warnings.extend(model.tokenizer()?.warnings().iter().map(ToString::to_string));
    }
    if let Ok(Some(template)) = model.gguf.metadata().get_str("tokenizer.chat_template")
        && let Err(error) = ChatTemplate::new(template)
    {
        warnings.push(error.to_string());
    }
    Ok(Checked { needs, warnings })
}

fn report_text(model: &ModelFile, loaded: &anyhow::Result<Checked>, with_tensors: bool) -> String {
    let file = &model.gguf;
    let problem = loaded.as_ref().err().map(|error| format!("{error:#}"));
    let needs = loaded.as_ref().ok().map(|checked| checked.needs);
    let mut text = ModelSummary::read(file, needs).text(problem.as_deref());
    for warning in loaded.iter().flat_map(|checked| &checked.warnings) {
        let _ = writeln!(text, "warning   {}", escape(warning));
    }
    sampling_text_lines(file, &mut text);
    let parts =
        if file.split_count() > 1 { format!(", {} files", file.split_count()) } else { String::new() };
    let _ = writeln!(text, "file      {}", escape(&model.path.to_string_lossy()));
    let _ = writeln!(
        text,
        "format    GGUF version {}, alignment {}, {}{parts}",
        file.version(),
        file.alignment(),
        human_bytes(file.bytes_total() as u64)
    );
    metadata_text(file.metadata(), &mut text);
    vocabulary_text(file.metadata(), &mut text);
    template_text(file.metadata(), &mut text);
    if with_tensors {
        tensors_text(file, &mut text);
    }
    types_text(file, &mut text);
    text
}

fn sampling_text_lines(file: &GgufFile, text: &mut String) {
    let (sampling, problems) = recommended_sampling(file);
    let origin = if is_recommended(file) { "recommended by the file" } else { "defaults" };
    let _ = writeln!(text, "sampling  {} ({origin})", sampling_text(&sampling));
    for problem in problems {
        let _ = writeln!(text, "          {}", escape(&problem));
    }
}

fn is_recommended(file: &GgufFile) -> bool {
    file.metadata().iter().any(|(key, _)| key.starts_with("general.sampling."))
}

/// The settings that a request starts from, as flags.
fn sampling_text(sampling: &Sampling) -> String {
    let Sampling { temperature, top_k, top_p, min_p, repeat_penalty, .. } = sampling;
    let mut text = format!("--temp {temperature} --top-k {top_k} --top-p {top_p} --min-p {min_p}");
    if *repeat_penalty != 1.0 {
        let _ = write!(text, " --repeat-penalty {repeat_penalty}");
    }
    if sampling.is_on(SamplerKind::Xtc) {
        let Sampling { xtc_probability, xtc_threshold, .. } = sampling;
        let _ = write!(text, " --xtc-probability {xtc_probability} --xtc-threshold {xtc_threshold}");
    }
    if sampling.mirostat {
        let Sampling { mirostat_tau, mirostat_eta, .. } = sampling;
        let _ = write!(text, " --mirostat 2 --mirostat-ent {mirostat_tau} --mirostat-lr {mirostat_eta}");
    }
    if sampling.samplers != SamplerKind::DEFAULT_ORDER {
        let names: Vec<&str> = sampling.samplers.iter().map(|kind| kind.name()).collect();
        let _ = write!(text, " --samplers {}", names.join(","));
    }
    text
}

fn metadata_text(metadata: &Metadata, text: &mut String) {
    let _ = writeln!(text, "\nmetadata ({})", metadata.len());
    let width = metadata.iter().map(|(key, _)| escape(key).chars().count()).max().unwrap_or(0);
    for (key, value) in metadata.iter() {
        let _ = writeln!(text, "  {:width$}  {:14}  {}", escape(key), type_text(value), value_text(value));
    }
}

fn type_text(value: Value<'_>) -> String {
    match value {
        Value::Array(array) => format!("{}[{}]", array.element_type(), array.len()),
        scalar => scalar.value_type().to_string(),
    }
}

fn value_text(value: Value<'_>) -> String {
    match value {
        Value::Str(bytes) => string_text(bytes),
        Value::Array(array) => {
            let shown: Vec<String> = array.iter().take(ARRAY_SHOWN).map(value_text).collect();
            let rest = array.len().saturating_sub(ARRAY_SHOWN);
            let rest = if rest > 0 { format!(", … {rest} more") } else { String::new() };
            format!("[{}{rest}]", shown.join(", "))
        }
        scalar => scalar.to_string(),
    }
}

fn string_text(bytes: &[u8]) -> String {
    let shown = escape_bytes(bytes);
    match shown.char_indices().nth(STRING_SHOWN) {
        Some((end, _)) => format!("\"{}\" … {} bytes", &shown[..end], bytes.len()),
        None => format!("\"{shown}\""),
    }
}

fn vocabulary_text(metadata: &Metadata, text: &mut String) {
    let Some(vocabulary) = Vocabulary::read(metadata) else { return };
    let pre = vocabulary.pre.map(|pre| format!(", pre-tokenizer {}", escape_bytes(pre))).unwrap_or_default();
    let _ = writeln!(
        text,
        "\nvocabulary\n  {} tokens, {}{pre}",
        vocabulary.tokens,
        escape_bytes(vocabulary.model)
    );
    for (role, id, token) in vocabulary.roles {
        let token = token.map_or("not in the vocabulary".to_owned(), string_text);
        let _ = writeln!(text, "  {role:9}  {id:>7}  {token}");
    }
}

fn template_text(metadata: &Metadata, text: &mut String) {
    let Ok(Some(template)) = metadata.get_bytes("tokenizer.chat_template") else { return };
    let _ = writeln!(text, "\nchat template ({} bytes)", template.len());
    for line in template.split(|byte| *byte == b'\n') {
        let _ = writeln!(text, "  | {}", escape_bytes(line));
    }
}

fn tensors_text(file: &GgufFile, text: &mut String) {
    let tensors = file.tensors();
    let _ = writeln!(text, "\ntensors ({})", tensors.len());
    let names = tensors.iter().map(|tensor| escape(tensor.name()).chars().count()).max().unwrap_or(0);
    for tensor in tensors {
        let (name, bytes) = (escape(tensor.name()), human_bytes(tensor.byte_len() as u64));
        let _ = writeln!(
            text,
            "  {name:names$}  {:7}  {bytes:>10}  {}",
            tensor.dtype().name(),
            dims_text(tensor)
        );
    }
}

fn types_text(file: &GgufFile, text: &mut String) {
    let _ = writeln!(text, "\nsizes by type ({} tensors; --tensors lists them)", file.tensors().len());
    for TypeShare { dtype, tensors, elements, bytes } in type_shares(file) {
        let _ = writeln!(
            text,
            "  {:7}  {tensors:>5} tensors  {elements:>13} elements  {:>10}",
            dtype.name(),
            human_bytes(bytes as u64)
        );
    }
}

fn dims_text(tensor: &TensorInfo) -> String {
    tensor.dims().iter().map(usize::to_string).collect::<Vec<_>>().join(" × ")
}

/// The vocabulary's metadata, whether or not the tokenizer is supported.
struct Vocabulary<'a> {
    model: &'a [u8],
    pre: Option<&'a [u8]>,
    tokens: usize,
    /// Role, id and text of the tokens that have a role.
    roles: Vec<(&'static str, u32, Option<&'a [u8]>)>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Option<Self> {
        let model = metadata.get_bytes("tokenizer.ggml.model").ok()??;
        let pre = metadata.get_bytes("tokenizer.ggml.pre").ok().flatten();
        let tokens = metadata.get_bytes_array("tokenizer.ggml.tokens").ok().flatten();
        let mut roles = Vec::new();
        for role in TOKEN_ROLES {
            if let Ok(Some(id)) = metadata.get_u32(&format!("tokenizer.ggml.{role}_token_id")) {
                roles.push((role, id, tokens.and_then(|tokens| tokens.iter().nth(id as usize))));
            }
        }
        Some(Self { model, pre, tokens: tokens.map_or(0, |tokens| tokens.len()), roles })
    }
}

fn report_json(model: &ModelFile, loaded: &anyhow::Result<Checked>) -> Json {
    let file = &model.gguf;
    let metadata: Map<String, Json> =
        file.metadata().iter().map(|(key, value)| (key.to_owned(), entry_json(value))).collect();
    json!({
        "path": model.path.to_string_lossy(),
        "version": file.version(),
        "alignment": file.alignment(),
        "bytes": file.bytes_total(),
        "files": file.split_count(),
        "weights": weights_format(file),
        "summary": ModelSummary::read(file, loaded.as_ref().ok().map(|checked| checked.needs)).json(),
        "sampling": sampling_text(&recommended_sampling(file).0),
        "loadable": loaded.is_ok(),
        "warnings": loaded.iter().flat_map(|checked| &checked.warnings).collect::<Vec<_>>(),
        "problem": loaded.as_ref().err().map(|error| format!("{error:#}")),
        "metadata": metadata,
        "vocabulary": Vocabulary::read(file.metadata()).map(vocabulary_json),
        "tensors": file.tensors().iter().map(tensor_json).collect::<Vec<_>>(),
        "types": type_shares(file).iter().map(share_json).collect::<Vec<_>>(),
    })
}

fn entry_json(value: Value<'_>) -> Json {
    match value {
        Value::Array(array) => json!({
            "type": "array",
            "element_type": array.element_type().name(),
            "value": array.iter().map(value_json).collect::<Vec<_>>(),
        }),
        scalar => json!({ "type": scalar.value_type().name(), "value": value_json(scalar) }),
    }
}

/// The value without its type. Values that JSON cannot represent are encoded without loss: a string that is not UTF-8 as
/// `{"hex": "…"}`, a number that is not finite as a string.
fn value_json(value: Value<'_>) -> Json {
    match value {
        Value::Str(bytes) => bytes_json(bytes),
        Value::Bool(value) => value.into(),
        Value::Array(array) => array.iter().map(value_json).collect::<Vec<_>>().into(),
        // The shortest decimal number that is read back as the same one.
        Value::F32(_) | Value::F64(_) => {
            let shortest = value.to_string();
            let number = shortest.parse::<f64>().ok().and_then(serde_json::Number::from_f64);
            number.map_or(shortest.into(), Json::Number)
        }
        Value::U64(number) => number.into(),
        integer => integer.as_integer().and_then(|number| i64::try_from(number).ok()).into(),
    }
}

fn bytes_json(bytes: &[u8]) -> Json {
    match str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}

fn vocabulary_json(vocabulary: Vocabulary<'_>) -> Json {
    let roles: Map<String, Json> = vocabulary
        .roles
        .iter()
        .map(|(role, id, token)| ((*role).to_owned(), json!({ "id": id, "token": token.map(bytes_json) })))
        .collect();
    json!({
        "model": bytes_json(vocabulary.model),
        "pre": vocabulary.pre.map(bytes_json),
        "tokens": vocabulary.tokens,
        "roles": roles,
    })
}

fn tensor_json(tensor: &TensorInfo) -> Json {
    json!({
        "name": tensor.name(),
        "type": tensor.dtype().name(),
        "dims": tensor.dims(),
        "bytes": tensor.byte_len(),
        "offset": tensor.offset(),
        "file": tensor.split(),
    })
}

fn share_json(share: &TypeShare) -> Json {
    json!({
        "type": share.dtype.name(),
        "tensors": share.tensors,
        "elements": share.elements,
        "bytes": share.bytes,
    })
}
