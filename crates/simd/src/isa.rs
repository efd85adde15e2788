//! Which instruction set the kernels use: detected at run time, or forced by `VERBATIM_ISA`.
//!
//! The choice affects only speed. Every kernel produces the same bits on every instruction set, because each lane runs the
//! scalar order of operations on its own output.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::env::VarError;

use thiserror::Error;

/// The environment variable that forces an instruction set.
pub const ISA_VARIABLE: &str = "VERBATIM_ISA";

/// An instruction set that this CPU supports.
///
/// A value is obtained only from a run-time check, so it is a capability token: it permits calling kernels of this instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(Level);

/// The instruction sets that kernels are written for, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Level {
    /// Plain Rust: the reference, and the only one outside x86-64 and aarch64.
    Scalar,
    /// AVX2 with FMA and F16C: every x86-64 desktop and server since about 2015.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2 with the int8 dot products of AVX-VNNI: Alder Lake, Arrow Lake, Zen 5 and later.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// AVX-512 F, BW, VL, DQ and VNNI: Ice Lake, Zen 4 and later. Older AVX-512 machines use `Avx2`.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Baseline AArch64: Cortex-A72 (Raspberry Pi 4) and the like.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// NEON with the int8 dot product SDOT (FEAT_DotProd): Cortex-A76, Neoverse N1, Apple A11 and M1, and later.
    #[cfg(target_arch = "aarch64")]
    DotProd,
    /// The same with the mixed-sign dot product USDOT (FEAT_I8MM): Cortex-A510, Neoverse V1, Apple A15 and M2, and later.
    #[cfg(target_arch = "aarch64")]
    I8mm,
}

/// The values of `VERBATIM_ISA`, including those that this build does not support.
const NAMES: [&str; 7] = ["scalar", "avx2", "avxvnni", "avx512", "neon", "dotprod", "i8mm"];

/// Why an instruction set cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IsaError {
    /// Unknown name.
    #[error(
        "{ISA_VARIABLE}={0:?} is not an instruction set; use scalar, avx2, avxvnni, avx512, \
         neon, dotprod or i8mm, or leave it unset"
    )]
    Unknown(String),
    /// The name is known, but this CPU or the architecture of this build does not support it.
    #[error(
        "{ISA_VARIABLE}={0} is not supported by this CPU, which supports: {1}; leave it unset to use the best"
    )]
    Unsupported(String, String),
}

impl Isa {
    /// The instruction set to use: the value of `VERBATIM_ISA`, or the best that the CPU supports.
    ///
    /// # Errors
    /// If the value is unknown or this CPU does not support it.
    pub fn from_environment() -> Result<Isa, IsaError> {
        match std::env::var(ISA_VARIABLE) {
            Ok(name) if !name.is_empty() => Isa::named(&name),
            Ok(_) | Err(VarError::NotPresent) => Ok(Isa::best()),
            Err(VarError::NotUnicode(name)) => Err(IsaError::Unknown(name.to_string_lossy().into_owned())),
        }
    }

    /// The instruction set called `scalar`, `avx2`, `avxvnni`, `avx512`, `neon`, `dotprod` or `i8mm`.
    ///
    /// # Errors
    /// If the name is unknown or this CPU does not support it.
    pub fn named(name: &str) -> Result<Isa, IsaError> {
        if !NAMES.contains(&name) {
            return Err(IsaError::Unknown(name.to_owned()));
        }
        Isa::supported().find(|isa| isa.name() == name).ok_or_else(|| {
            let names: Vec<_> = Isa::supported().map(Isa::name).collect();
            IsaError::Unsupported(name.to_owned(), names.join(", "))
        })
    }

    /// The fastest instruction set that this CPU supports.
    pub fn best() -> Isa {
        Isa::supported().last().unwrap_or_else(Isa::scalar)
    }

    /// The reference, which every CPU supports.
    pub fn scalar() -> Isa {
        Isa(Level::Scalar)
    }

    /// Every instruction set that this CPU supports, slowest first.
    pub fn supported() -> impl Iterator<Item = Isa> {
        LEVELS.into_iter().filter(|level| level.is_supported()).map(Isa)
    }

    /// Its name, as in `VERBATIM_ISA`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Level::DotProd => "dotprod",
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => "i8mm",
        }
    }

    pub(crate) fn level(self) -> Level {
        self.0
    }
}

#[cfg(target_arch = "x86_64")]
const LEVELS: [Level; 4] = [Level::Scalar, Level::Avx2, Level::AvxVnni, Level::Avx512];
#[cfg(target_arch = "aarch64")]
const LEVELS: [Level; 4] = [Level::Scalar, Level::Neon, Level::DotProd, Level::I8mm];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LEVELS: [Level; 1] = [Level::Scalar];

impl Level {
    fn is_supported(self) -> bool {
        match self {
            Level::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => Level::Avx2.is_supported() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                Level::Avx2.is_supported()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Level::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Level::DotProd => is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => Level::DotProd.is_supported() && is_aarch64_feature_detected!("i8mm"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_supported_instruction_set_is_found_by_name() {
        for isa in Isa::supported() {
            assert_eq!(Isa::named(isa.name()), Ok(isa));
        }
        assert_eq!(Isa::supported().next(), Some(Isa::scalar()));
    }

    #[test]
    fn unusable_names_are_rejected_with_a_clear_message() {
        assert_eq!(Isa::named("sse9"), Err(IsaError::Unknown("sse9".into())));
        let message = Isa::named("AVX2").unwrap_err().to_string();
        assert!(message.contains(&NAMES[..6].join(", ")) && message.contains(" or i8mm"), "{message}");
        for name in NAMES {
            if !Isa::supported().any(|isa| isa.name() == name) {
                let message = Isa::named(name).unwrap_err().to_string();
                assert!(message.contains("which supports: scalar"), "{message}");
            }
        }
    }
}
