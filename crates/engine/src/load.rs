//! Loading: parses and validates a model, packs its weights into the backend's layout, and allocates memory for its sequences.
//! Draft models are appended the same way.

use crate::load_error::LoadError;
use crate::read_ahead::{ReadAhead, ReadTensor};
use crate::requirements::Requirements;
use crate::sequence_spec::{KvFormat, model_spec, rope_context};
use crate::stepper::{Loaded, SequenceMemory, Stepper};
use crate::{DraftOptions, LoadOptions, MAX_ROWS};
use sha2::{Digest as _, Sha256};
use std::sync::atomic::{AtomicUsize, Ordering};
use verbatim_backend::{Backend, KvType, WeightSource};
use verbatim_gguf::{GgufError, GgufFile, Tensor};
use verbatim_models::{Hyperparameters, Model, ModelError, ModelOffsets, WeightSpec};
use verbatim_quant::dequantize;
use verbatim_state::{Digest, ModelId, ModelSpec, State, StateSpec};

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
    /// If the file is not a supported model or changes meanwhile, or there is not enough memory.
    pub fn load(backend: B, file: &GgufFile, options: &LoadOptions) -> Result<Stepper<B>, LoadError> {
        Self::load_counted(backend, file, options, &AtomicUsize::new(0))
    }

    /// As [`Self::load`]. Other threads can see in `packed_bytes` how many bytes of the file's tensors were packed so far.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_counted(
        backend: B,
        file: &GgufFile,
        options: &LoadOptions,
        packed_bytes: &AtomicUsize,
    ) -> Result<Stepper<B>, LoadError> {
        let loaded = Self::load_target(backend, file, options, packed_bytes);
        // Whatever was read of a file that has changed is worth nothing, and this is the reason of any error.
        file.check_unchanged()?;
        loaded
    }

    fn load_target(
        mut backend: B,
        file: &GgufFile,
        options: &LoadOptions,
        packed_bytes: &AtomicUsize,
    ) -> Result<Stepper<B>, LoadError> {
        let model = verbatim_models::open(file)?;
        let format = options.kv_format();
        let spec = model_spec(file, &*model, rope_context(&*model, options), format)?;
        let context = Requirements::of(file, &*model, &spec, options)?.context;
        let sizes = state_spec(options, context);
        // Memory first: this may fail, and weights take long to load.
        let mut state = State::new(backend.new_state(), sizes, spec.clone())?;
        let mut weights = backend.new_weights();
        append_weights(&mut backend, &mut weights, (file, &*model), packed_bytes)?;
        // Fast now that the file is in the page cache.
        let digest = model_digest(file)?;
        state.set_model_digest(ModelId::TARGET, digest);
        let memory = SequenceMemory { state, hadamard: vec![format.hadamard()] };
        let backend_sampling = options.backend_sampling;
        let target = Loaded { model, offsets: ModelOffsets::default(), spec, digest, backend_sampling };
        Ok(Stepper::from_parts(backend, weights, target, memory, *options))
    }

    /// Loads a draft model: its weights follow those of earlier models, and its layers are added to every sequence.
    /// [`Stepper::step_with`] computes rows with it.
    ///
    /// # Errors
    /// If the file is not a supported model or changes meanwhile, there is not enough memory, or sequences have begun. The
    /// stepper cannot be used any more if reading the weights has failed.
    pub fn append_model(&mut self, file: &GgufFile, options: &DraftOptions) -> Result<ModelId, LoadError> {
        let appended = self.append_weights_and_layers(file, options);
        file.check_unchanged()?;
        appended
    }

    fn append_weights_and_layers(
        &mut self,
        file: &GgufFile,
        options: &DraftOptions,
    ) -> Result<ModelId, LoadError> {
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
        let appended = self.append_read_draft(file, target_file, options);
        file.check_unchanged()?;
        target_file.check_unchanged()?;
        appended
    }

    fn append_read_draft(
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
        let spec = model_spec(file, &*model, self.rope_context(), format)?;
        let offsets = self.models.iter().fold(ModelOffsets::default(), |offsets, loaded| ModelOffsets {
            weights: offsets.weights + loaded.model.weights().len() as u32,
            kv: offsets.kv + loaded.spec.layers.len() as u32,
            recurrent: offsets.recurrent + loaded.spec.recurrent.len() as u32,
        });
        let id = self.memory.state.append_model(spec.clone())?;
        append_weights(&mut self.backend, &mut self.weights, (file, &*model), &AtomicUsize::new(0))?;
        let digest = model_digest(file)?;
        self.memory.state.set_model_digest(id, digest);
        self.memory.hadamard.push(format.hadamard());
        let backend_sampling = options.backend_sampling;
        self.models.push(Loaded { model, offsets, spec, digest, backend_sampling });
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

fn state_spec(options: &LoadOptions, context: usize) -> StateSpec {
    StateSpec {
        sequences: options.sequences,
        context,
        in_flight: MAX_ROWS,
        pages: options.sequences.saturating_mul(verbatim_state::pages_for(context)),
        cache_bytes: options.cache_bytes,
    }
}

/// Appends a model's weights to the table, reading ahead in the file.
fn append_weights<B: Backend>(
    backend: &mut B,
    weights: &mut B::Weights,
    (file, model): (&GgufFile, &dyn Model),
    packed_bytes: &AtomicUsize,
) -> Result<(), LoadError> {
    let tensors = model.weights().iter().map(|spec| file.require_tensor(&spec.name));
    let tensors = tensors.collect::<Result<Vec<Tensor<'_>>, _>>()?;
    let read_ahead = ReadAhead::new(tensors.clone());
    for (spec, tensor) in model.weights().iter().zip(tensors) {
        let &WeightSpec { kind, dtype, rows, cols, .. } = spec;
        let bytes = &ReadTensor { tensor, read_ahead: &read_ahead };
        let appended = backend.append_weight(weights, WeightSource { kind, dtype, rows, cols, bytes });
        appended.map_err(|error| LoadError::Pack { name: spec.name.clone(), error })?;
        packed_bytes.fetch_add(tensor.byte_len(), Ordering::Relaxed);
    }
    Ok(())
}

/// Checks that a draft model's weights are finite, and not all 0: with such weights it could only propose nonsense.
fn check_weights(file: &GgufFile, model: &dyn Model) -> Result<(), LoadError> {
    let (mut bytes, mut row) = (Vec::new(), Vec::new());
    for spec in model.weights() {
        let name = || spec.name.clone();
        let tensor = file.require_tensor(&spec.name)?;
        let len = tensor.byte_len();
        let row_bytes = spec.dtype.row_bytes(spec.cols).unwrap_or(len).max(1);
        row.resize(spec.cols, 0.0);
        let mut is_zero = true;
        for start in (0..len).step_by(row_bytes) {
            bytes.resize(row_bytes.min(len - start), 0);
            tensor.read(start, &mut bytes)?;
            dequantize(spec.dtype, &bytes, &mut row)
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
fn model_digest(file: &GgufFile) -> Result<Digest, GgufError> {
    let mut hash = Sha256::new();
    let mut chunk = [0; DIGEST_CHUNK];
    for (key, value) in file.metadata().iter() {
        hash.update(format!("{key}={value:?};"));
    }
    for tensor in file.iter_tensors() {
        let len = tensor.byte_len();
        hash.update(format!("{} {} {:?};", tensor.name(), tensor.dtype(), tensor.dims()));
        let stride = len.div_ceil(DIGEST_BYTES / DIGEST_CHUNK).max(DIGEST_CHUNK);
        for start in (0..len).step_by(stride) {
            let part = &mut chunk[..DIGEST_CHUNK.min(len - start)];
            tensor.read(start, part)?;
            hash.update(part);
        }
    }
    Ok(hash.finalize().into())
}
