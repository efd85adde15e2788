//! The types that K and V can be stored in.

use verbatim_quant::DType;

/// How K or V are stored. The types of fewer than sixteen bits are stored in quant blocks of 32 elements along a head; a
/// head's last block is padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// As computed.
    F32,
    /// Rounded to f16.
    F16,
    /// Rounded to bf16.
    Bf16,
    /// 8.5 bits an element: a scale and 8-bit quants.
    Q8_0,
    /// 6 bits: a scale, a min and 5-bit quants.
    Q5_1,
    /// 5.5 bits: a scale and 5-bit quants.
    Q5_0,
    /// 5 bits: a scale, a min and 4-bit quants.
    Q4_1,
    /// 4.5 bits: a scale and 4-bit quants.
    Q4_0,
    /// 4.5 bits: a scale and 4-bit indices into the non-linear levels of IQ4_NL.
    Iq4Nl,
}

impl KvType {
    /// Every type, the largest first.
    pub const ALL: [KvType; 9] = [
        KvType::F32,
        KvType::F16,
        KvType::Bf16,
        KvType::Q8_0,
        KvType::Q5_1,
        KvType::Q5_0,
        KvType::Q4_1,
        KvType::Q4_0,
        KvType::Iq4Nl,
    ];

    /// The name that GGUF tools use, such as `q8_0`.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
            KvType::Q8_0 => "q8_0",
            KvType::Q5_1 => "q5_1",
            KvType::Q5_0 => "q5_0",
            KvType::Q4_1 => "q4_1",
            KvType::Q4_0 => "q4_0",
            KvType::Iq4Nl => "iq4_nl",
        }
    }

    /// Whether elements share a scale, so that an outlier reduces the precision of its whole block and
    /// [`verbatim_graph::Op::Hadamard`] helps.
    pub fn is_quantized(self) -> bool {
        self.dtype().block_len() > 1
    }

    /// Its block format.
    pub fn dtype(self) -> DType {
        match self {
            KvType::F32 => DType::F32,
            KvType::F16 => DType::F16,
            KvType::Bf16 => DType::BF16,
            KvType::Q8_0 => DType::Q8_0,
            KvType::Q5_1 => DType::Q5_1,
            KvType::Q5_0 => DType::Q5_0,
            KvType::Q4_1 => DType::Q4_1,
            KvType::Q4_0 => DType::Q4_0,
            KvType::Iq4Nl => DType::IQ4_NL,
        }
    }

    /// Bytes of a head of `head_dim` elements; `None` if the sizes overflow.
    pub fn head_bytes(self, head_dim: usize) -> Option<usize> {
        head_dim.div_ceil(self.dtype().block_len()).checked_mul(self.dtype().block_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_block_formats() {
        for kind in KvType::ALL {
            assert_eq!(DType::from_name(kind.name()), Some(kind.dtype()));
            assert_eq!(kind.is_quantized(), kind.dtype().block_bytes() * 8 < 16 * kind.dtype().block_len());
        }
    }
}
