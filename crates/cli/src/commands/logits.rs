//! `verbatim logits`: the logits for given tokens, as a .safetensors file.
//!
//! Tensor `logits` is \[positions, vocabulary\], f32. With `--layers` there are also `hidden.embed`, `hidden.layer0` … and
//! `hidden.final_norm`, each \[positions, hidden size\]: the residual stream entering the first layer and leaving each, and
//! the hidden state after the final norm. K and V are stored as f32, unless `--f16-cache` is given.

use std::process::ExitCode;

use anyhow::{Context, ensure};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use verbatim_engine::{Backend, HiddenOutput, KvType, LoadOptions, Row, RowInput, RowOutputs, Stepper};

use crate::flags::LogitsArgs;
use crate::session::{load, open_device, open_model};
use crate::standard_io;
use crate::store::Store;

/// Rows per step: the values of all layers are live at once.
const STEP_ROWS: usize = 64;

/// Writes the file.
///
/// # Errors
/// When there is no model, a token is not one of its, or the file cannot be written.
pub fn run(args: &LogitsArgs, store: &Store) -> anyhow::Result<ExitCode> {
    ensure!(!args.tokens.is_empty(), "there are no tokens");
    standard_io::reject_model_output(&args.out)?;
    let file = open_model(store, &args.model)?;
    let cache = if args.f16_cache { KvType::F16 } else { KvType::F32 };
    let options =
        LoadOptions { context: Some(args.tokens.len()), k: cache, v: cache, ..LoadOptions::default() };
    let (device, _) = open_device(&args.device)?;
    let mut stepper = load(&file, device, &options)?;
    let points = if args.layers { points(&stepper) } else { Vec::new() };
    let (logits, hidden) = compute(&mut stepper, &args.tokens, &points)?;

    let positions = args.tokens.len();
    let hyperparameters = stepper.hyperparameters();
    let mut tensors = vec![("logits".to_owned(), logits, hyperparameters.vocabulary)];
    tensors.extend(
        points.iter().zip(hidden).map(|(point, values)| (name(*point), values, hyperparameters.hidden)),
    );
    let views = tensors.iter().map(|(name, bytes, cols)| {
        let view = TensorView::new(Dtype::F32, vec![positions, *cols], bytes);
        view.map(|view| (name.as_str(), view)).with_context(|| format!("tensor {name}"))
    });
    let views = views.collect::<anyhow::Result<Vec<_>>>()?;
    let bytes = safetensors::serialize(views, None).context("the tensors cannot be written as one file")?;
    // Written in place and not renamed over: the path may be a device or a pipe.
    std::fs::write(&args.out, bytes).with_context(|| format!("cannot write {}", args.out.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn points<B: Backend>(stepper: &Stepper<B>) -> Vec<HiddenOutput> {
    let layers = (0..stepper.hyperparameters().layers as u32).map(HiddenOutput::Layer);
    [HiddenOutput::Embedding].into_iter().chain(layers).chain([HiddenOutput::FinalNorm]).collect()
}

fn name(point: HiddenOutput) -> String {
    match point {
        HiddenOutput::Embedding => "hidden.embed".into(),
        HiddenOutput::Layer(layer) => format!("hidden.layer{layer}"),
        HiddenOutput::FinalNorm => "hidden.final_norm".into(),
        HiddenOutput::Fused(draft) => format!("hidden.fused{draft}"),
    }
}

/// Little-endian values of the logits, and of each hidden-state output.
fn compute<B: Backend>(
    stepper: &mut Stepper<B>,
    tokens: &[u32],
    points: &[HiddenOutput],
) -> anyhow::Result<(Vec<u8>, Vec<Vec<u8>>)> {
    let sequence = stepper.begin()?;
    let mut logits = Vec::new();
    let mut hidden = vec![Vec::new(); points.len()];
    for chunk in tokens.chunks(STEP_ROWS) {
        let start = stepper.append(sequence, chunk.len())?;
        let want = RowOutputs { hidden: points, ..RowOutputs::LOGITS };
        let row = |(i, &token)| Row { sequence, kv_index: start + i, input: RowInput::Token(token), want };
        let rows: Vec<Row> = chunk.iter().enumerate().map(row).collect();
        let outputs = stepper.step(&rows)?;
        outputs.all()?;
        for row in 0..rows.len() {
            append(&mut logits, outputs.logits(row).context("a row has no logits")?);
            for (point, values) in points.iter().zip(&mut hidden) {
                append(values, outputs.hidden(*point, row).context("a row has no hidden state")?);
            }
        }
        drop(outputs);
        stepper.commit(sequence, chunk.len())?;
    }
    Ok((logits, hidden))
}

fn append(bytes: &mut Vec<u8>, values: &[f32]) {
    bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
}
