use std::fmt;

/// Defines the types, each by its name, GGUF id, elements of a block and bytes of a block.
macro_rules! dtypes {
    ($($name:ident = $id:literal: $elements:literal in $bytes:literal;)*) => {
        /// How the elements of a tensor are stored: the unquantised types and every block format of GGUF.
        ///
        /// The discriminants are the on-disk type ids of the GGUF format.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        #[allow(missing_docs)]
        pub enum DType {
            $($name = $id,)*
        }

        /// Every type, in order of id.
        pub const ALL: [DType; [$($id),*].len()] = [$(DType::$name),*];

        impl DType {
            /// The name that GGUF tools use, such as `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(DType::$name => stringify!($name),)*
                }
            }

            /// Elements in one block (1 for the unquantised types).
            pub const fn block_len(self) -> usize {
                match self {
                    $(DType::$name => $elements,)*
                }
            }

            /// Bytes of one block.
            pub const fn block_bytes(self) -> usize {
                match self {
                    $(DType::$name => $bytes,)*
                }
            }
        }
    };
}

dtypes! {
    F32 = 0: 1 in 4;
    F16 = 1: 1 in 2;
    Q4_0 = 2: 32 in 18;
    Q4_1 = 3: 32 in 20;
    Q5_0 = 6: 32 in 22;
    Q5_1 = 7: 32 in 24;
    Q8_0 = 8: 32 in 34;
    Q8_1 = 9: 32 in 36;
    Q2_K = 10: 256 in 84;
    Q3_K = 11: 256 in 110;
    Q4_K = 12: 256 in 144;
    Q5_K = 13: 256 in 176;
    Q6_K = 14: 256 in 210;
    Q8_K = 15: 256 in 292;
    IQ2_XXS = 16: 256 in 66;
    IQ2_XS = 17: 256 in 74;
    IQ3_XXS = 18: 256 in 98;
    IQ1_S = 19: 256 in 50;
    IQ4_NL = 20: 32 in 18;
    IQ3_S = 21: 256 in 110;
    IQ2_S = 22: 256 in 82;
    IQ4_XS = 23: 256 in 136;
    I8 = 24: 1 in 1;
    I16 = 25: 1 in 2;
    I32 = 26: 1 in 4;
    I64 = 27: 1 in 8;
    F64 = 28: 1 in 8;
    IQ1_M = 29: 256 in 56;
    BF16 = 30: 1 in 2;
    TQ1_0 = 34: 256 in 54;
    TQ2_0 = 35: 256 in 66;
    MXFP4 = 39: 32 in 17;
    NVFP4 = 40: 64 in 36;
    Q1_0 = 41: 128 in 18;
    Q2_0 = 42: 64 in 18;
}

impl DType {
    /// The type with this GGUF id, if there is one.
    pub fn from_id(id: u32) -> Option<DType> {
        ALL.into_iter().find(|t| t.id() == id)
    }

    /// The GGUF id.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The type with this name, in any case.
    pub fn from_name(name: &str) -> Option<DType> {
        ALL.into_iter().find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of a row of `cols` elements; `None` if `cols` is not a multiple of the block size or the size overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if cols.is_multiple_of(self.block_len()) {
            (cols / self.block_len()).checked_mul(self.block_bytes())
        } else {
            None
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, id, elements and bytes of a block. Source: `gguf/constants.py` of the `gguf` package 0.19; for Q2_0, and for
    /// Q8_1 (two halves and 32 bytes), ggml itself.
    const TABLE: [(&str, u32, usize, usize); 35] = [
        ("F32", 0, 1, 4),
        ("F16", 1, 1, 2),
        ("Q4_0", 2, 32, 18),
        ("Q4_1", 3, 32, 20),
        ("Q5_0", 6, 32, 22),
        ("Q5_1", 7, 32, 24),
        ("Q8_0", 8, 32, 34),
        ("Q8_1", 9, 32, 36),
        ("Q2_K", 10, 256, 84),
        ("Q3_K", 11, 256, 110),
        ("Q4_K", 12, 256, 144),
        ("Q5_K", 13, 256, 176),
        ("Q6_K", 14, 256, 210),
        ("Q8_K", 15, 256, 292),
        ("IQ2_XXS", 16, 256, 66),
        ("IQ2_XS", 17, 256, 74),
        ("IQ3_XXS", 18, 256, 98),
        ("IQ1_S", 19, 256, 50),
        ("IQ4_NL", 20, 32, 18),
        ("IQ3_S", 21, 256, 110),
        ("IQ2_S", 22, 256, 82),
        ("IQ4_XS", 23, 256, 136),
        ("I8", 24, 1, 1),
        ("I16", 25, 1, 2),
        ("I32", 26, 1, 4),
        ("I64", 27, 1, 8),
        ("F64", 28, 1, 8),
        ("IQ1_M", 29, 256, 56),
        ("BF16", 30, 1, 2),
        ("TQ1_0", 34, 256, 54),
        ("TQ2_0", 35, 256, 66),
        ("MXFP4", 39, 32, 17),
        ("NVFP4", 40, 64, 36),
        ("Q1_0", 41, 128, 18),
        ("Q2_0", 42, 64, 18),
    ];

    #[test]
    fn dtypes_match_the_table_of_the_file_format() {
        assert_eq!(ALL.len(), TABLE.len());
        for (dtype, (name, id, len, bytes)) in ALL.into_iter().zip(TABLE) {
            assert_eq!((dtype.name(), dtype.id()), (name, id));
            assert_eq!((dtype.block_len(), dtype.block_bytes()), (len, bytes), "{name}");
            assert_eq!(DType::from_id(id), Some(dtype));
            assert_eq!(DType::from_name(&name.to_lowercase()), Some(dtype));
            assert_eq!(dtype.to_string(), name);
        }
    }

    #[test]
    fn unknown_types_are_none() {
        for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
            assert_eq!(DType::from_id(id), None);
        }
        assert_eq!(DType::from_name("Q4_2"), None);
        assert_eq!(DType::from_name(""), None);
    }

    #[test]
    fn row_bytes_needs_whole_blocks_and_rejects_overflow() {
        assert_eq!(DType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(DType::Q4_K.row_bytes(0), Some(0));
        assert_eq!(DType::Q4_K.row_bytes(500), None);
        assert_eq!(DType::F64.row_bytes(usize::MAX), None);
    }
}
