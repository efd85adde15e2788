//! Quantisation types (llama.cpp's ftypes): which format each tensor of a file gets.
//!
//! They follow llama.cpp's `src/llama-quant.cpp` without an importance matrix: most matrices get the format that the type is named
//! after; the output head gets more bits, and in the mixed types (`_M`) so do some of the most sensitive matrices, attn_v and
//! ffn_down. Left out is the exception for Llama 70B.

use verbatim_quant::DType;

use super::skeleton::{Fill, QuantContext, Tensor};

/// A quantisation type: which format each tensor of a file gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
#[allow(missing_docs)] // the variants are the types that they name
pub enum QuantType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q8_0,
    Q4_K_M,
    Q5_K_M,
    Q6_K,
    IQ4_XS,
}

/// No quantisation type has this name.
#[derive(Debug, thiserror::Error)]
#[error("unknown quantisation type `{0}`; choose one of {names}", names = QuantType::ALL.map(QuantType::name).join(", "))]
pub struct UnknownQuantType(String);

impl QuantType {
    /// Every type.
    pub const ALL: [QuantType; 11] = {
        use QuantType::*;
        [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K_M, Q5_K_M, Q6_K, IQ4_XS]
    };

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            QuantType::F32 => "F32",
            QuantType::F16 => "F16",
            QuantType::BF16 => "BF16",
            QuantType::Q4_0 => "Q4_0",
            QuantType::Q4_1 => "Q4_1",
            QuantType::Q5_0 => "Q5_0",
            QuantType::Q8_0 => "Q8_0",
            QuantType::Q4_K_M => "Q4_K_M",
            QuantType::Q5_K_M => "Q5_K_M",
            QuantType::Q6_K => "Q6_K",
            QuantType::IQ4_XS => "IQ4_XS",
        }
    }

    /// The value of `general.file_type`: llama.cpp's `enum llama_ftype`.
    pub(super) fn file_type(self) -> u32 {
        match self {
            QuantType::F32 => 0,
            QuantType::F16 => 1,
            QuantType::Q4_0 => 2,
            QuantType::Q4_1 => 3,
            QuantType::Q8_0 => 7,
            QuantType::Q5_0 => 8,
            QuantType::Q4_K_M => 15,
            QuantType::Q5_K_M => 17,
            QuantType::Q6_K => 18,
            QuantType::IQ4_XS => 30,
            QuantType::BF16 => 32,
        }
    }

    /// The format of most matrices.
    fn main_format(self) -> DType {
        match self {
            QuantType::F32 => DType::F32,
            QuantType::F16 => DType::F16,
            QuantType::BF16 => DType::BF16,
            QuantType::Q4_0 => DType::Q4_0,
            QuantType::Q4_1 => DType::Q4_1,
            QuantType::Q5_0 => DType::Q5_0,
            QuantType::Q8_0 => DType::Q8_0,
            QuantType::Q4_K_M => DType::Q4_K,
            QuantType::Q5_K_M => DType::Q5_K,
            QuantType::Q6_K => DType::Q6_K,
            QuantType::IQ4_XS => DType::IQ4_XS,
        }
    }

    /// The format of each tensor.
    pub(super) fn formats(self, tensors: &[Tensor], quant_context: QuantContext) -> Vec<DType> {
        let is_tied = !tensors.iter().any(|tensor| tensor.name == "output.weight");
        let values = tensors
            .iter()
            .filter(|tensor| Role::from_tensor(tensor, is_tied) == Role::AttentionValue)
            .count();
        let (mut value, mut down) = (0, 0);
        let format = |tensor: &Tensor| match Role::from_tensor(tensor, is_tied) {
            Role::Plain => DType::F32,
            role => {
                let wanted = match role {
                    Role::AttentionValue => {
                        self.of_attention_value(next_position(&mut value, values), quant_context)
                    }
                    Role::FfnDown => self.of_ffn_down(next_position(&mut down, quant_context.layers)),
                    Role::Head => self.of_head(tensor.dims[0]),
                    Role::AttentionKey if self.is_quantized() && quant_context.experts == 8 => DType::Q8_0,
                    Role::AttentionOutput if quant_context.experts == 8 => self.of_output_of_eight_experts(),
                    _ => self.main_format(),
                };
                fallback_for(wanted, tensor.dims[0])
            }
        };
        tensors.iter().map(format).collect()
    }

    fn is_quantized(self) -> bool {
        self.main_format().block_len() > 1
    }

    fn of_attention_value(self, position: LayerPosition, quant_context: QuantContext) -> DType {
        match self {
            _ if self.is_quantized() && quant_context.experts == 8 => DType::Q8_0,
            QuantType::Q4_K_M | QuantType::Q5_K_M if position.uses_more_bits() => DType::Q6_K,
            QuantType::IQ4_XS if quant_context.n_gqa >= 4 => DType::Q5_K,
            _ => self.main_format(),
        }
    }

    fn of_ffn_down(self, position: LayerPosition) -> DType {
        match self {
            QuantType::Q4_K_M | QuantType::Q5_K_M if position.uses_more_bits() => DType::Q6_K,
            QuantType::IQ4_XS if position.index < position.of / 8 => DType::Q5_K,
            _ => self.main_format(),
        }
    }

    fn of_output_of_eight_experts(self) -> DType {
        match self {
            QuantType::Q4_K_M | QuantType::IQ4_XS => DType::Q5_K,
            _ => self.main_format(),
        }
    }

    fn of_head(self, cols: usize) -> DType {
        let format = self.main_format();
        if !self.is_quantized() {
            format
        } else if format == DType::Q8_0 || !cols.is_multiple_of(format.block_len()) {
            DType::Q8_0
        } else {
            DType::Q6_K
        }
    }
}

impl std::str::FromStr for QuantType {
    type Err = UnknownQuantType;

    /// The type of this name, in any case.
    fn from_str(name: &str) -> Result<QuantType, UnknownQuantType> {
        let known = QuantType::ALL.into_iter().find(|quant| quant.name().eq_ignore_ascii_case(name));
        known.ok_or_else(|| UnknownQuantType(name.into()))
    }
}

/// What a tensor is for, as far as the choice of its format depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Never quantised: vectors, and small matrices to which results are sensitive.
    Plain,
    /// The LM head.
    Head,
    AttentionKey,
    /// V projection, alone or fused with Q and K.
    AttentionValue,
    AttentionOutput,
    FfnDown,
    Other,
}

impl Role {
    fn from_tensor(tensor: &Tensor, is_tied: bool) -> Role {
        let name = tensor.name.as_str();
        let is_one_of = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        if tensor.dims.len() < 2
            || tensor.fill != Fill::Random
            || !name.ends_with("weight")
            || is_one_of(&["_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d"])
        {
            Role::Plain
        } else if name == "output.weight" || (is_tied && name == "token_embd.weight") {
            Role::Head
        } else if is_one_of(&["attn_v.weight", "attn_qkv.weight"]) {
            Role::AttentionValue
        } else if is_one_of(&["attn_k.weight"]) {
            Role::AttentionKey
        } else if is_one_of(&["attn_output.weight"]) {
            Role::AttentionOutput
        } else if is_one_of(&["ffn_down"]) {
            Role::FfnDown
        } else {
            Role::Other
        }
    }
}

/// Index of this tensor among those of its role.
#[derive(Clone, Copy)]
struct LayerPosition {
    index: usize,
    of: usize,
}

/// The index of the next tensor.
fn next_position(next: &mut usize, of: usize) -> LayerPosition {
    *next += 1;
    LayerPosition { index: *next - 1, of }
}

impl LayerPosition {
    /// The first and the last eighth, and every third between.
    fn uses_more_bits(self) -> bool {
        let LayerPosition { index, of } = self;
        index < of / 8 || index >= 7 * of / 8 || (index - of / 8) % 3 == 2
    }
}

/// The format, or llama.cpp's fallback with smaller blocks if the row length is not a multiple of the block size.
fn fallback_for(wanted: DType, cols: usize) -> DType {
    let fits = |dtype: DType| cols.is_multiple_of(dtype.block_len());
    let smaller = match wanted {
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        DType::IQ4_XS => DType::IQ4_NL,
        other => other,
    };
    [wanted, smaller].into_iter().find(|&dtype| fits(dtype)).unwrap_or(DType::F16)
}
