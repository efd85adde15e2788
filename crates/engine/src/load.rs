//! Loading: the model understood, its weights packed, memory for its sequences.

use crate::Engine;
use std::collections::HashMap;
use verbatim_cpu::{
    Arena, Executor, ExecutorError, Isa, KvSpec, KvType, PackError, PackedExperts, PackedMatrix,
    RecurrentSpec, Weight, Weights,
};
use verbatim_gguf::{GgufError, GgufFile};
use verbatim_models::{Hyperparameters, ModelError, WeightForm, WeightSpec};
use verbatim_quant::{QuantError, dequantize};
use verbatim_state::{State, StateMemoryError};

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
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions { threads: 1, isa: None, context: None, sequences: 1, k: KvType::F16, v: KvType::F16 }
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
        let specs: Vec<KvSpec> = model
            .kv_shapes()
            .into_iter()
            .map(|shape| KvSpec {
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
                k: options.k,
                v: options.v,
            })
            .collect();
        let recurrent: Vec<RecurrentSpec> = model
            .recurrent_shapes()
            .into_iter()
            .map(|shape| RecurrentSpec {
                kernel: shape.kernel,
                channels: shape.channels(),
                heads: shape.heads,
            })
            .collect();
        let pages = options.sequences.saturating_mul(State::pages_for(context));
        let state = State::new(&specs, &recurrent, options.sequences, context, pages)?;
        file.prefetch();
        let weights = model.weights().iter().map(|spec| load(file, spec, &mut executor));
        let weights = Weights::new(weights.collect::<Result<_, _>>()?);
        Ok(Engine { model, weights, executor, arena: Arena::default(), state, programs: HashMap::new() })
    }
}

fn load(file: &GgufFile, spec: &WeightSpec, executor: &mut Executor) -> Result<Weight, LoadError> {
    let data = file.require_tensor(&spec.name)?.data();
    match spec.form {
        WeightForm::Matrix => {
            PackedMatrix::pack_with(executor.team(), spec.dtype, spec.rows, spec.cols, data)
                .map(Weight::Matrix)
                .map_err(|error| LoadError::Pack { name: spec.name.clone(), error })
        }
        WeightForm::Experts(experts) => {
            let rows = spec.rows / experts;
            PackedExperts::pack_with(executor.team(), spec.dtype, experts, rows, spec.cols, data)
                .map(Weight::Experts)
                .map_err(|error| LoadError::Pack { name: spec.name.clone(), error })
        }
        WeightForm::Vector => {
            let mut vector = vec![0.0; spec.cols];
            dequantize(spec.dtype, data, &mut vector)
                .map_err(|error| LoadError::Decode { name: spec.name.clone(), error })?;
            Ok(Weight::Vector(vector))
        }
    }
}
