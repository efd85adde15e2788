//! Hyperparameters from metadata: `ARCHITECTURE.name` keys with checks that name the key and what it must be.

use crate::{Hyperparameters, ModelError};
use verbatim_gguf::{GgufFile, Metadata, ValueType};
use verbatim_graph::{F32Bits, RopeScaling, RopeTable};

/// The metadata of a file under its architecture's prefix.
pub(crate) struct MetadataReader<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

/// Which layers have a sliding window.
#[derive(Clone, Debug)]
pub(crate) enum LayerPattern {
    /// All but the last of every n layers; all layers if 0.
    Period(usize),
    /// Those that are true.
    List(Vec<bool>),
}

impl LayerPattern {
    pub(crate) const ALL: LayerPattern = LayerPattern::Period(0);

    /// Whether this layer has a sliding window.
    pub(crate) fn is_windowed(&self, layer: usize) -> bool {
        match self {
            LayerPattern::Period(0) => true,
            LayerPattern::Period(period) => layer % period < period - 1,
            LayerPattern::List(windowed) => windowed[layer],
        }
    }
}

impl<'a> MetadataReader<'a> {
    pub(crate) fn new(file: &'a GgufFile, architecture: &'a str) -> Self {
        MetadataReader { metadata: file.metadata(), architecture }
    }

    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// A required integer >= 1.
    pub(crate) fn require_count(&self, name: &str) -> Result<usize, ModelError> {
        let key = self.key(name);
        match self.metadata.require_usize(&key)? {
            0 => Err(ModelError::Key { key, found: "0".into(), expected: "at least 1".into() }),
            count => Ok(count),
        }
    }

    /// An optional integer >= 1.
    pub(crate) fn optional_count(&self, name: &str) -> Result<Option<usize>, ModelError> {
        if self.metadata.contains(&self.key(name)) { self.require_count(name).map(Some) } else { Ok(None) }
    }

    /// A required list of integers, which may be 0.
    pub(crate) fn require_counts(&self, name: &str) -> Result<Vec<usize>, ModelError> {
        let counts = self.metadata.require_u32_array(&self.key(name))?;
        match counts.is_empty() {
            true => Err(self.wrong(name, "empty", "at least one integer")),
            false => Ok(counts.into_iter().map(|count| count as usize).collect()),
        }
    }

    /// An optional bool.
    pub(crate) fn optional_bool(&self, name: &str) -> Result<Option<bool>, ModelError> {
        Ok(self.metadata.get_bool(&self.key(name))?)
    }

    /// Optional bools, one per layer.
    pub(crate) fn optional_bools(&self, name: &str) -> Result<Option<Vec<bool>>, ModelError> {
        Ok(self.metadata.get_bool_array(&self.key(name))?)
    }

    /// An optional integer, which may be 0.
    pub(crate) fn optional_usize(&self, name: &str) -> Result<Option<usize>, ModelError> {
        Ok(self.metadata.get_usize(&self.key(name))?)
    }

    /// An optional finite number.
    pub(crate) fn optional_f32(&self, name: &str) -> Result<Option<f32>, ModelError> {
        let key = self.key(name);
        match self.metadata.get_f32(&key)? {
            Some(x) if !x.is_finite() => {
                Err(ModelError::Key { key, found: x.to_string(), expected: "a finite number".into() })
            }
            x => Ok(x),
        }
    }

    pub(crate) fn optional_str(&self, name: &str) -> Result<Option<&'a str>, ModelError> {
        Ok(self.metadata.get_str(&self.key(name))?)
    }

    /// Rejects a file in which this key is present and not 0, because that requests something unsupported.
    pub(crate) fn reject_nonzero(&self, name: &str, why: &str) -> Result<(), ModelError> {
        let key = self.key(name);
        match self.metadata.get_usize(&key)? {
            None | Some(0) => Ok(()),
            Some(found) => Err(ModelError::Key { key, found: found.to_string(), expected: why.into() }),
        }
    }

    /// Rejects a file in which this key is present with the opposite value.
    pub(crate) fn require_flag(&self, name: &str, wanted: bool, why: &str) -> Result<(), ModelError> {
        match self.optional_bool(name)? {
            Some(found) if found != wanted => Err(self.wrong(name, found, why)),
            _ => Ok(()),
        }
    }

    pub(crate) fn wrong(&self, name: &str, found: impl ToString, expected: impl ToString) -> ModelError {
        ModelError::Key { key: self.key(name), found: found.to_string(), expected: expected.to_string() }
    }

    /// The hyperparameters that every architecture has.
    pub(crate) fn hyperparameters(&self, file: &GgufFile) -> Result<Hyperparameters, ModelError> {
        let table = file.require_tensor("token_embd.weight")?;
        let vocabulary = table.info().rows();
        if let Some(tokens) = self.metadata.get_bytes_array("tokenizer.ggml.tokens")?
            && tokens.len() != vocabulary
        {
            return Err(ModelError::Shape {
                name: "token_embd.weight".into(),
                found: format!("{:?}", table.info().dims()),
                expected: format!("[_, {}], a row for each token of tokenizer.ggml.tokens", tokens.len()),
            });
        }
        Ok(Hyperparameters {
            architecture: self.architecture.into(),
            layers: self.require_count("block_count")?,
            hidden: self.require_count("embedding_length")?,
            vocabulary,
            context: self.require_count("context_length")?,
        })
    }

    /// (heads, KV heads, elements of a head).
    pub(crate) fn heads(&self, hidden: usize) -> Result<(usize, usize, usize), ModelError> {
        let heads = self.require_count("attention.head_count")?;
        let kv_heads = self.optional_count("attention.head_count_kv")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(self.wrong(
                "attention.head_count_kv",
                kv_heads,
                format!("a divisor of the {heads} heads"),
            ));
        }
        let head_dim = match self.optional_count("attention.key_length")? {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let expected = format!("a divisor of the {hidden} elements of the residual stream");
                return Err(self.wrong("attention.head_count", heads, expected));
            }
        };
        if let Some(v_dim) = self.optional_count("attention.value_length")?
            && v_dim != head_dim
        {
            return Err(self.wrong(
                "attention.value_length",
                v_dim,
                format!("{head_dim}, as attention.key_length"),
            ));
        }
        if heads.checked_mul(head_dim).is_none_or(|width| width > 1 << 24) {
            return Err(self.wrong(
                "attention.head_count",
                heads,
                format!("at most {} with a head size of {head_dim}", (1 << 24) / head_dim),
            ));
        }
        Ok((heads, kv_heads, head_dim))
    }

    pub(crate) fn rms_epsilon(&self) -> Result<F32Bits, ModelError> {
        let name = "attention.layer_norm_rms_epsilon";
        match self.optional_f32(name)? {
            Some(eps) if eps >= 0.0 => Ok(F32Bits(eps)),
            Some(eps) => Err(self.wrong(name, eps, "at least 0")),
            None => Err(self.wrong(name, "missing", "a small positive number such as 1e-5")),
        }
    }

    /// An optional positive number; 0 means absent.
    pub(crate) fn optional_positive(&self, name: &str) -> Result<Option<f32>, ModelError> {
        match self.optional_f32(name)? {
            None | Some(0.0) => Ok(None),
            Some(x) if x > 0.0 => Ok(Some(x)),
            Some(x) => Err(self.wrong(name, x, "above 0, or 0 for none")),
        }
    }

    /// Window of the sliding-window layers; `None` if the file has none.
    pub(crate) fn window(&self) -> Result<Option<usize>, ModelError> {
        Ok(self.metadata.get_usize(&self.key("attention.sliding_window"))?.filter(|&window| window > 0))
    }

    /// Which layers have a sliding window, by list or by period; most files do not contain it.
    pub(crate) fn layer_pattern(
        &self,
        layers: usize,
        default_period: usize,
    ) -> Result<LayerPattern, ModelError> {
        let name = "attention.sliding_window_pattern";
        let key = self.key(name);
        if self.metadata.get(&key).is_none_or(|value| value.value_type() != ValueType::Array) {
            return Ok(LayerPattern::Period(self.metadata.get_usize(&key)?.unwrap_or(default_period)));
        }
        let windowed = self.metadata.get_bool_array(&key)?.unwrap_or_default();
        if windowed.len() != layers {
            let expected = format!("one for each of the {layers} layers");
            return Err(self.wrong(name, format!("{} values", windowed.len()), expected));
        }
        Ok(LayerPattern::List(windowed))
    }

    /// RoPE of the sliding-window layers: its own base, no scaling.
    pub(crate) fn sliding_window_rope(
        &self,
        head_dim: usize,
        default_base: f32,
    ) -> Result<RopeTable, ModelError> {
        let base = self.rope_base("rope.freq_base_swa", default_base)?;
        let scaling = RopeScaling::Linear { factor: F32Bits(1.0) };
        Ok(RopeTable { base, scaling, ..self.rope(head_dim)? })
    }

    /// LongRoPE's factor on cosines and sines: the file's value, or one computed from its context (arXiv 2402.13753,
    /// as Phi-3 defines it).
    pub(crate) fn long_rope(&self) -> Result<RopeScaling, ModelError> {
        let original = self.require_count("rope.scaling.original_context_length")? as f32;
        let factor = match self.optional_positive("rope.scaling.attn_factor")? {
            Some(factor) => factor,
            None => {
                let factor = self.require_count("context_length")? as f32 / original;
                (1.0 + libm::logf(factor.max(1.0)) / libm::logf(original.max(2.0))).sqrt()
            }
        };
        Ok(RopeScaling::Long { attention_factor: F32Bits(factor) })
    }

    fn rope_base(&self, name: &str, default: f32) -> Result<F32Bits, ModelError> {
        match self.optional_f32(name)?.unwrap_or(default) {
            base if base > 1.0 => Ok(F32Bits(base)),
            base => Err(self.wrong(name, base, "above 1")),
        }
    }

    /// RoPE of heads of `head_dim` elements.
    pub(crate) fn rope(&self, head_dim: usize) -> Result<RopeTable, ModelError> {
        let rotary_dim = self.optional_count("rope.dimension_count")?.unwrap_or(head_dim);
        if !rotary_dim.is_multiple_of(2) || rotary_dim > head_dim {
            let expected = format!("even and at most the {head_dim} elements of a head");
            return Err(self.wrong("rope.dimension_count", rotary_dim, expected));
        }
        let base = self.rope_base("rope.freq_base", 10_000.0)?;
        Ok(RopeTable { rotary_dim, base, scaling: self.rope_scaling()? })
    }

    fn rope_scaling(&self) -> Result<RopeScaling, ModelError> {
        // Old files have the factor under a different name.
        let factor = match self.optional_f32("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.optional_f32("rope.scale_linear")?,
        };
        let factor = match factor {
            None | Some(0.0) => 1.0,
            Some(factor) if factor > 0.0 => factor,
            Some(factor) => return Err(self.wrong("rope.scaling.factor", factor, "above 0")),
        };
        match self.optional_str("rope.scaling.type")?.unwrap_or("linear") {
            "none" => Ok(RopeScaling::Linear { factor: F32Bits(1.0) }),
            "linear" => Ok(RopeScaling::Linear { factor: F32Bits(factor) }),
            "yarn" => self.yarn(factor),
            "longrope" => self.long_rope(),
            other => {
                let expected = "none, linear, yarn or longrope";
                Err(self.wrong("rope.scaling.type", format!("{other:?}"), expected))
            }
        }
    }

    /// YaRN with the defaults of its paper; the attention factor follows its section 3.4 unless the file specifies it.
    fn yarn(&self, factor: f32) -> Result<RopeScaling, ModelError> {
        let original_context = match self.optional_count("rope.scaling.original_context_length")? {
            Some(context) => context,
            None => self.require_count("context_length")?,
        };
        let positive_or = |name: &str, default: f32| match self.optional_f32(name)? {
            None => Ok(default),
            Some(x) if x > 0.0 => Ok(x),
            Some(x) => Err(self.wrong(name, x, "above 0")),
        };
        let extra = positive_or("rope.scaling.attn_factor", 1.0)?
            * positive_or("rope.scaling.yarn_attn_factor", 1.0)?;
        if let Some(ext_factor) = self.optional_f32("rope.scaling.yarn_ext_factor")?
            && ext_factor != 1.0
        {
            return Err(self.wrong("rope.scaling.yarn_ext_factor", ext_factor, 1));
        }
        Ok(RopeScaling::Yarn {
            factor: F32Bits(factor),
            original_context,
            attention_factor: F32Bits(extra * (1.0 + 0.1 * libm::logf(factor))),
            beta_fast: F32Bits(positive_or("rope.scaling.yarn_beta_fast", 32.0)?),
            beta_slow: F32Bits(positive_or("rope.scaling.yarn_beta_slow", 1.0)?),
            truncate: true,
        })
    }
}
