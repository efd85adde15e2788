//! Loading: the model understood, its weights packed, memory for its sequences.

use crate::reading::Reading;
use crate::{Engine, MAX_ROWS};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use verbatim_cpu::team::Team;
use verbatim_cpu::{
    Arena, Executor, ExecutorError, Isa, KvSpec, KvType, PackError, PackedExperts, PackedMatrix,
    RecurrentSpec, Weight, Weights,
};
use verbatim_gguf::{GgufError, GgufFile, Tensor};
use verbatim_models::{
    Hyperparameters, KeyRotation, KvShape, Model, ModelError, Transformed, WeightForm, WeightSpec,
};
use verbatim_quant::{QuantError, dequantize};
use verbatim_state::{Digest, Keys, LayerSpec, State, StateMemoryError, StateSpec};

/// Sequences longer than this are not made unless asked for, whatever the model was trained for.
const DEFAULT_CONTEXT: usize = 8192;

/// How a model is loaded.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Threads that compute.
    pub threads: usize,
    /// The instruction set; `None` for the best, or what `VERBATIM_ISA` names.
    pub isa: Option<Isa>,
    /// The most positions of a sequence; `None` for what the model was trained for, up to 8192.
    pub context: Option<usize>,
    /// Sequences at a time.
    pub sequences: usize,
    /// Storage of K.
    pub k: KvType,
    /// Storage of V.
    pub v: KvType,
    /// Quantised K and V are transformed before they are stored, which costs a little time and mostly loses less.
    pub rotation: bool,
    /// Memory for what no sequence holds but others may begin with, in bytes.
    pub cache_bytes: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            threads: 1,
            isa: None,
            context: None,
            sequences: 1,
            k: KvType::F16,
            v: KvType::F16,
            rotation: true,
            cache_bytes: 0,
        }
    }
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is not a model that can be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor is missing.
    #[error(transparent)]
    File(#[from] GgufError),
    /// A matrix could not be packed.
    #[error("tensor {name}: {error}")]
    Pack {
        /// The tensor.
        name: String,
        /// Why.
        error: PackError,
    },
    /// A vector could not be decoded.
    #[error("tensor {name}: {error}")]
    Decode {
        /// The tensor.
        name: String,
        /// Why.
        error: QuantError,
    },
    /// No executor could be made.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// No memory for the sequences.
    #[error(transparent)]
    Memory(#[from] StateMemoryError),
    /// A context that the model cannot have.
    #[error("a context of {0} positions is not possible; it must be from 1 to {most}", most = MOST_CONTEXT)]
    Context(usize),
}

/// Positions are i32 in graphs.
const MOST_CONTEXT: usize = 1 << 30;

/// Whether a file is a model that can be run, and its numbers. Reads no weights.
///
/// # Errors
/// What is wrong with it, and where.
pub fn check(file: &GgufFile) -> Result<Hyperparameters, ModelError> {
    verbatim_models::open(file).map(|model| model.hyperparameters().clone())
}

impl Engine {
    /// Loads a model. The file is not needed afterwards.
    ///
    /// # Errors
    /// If the file is no model that can be run, or memory does not suffice.
    pub fn load(file: &GgufFile, options: &LoadOptions) -> Result<Engine, LoadError> {
        let model = verbatim_models::open(file)?;
        let context = options.context.unwrap_or(model.hyperparameters().context.min(DEFAULT_CONTEXT));
        if context == 0 || context > MOST_CONTEXT {
            return Err(LoadError::Context(context));
        }
        let mut executor = match options.isa {
            Some(isa) => Executor::with_isa(options.threads, isa)?,
            None => Executor::new(options.threads)?,
        };
        let transformed = Transformed {
            keys: options.rotation && options.k.is_quantized(),
            values: options.rotation && options.v.is_quantized(),
        };
        let layers = model.kv_shapes(context).into_iter().map(|shape| layer(file, &*model, shape, options));
        let mut layers = layers.collect::<Result<Vec<LayerSpec>, _>>()?;
        layers.iter_mut().for_each(|layer| layer.transformed = transformed.keys);
        let recurrent: Vec<RecurrentSpec> = model
            .recurrent_shapes()
            .into_iter()
            .map(|shape| RecurrentSpec {
                kernel: shape.kernel,
                channels: shape.channels(),
                heads: shape.heads,
            })
            .collect();
        let mut state = State::new(StateSpec {
            layers,
            recurrent,
            sequences: options.sequences,
            context,
            in_flight: MAX_ROWS,
            pages: options.sequences.saturating_mul(State::pages_for(context)),
            cache_bytes: options.cache_bytes,
        })?;
        let tensors = model.weights().iter().map(|spec| file.require_tensor(&spec.name));
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        let reading = Reading::of(tensors.clone());
        let weights = model.weights().iter().zip(tensors);
        let weights = weights.map(|(spec, tensor)| load(spec, tensor, &reading, executor.team()));
        let weights = Weights::new(weights.collect::<Result<_, _>>()?);
        state.identify(identity(file));
        let (arena, programs) = (Arena::default(), HashMap::new());
        Ok(Engine { model, weights, executor, arena, state, transformed, programs })
    }
}

fn layer(
    file: &GgufFile,
    model: &dyn Model,
    shape: KvShape,
    options: &LoadOptions,
) -> Result<LayerSpec, LoadError> {
    let KvShape { kv_heads, head_dim, window, rotation } = shape;
    let keys = match rotation {
        None => Keys::Still,
        Some(KeyRotation { table, layout, divisors }) => {
            let divisors = divisors.map(|weight| {
                let spec = &model.weights()[weight as usize];
                vector(spec, file.require_tensor(&spec.name)?)
            });
            let divisors = divisors.transpose()?;
            Keys::Rotated { table, layout, divisors }
        }
    };
    let kv = KvSpec { kv_heads, head_dim, k: options.k, v: options.v };
    Ok(LayerSpec { kv, window, keys, transformed: false })
}

/// Bytes of each tensor that take part in a model's identity, evenly spread.
const IDENTITY_BYTES: usize = 1 << 16;
const IDENTITY_CHUNK: usize = 1 << 12;

/// Tells a model from others: by its metadata, and the name, form and some bytes of every tensor. Reading all would take as
/// long as loading; files that differ in their weights differ all over them. Quick once the file has been read, and slow before:
/// a disk finds scattered bytes no faster than whole tensors.
fn identity(file: &GgufFile) -> Digest {
    let mut hash = Sha256::new();
    for (key, value) in file.metadata().iter() {
        hash.update(format!("{key}={value:?};"));
    }
    for tensor in file.iter_tensors() {
        let (info, data) = (tensor.info(), tensor.data());
        hash.update(format!("{} {} {:?};", info.name(), info.dtype(), info.dims()));
        let stride = data.len().div_ceil(IDENTITY_BYTES / IDENTITY_CHUNK).max(IDENTITY_CHUNK);
        for (i, part) in data.chunks(stride).enumerate() {
            hash.update(&part[..part.len().min(IDENTITY_CHUNK)]);
            tensor.release(i * stride..i * stride + part.len());
        }
    }
    hash.finalize().into()
}

fn vector(spec: &WeightSpec, tensor: Tensor<'_>) -> Result<Vec<f32>, LoadError> {
    let mut vector = vec![0.0; spec.cols];
    dequantize(spec.dtype, tensor.data(), &mut vector)
        .map_err(|error| LoadError::Decode { name: spec.name.clone(), error })?;
    Ok(vector)
}

fn load(
    spec: &WeightSpec,
    tensor: Tensor<'_>,
    reading: &Reading<'_>,
    team: &mut Team,
) -> Result<Weight, LoadError> {
    let &WeightSpec { dtype, rows, cols, .. } = spec;
    let data = tensor.data();
    let done = |range| reading.done(tensor, range);
    let packed = match spec.form {
        WeightForm::Matrix => {
            PackedMatrix::pack_with(team, dtype, rows, cols, data, &done).map(Weight::Matrix)
        }
        WeightForm::Experts(experts) => {
            PackedExperts::pack_with(team, dtype, experts, rows / experts, cols, data, &done)
                .map(Weight::Experts)
        }
        WeightForm::Vector => {
            let vector = vector(spec, tensor)?;
            done(0..data.len());
            Ok(Weight::Vector(vector))
        }
    };
    packed.map_err(|error| LoadError::Pack { name: spec.name.clone(), error })
}
