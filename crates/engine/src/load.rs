//! Loading: parses and validates a model, packs its weights into the backend's layout, and allocates memory for its sequences.
//! Draft models are appended the same way.

use crate::read_ahead::ReadAhead;
use crate::stepper::{Loaded, SequenceMemory, Stepper};
use crate::{DraftOptions, LoadOptions, MAX_ROWS};
use sha2::{Digest as _, Sha256};
use verbatim_backend::{Backend, KvSpec, KvType, PackError, RecurrentSpec, StateMemoryError, WeightSource};
use verbatim_gguf::{GgufError, GgufFile, Tensor};
use verbatim_models::{
    HadamardKv, Hyperparameters, KeyRope, KvShape, Model, ModelError, ModelOffsets, WeightSpec,
};
use verbatim_quant::{QuantError, dequantize};
use verbatim_state::{AppendError, Digest, LayerSpec, ModelId, ModelSpec, RopeKind, State, StateSpec};

/// The default maximum context, even if the model was trained for more.
const DEFAULT_CONTEXT: usize = 8192;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is not a supported model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor is missing.
    #[error(transparent)]
    File(#[from] GgufError),
    /// A weight could not be packed.
    #[error("tensor {name}: {error}")]
    Pack {
        /// The tensor.
        name: String,
        /// The error.
        error: PackError,
    },
    /// A vector could not be decoded.
    #[error("tensor {name}: {error}")]
    Decode {
        /// The tensor.
        name: String,
        /// The error.
        error: QuantError,
    },
    /// A weight of a draft model is not usable.
    #[error("tensor {name} of the draft model {problem}; the file is damaged")]
    DraftWeight {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A draft model's layers cannot be appended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// Not enough memory for the sequences.
    #[error(transparent)]
    Memory(#[from] StateMemoryError),
    /// The context size is out of range.
    #[error("context size {0} is out of range (1 to {MAX_CONTEXT})")]
    Context(usize),
}

/// Positions are i32 in graphs.
const MAX_CONTEXT: usize = 1 << 30;

/// Returns the hyperparameters of a model file. Validates the file, but reads no weights.
///
/// # Errors
/// If the file is not a supported model.
pub fn read_hyperparameters(file: &GgufFile) -> Result<Hyperparameters, ModelError> {
    verbatim_models::open(file).map(|model| model.hyperparameters().clone())
}

impl<B: Backend> Stepper<B> {
    /// Loads a model as the target. The file is not needed afterwards.
    ///
    /// # Errors
    /// If the file is not a supported model, or there is not enough memory.
    pub fn load(mut backend: B, file: &GgufFile, options: &LoadOptions) -> Result<Stepper<B>, LoadError> {
        let model = verbatim_models::open(file)?;
        let context = context_size(&*model, options)?;
        let sizes = state_spec(options, context);
        let format = options.kv_format();
        let spec = model_spec(file, &*model, context, format)?;
        // Memory first: this may fail, and weights take long to load.
        let mut state = State::new(backend.new_state(), sizes, spec.clone())?;
        let mut weights = backend.new_weights();
        append_weights(&mut backend, &mut weights, file, &*model)?;
        // Fast now that the file is in the page cache.
        let digest = model_digest(file);
        state.set_model_digest(ModelId::TARGET, digest);
        let memory = SequenceMemory { state, hadamard: vec![format.hadamard()] };
        let target = Loaded { model, offsets: ModelOffsets::default(), spec, digest };
        Ok(Stepper::from_parts(backend, weights, target, memory, *options))
    }

    /// Loads a draft model: its weights follow those of earlier models, and its layers are added to every sequence.
    /// [`Stepper::step_with`] computes rows with it.
    ///
    /// # Errors
    /// If the file is not a supported model, there is not enough memory, or sequences have begun.
    pub fn append_model(&mut self, file: &GgufFile, options: &DraftOptions) -> Result<ModelId, LoadError> {
        let model = verbatim_models::open(file)?;
        self.append_opened(file, model, options)
    }

    /// Loads a draft model that reads the target's hidden states (EAGLE-3, DFlash), as [`Stepper::append_model`]. Steps of the
    /// target then include its follow pass, unless [`Stepper::set_following`] turns it off.
    ///
    /// # Errors
    /// As for [`Stepper::append_model`]; if it does not fit the target, whose file is `target_file`; and if a weight has an element
    /// that is not finite, or no other than 0.
    pub fn append_draft(
        &mut self,
        file: &GgufFile,
        target_file: &GgufFile,
        options: &DraftOptions,
    ) -> Result<ModelId, LoadError> {
        let draft = verbatim_models::open_draft(file, &*self.models[0].model, target_file)?;
        check_weights(file, &draft)?;
        let id = self.append_opened(file, Box::new(draft), options)?;
        self.set_following(id, true);
        Ok(id)
    }

    fn append_opened(
        &mut self,
        file: &GgufFile,
        model: Box<dyn Model>,
        options: &DraftOptions,
    ) -> Result<ModelId, LoadError> {
        let format = KvFormat { k: options.k, v: options.v, hadamard: options.hadamard };
        let spec = model_spec(file, &*model, self.context(), format)?;
        let offsets = self.models.iter().fold(ModelOffsets::default(), |offsets, loaded| ModelOffsets {
            weights: offsets.weights + loaded.model.weights().len() as u32,
            kv: offsets.kv + loaded.spec.layers.len() as u32,
            recurrent: offsets.recurrent + loaded.spec.recurrent.len() as u32,
        });
        let id = self.memory.state.append_model(spec.clone())?;
        append_weights(&mut self.backend, &mut self.weights, file, &*model)?;
        let digest = model_digest(file);
        self.memory.state.set_model_digest(id, digest);
        self.memory.hadamard.push(format.hadamard());
        self.models.push(Loaded { model, offsets, spec, digest });
        Ok(id)
    }

    /// New memory with the same sequence count and context, but different KV cache types, for [`Stepper::swap_memory`].
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new_memory(&self, k: KvType, v: KvType, hadamard: bool) -> Result<SequenceMemory<B>, LoadError> {
        let format = KvFormat { k, v, hadamard };
        let mut specs = self.models.iter().map(|loaded| {
            let layers = loaded.spec.layers.iter().zip(loaded.model.kv_shapes(self.context()));
            let layers = layers.map(|(layer, shape)| match shape.is_row_memory {
                true => layer.clone(),
                false => format.of_layer(layer),
            });
            ModelSpec { layers: layers.collect(), recurrent: loaded.spec.recurrent.clone() }
        });
        let target = specs.next().expect("there is a target");
        let spec = state_spec(&self.options, self.context());
        let mut state = State::new(self.backend.new_state(), spec, target)?;
        state.set_model_digest(ModelId::TARGET, self.models[0].digest);
        for (spec, loaded) in specs.zip(&self.models[1..]) {
            let id = state.append_model(spec)?;
            state.set_model_digest(id, loaded.digest);
        }
        Ok(SequenceMemory { state, hadamard: vec![format.hadamard(); self.models.len()] })
    }
}

/// The context size that the options ask for.
pub(crate) fn context_size(model: &dyn Model, options: &LoadOptions) -> Result<usize, LoadError> {
    let context = options.context.unwrap_or(model.hyperparameters().context.min(DEFAULT_CONTEXT));
    if context == 0 || context > MAX_CONTEXT {
        return Err(LoadError::Context(context));
    }
    Ok(context)
}

impl LoadOptions {
    pub(crate) fn kv_format(&self) -> KvFormat {
        KvFormat { k: self.k, v: self.v, hadamard: self.hadamard }
    }
}

/// How K and V are stored.
#[derive(Clone, Copy)]
pub(crate) struct KvFormat {
    k: KvType,
    v: KvType,
    hadamard: bool,
}

impl KvFormat {
    /// As computed.
    const EXACT: KvFormat = KvFormat { k: KvType::F32, v: KvType::F32, hadamard: false };

    fn hadamard(self) -> HadamardKv {
        HadamardKv {
            keys: self.hadamard && self.k.is_quantized(),
            values: self.hadamard && self.v.is_quantized(),
        }
    }

    fn of_layer(self, layer: &LayerSpec) -> LayerSpec {
        let kv = KvSpec { k: self.k, v: self.v, ..layer.kv };
        LayerSpec { kv, hadamard: self.hadamard().keys, ..layer.clone() }
    }
}

fn state_spec(options: &LoadOptions, context: usize) -> StateSpec {
    StateSpec {
        sequences: options.sequences,
        context,
        in_flight: MAX_ROWS,
        pages: options.sequences.saturating_mul(verbatim_state::pages_for(context)),
        cache_bytes: options.cache_bytes,
    }
}

/// The per-sequence state of a model.
pub(crate) fn model_spec(
    file: &GgufFile,
    model: &dyn Model,
    context: usize,
    format: KvFormat,
) -> Result<ModelSpec, LoadError> {
    let layers = model.kv_shapes(context).into_iter().map(|shape| layer_spec(file, model, shape, format));
    let recurrent = model.recurrent_shapes().into_iter().map(|shape| RecurrentSpec {
        kernel: shape.kernel,
        channels: shape.channels(),
        heads: shape.heads,
    });
    Ok(ModelSpec { layers: layers.collect::<Result<_, LoadError>>()?, recurrent: recurrent.collect() })
}

fn layer_spec(
    file: &GgufFile,
    model: &dyn Model,
    shape: KvShape,
    format: KvFormat,
) -> Result<LayerSpec, LoadError> {
    let KvShape { kv_heads, head_dim, window, rope, is_row_memory } = shape;
    let format = if is_row_memory { KvFormat::EXACT } else { format };
    let rope = match rope {
        None => RopeKind::None,
        Some(KeyRope { table, layout, freq_factors }) => {
            let freq_factors = freq_factors.map(|weight| vector(file, &model.weights()[weight as usize]));
            RopeKind::Rope { table, layout, freq_factors: freq_factors.transpose()? }
        }
    };
    let kv = KvSpec { kv_heads, head_dim, k: format.k, v: format.v };
    Ok(LayerSpec { kv, window, rope, hadamard: format.hadamard().keys })
}

/// Appends a model's weights to the table, reading ahead in the file and releasing what has been packed.
fn append_weights<B: Backend>(
    backend: &mut B,
    weights: &mut B::Weights,
    file: &GgufFile,
    model: &dyn Model,
) -> Result<(), LoadError> {
    let tensors = model.weights().iter().map(|spec| file.require_tensor(&spec.name));
    let tensors = tensors.collect::<Result<Vec<Tensor<'_>>, _>>()?;
    let read_ahead = ReadAhead::new(tensors.clone());
    for (spec, tensor) in model.weights().iter().zip(tensors) {
        let &WeightSpec { kind, dtype, rows, cols, .. } = spec;
        let on_consumed = |range| read_ahead.done(tensor, range);
        let weight =
            WeightSource { kind, dtype, rows, cols, bytes: tensor.data(), on_consumed: &on_consumed };
        let appended = backend.append_weight(weights, weight);
        appended.map_err(|error| LoadError::Pack { name: spec.name.clone(), error })?;
    }
    Ok(())
}

/// Checks that a draft model's weights are finite, and not all 0: with such weights it could only propose nonsense.
fn check_weights(file: &GgufFile, model: &dyn Model) -> Result<(), LoadError> {
    let mut row = Vec::new();
    for spec in model.weights() {
        let name = || spec.name.clone();
        let data = file.require_tensor(&spec.name)?.data();
        let row_bytes = spec.dtype.row_bytes(spec.cols).unwrap_or(data.len()).max(1);
        row.resize(spec.cols, 0.0);
        let mut is_zero = true;
        for bytes in data.chunks(row_bytes) {
            dequantize(spec.dtype, bytes, &mut row)
                .map_err(|error| LoadError::Decode { name: name(), error })?;
            if row.iter().any(|x| !x.is_finite()) {
                let problem = "has elements that are not finite";
                return Err(LoadError::DraftWeight { name: name(), problem });
            }
            is_zero &= row.iter().all(|x| *x == 0.0);
        }
        if is_zero {
            return Err(LoadError::DraftWeight { name: name(), problem: "has no element but 0" });
        }
    }
    Ok(())
}

/// Number of bytes of each tensor that are hashed for the model's digest, evenly spread.
const DIGEST_BYTES: usize = 1 << 16;
const DIGEST_CHUNK: usize = 1 << 12;

/// The digest of a model: its metadata, and the name, type, shape and some bytes of every tensor. Hashing all bytes would take as
/// long as loading, and files with different weights differ almost everywhere. Fast only once the file is in the page cache: a
/// disk reads scattered bytes no faster than complete tensors.
fn model_digest(file: &GgufFile) -> Digest {
    let mut hash = Sha256::new();
    for (key, value) in file.metadata().iter() {
        hash.update(format!("{key}={value:?};"));
    }
    for tensor in file.iter_tensors() {
        let (info, data) = (tensor.info(), tensor.data());
        hash.update(format!("{} {} {:?};", info.name(), info.dtype(), info.dims()));
        let stride = data.len().div_ceil(DIGEST_BYTES / DIGEST_CHUNK).max(DIGEST_CHUNK);
        for (i, part) in data.chunks(stride).enumerate() {
            hash.update(&part[..part.len().min(DIGEST_CHUNK)]);
            tensor.release(i * stride..i * stride + part.len());
        }
    }
    hash.finalize().into()
}

fn vector(file: &GgufFile, spec: &WeightSpec) -> Result<Vec<f32>, LoadError> {
    let mut vector = vec![0.0; spec.cols];
    dequantize(spec.dtype, file.require_tensor(&spec.name)?.data(), &mut vector)
        .map_err(|error| LoadError::Decode { name: spec.name.clone(), error })?;
    Ok(vector)
}
