//! Selects a backend at run time.
//!
//! A [`Device`] wraps the selected backend and implements [`Backend`](verbatim_backend::Backend) itself, so that the crates
//! above need not be generic over the backend or know which backends exist. Code for one backend, such as a test, uses that
//! backend directly.
//!
//! Invariant: the only crate that depends on concrete backends (tests aside); it computes nothing.

mod dispatch;

pub use dispatch::{Device, DeviceArena, DeviceOutputs, DeviceProgram, DeviceState, DeviceWeights};

use std::fmt;
use std::str::FromStr;
use verbatim_cpu::{Cpu, CpuError};
use verbatim_reference::Reference;

/// The available backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// The CPU, with SIMD and multiple threads.
    #[default]
    Cpu,
    /// The definition of every op in scalar code, on one thread: slow, for comparison.
    Reference,
}

impl DeviceKind {
    /// Every backend.
    pub const ALL: [DeviceKind; 2] = [DeviceKind::Cpu, DeviceKind::Reference];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Reference => "reference",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An unknown backend name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown backend {0}; available: {known}", known = DeviceKind::ALL.map(DeviceKind::name).join(", "))]
pub struct UnknownDevice(String);

impl FromStr for DeviceKind {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<DeviceKind, UnknownDevice> {
        let found = DeviceKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| UnknownDevice(name.into()))
    }
}

/// Why a backend could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// From the CPU backend.
    #[error(transparent)]
    Cpu(#[from] CpuError),
}

impl Device {
    /// Opens a backend. `threads` is the number of compute threads, for backends that have threads.
    ///
    /// # Errors
    /// If this machine does not support it.
    pub fn open(kind: DeviceKind, threads: usize) -> Result<Device, DeviceError> {
        match kind {
            DeviceKind::Cpu => Ok(Device::Cpu(Cpu::new(threads)?)),
            DeviceKind::Reference => Ok(Device::Reference(Reference)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_found_by_name() {
        for kind in DeviceKind::ALL {
            assert_eq!(kind.name().to_uppercase().parse(), Ok(kind));
        }
        let unknown = "abacus".parse::<DeviceKind>().expect_err("there is none");
        assert_eq!(unknown.to_string(), "unknown backend abacus; available: cpu, reference");
    }
}
