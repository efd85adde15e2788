//! The list of formats that weights are packed in.
#![allow(non_camel_case_types)] // The names of the formats.

use verbatim_quant::DType;

/// Calls a macro with its arguments and the names of all formats. A format's name is that of its [`DType`] and of the type that
/// packs it: a [`BlockFormat`](crate::formats::BlockFormat) or a [`FloatWeights`](crate::kernel::FloatWeights).
macro_rules! with_formats {
    ($use:ident $arguments:tt) => {
        $crate::packed_format::$use! {
            $arguments
            block: [Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K
                IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS
                MXFP4 NVFP4 TQ1_0 TQ2_0 Q1_0 Q2_0]
            float: [F32 F16 BF16]
        }
    };
}

macro_rules! define_format {
    (() block: [$($block:ident)*] float: [$($float:ident)*]) => {
        /// The packed format of a matrix.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum PackedFormat {
            $($block,)*
            $($float,)*
        }

        impl PackedFormat {
            /// The packed format of a file format; `None` if it is not a weight format.
            pub(crate) fn from_dtype(dtype: DType) -> Option<PackedFormat> {
                Some(match dtype {
                    $(DType::$block => PackedFormat::$block,)*
                    $(DType::$float => PackedFormat::$float,)*
                    DType::Q8_1 | DType::Q8_K | DType::F64 => return None,
                    DType::I8 | DType::I16 | DType::I32 | DType::I64 => return None,
                })
            }
        }
    };
}

macro_rules! match_format {
    (($format:expr, $F:ident => $of_block:expr, $W:ident => $of_float:expr)
        block: [$($block:ident)*] float: [$($float:ident)*]) => {
        match $format {
            $($crate::packed_format::PackedFormat::$block => {
                type $F = $crate::formats::$block;
                $of_block
            })*
            $($crate::packed_format::PackedFormat::$float => {
                type $W = $crate::kernel::$float;
                $of_float
            })*
        }
    };
}

/// Evaluates one expression with the type of the block format, or another with the type of the float weights.
macro_rules! for_format {
    ($format:expr, $F:ident => $of_block:expr, $W:ident => $of_float:expr) => {
        $crate::packed_format::with_formats!(match_format($format, $F => $of_block, $W => $of_float))
    };
}

pub(crate) use {define_format, for_format, match_format, with_formats};

with_formats!(define_format());
