//! The per-sequence state of a model: the shapes and types of its K and V, their RoPE, and its recurrent states.

use crate::LoadOptions;
use crate::load_error::LoadError;
use verbatim_backend::{KvSpec, KvType, RecurrentSpec};
use verbatim_gguf::GgufFile;
use verbatim_models::{HadamardKv, KeyRope, KvShape, Model, WeightSpec};
use verbatim_quant::dequantize;
use verbatim_state::{LayerSpec, ModelSpec, RopeKind};

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

/// The context size that LongRoPE's factors are chosen by: it must not depend on how much memory there is at the moment, because
/// they change the output.
pub(crate) fn rope_context(model: &dyn Model, options: &LoadOptions) -> usize {
    options.context.unwrap_or(model.hyperparameters().context)
}

impl LoadOptions {
    pub(crate) fn kv_format(&self) -> KvFormat {
        KvFormat { k: self.k, v: self.v, hadamard: self.hadamard }
    }
}

/// How K and V are stored.
#[derive(Clone, Copy)]
pub(crate) struct KvFormat {
    pub(crate) k: KvType,
    pub(crate) v: KvType,
    pub(crate) hadamard: bool,
}

impl KvFormat {
    /// As computed.
    const EXACT: KvFormat = KvFormat { k: KvType::F32, v: KvType::F32, hadamard: false };

    pub(crate) fn hadamard(self) -> HadamardKv {
        HadamardKv {
            keys: self.hadamard && self.k.is_quantized(),
            values: self.hadamard && self.v.is_quantized(),
        }
    }

    pub(crate) fn of_layer(self, layer: &LayerSpec) -> LayerSpec {
        let kv = KvSpec { k: self.k, v: self.v, ..layer.kv };
        LayerSpec { kv, hadamard: self.hadamard().keys, ..layer.clone() }
    }
}

fn vector(file: &GgufFile, spec: &WeightSpec) -> Result<Vec<f32>, LoadError> {
    let mut vector = vec![0.0; spec.cols];
    dequantize(spec.dtype, &file.require_tensor(&spec.name)?.data()?, &mut vector)
        .map_err(|error| LoadError::Decode { name: spec.name.clone(), error })?;
    Ok(vector)
}
