//! The backends there are, and the choice of one at run time.
//!
//! A [`Device`] is whichever backend was chosen, and a [`Backend`](verbatim_backend::Backend) itself, so that nothing
//! above has to be generic over the choice or to know what there is to choose from. Code that knows its backend, such as
//! a test, uses that directly.
//!
//! Invariant: the only crate above the backends that names them; it computes nothing.

mod dispatch;

pub use dispatch::{Device, DeviceArena, DeviceOutputs, DeviceProgram, DeviceState, DeviceWeights};

use std::fmt;
use std::str::FromStr;
use verbatim_cpu::{Cpu, CpuError};
use verbatim_reference::Reference;

/// The backends by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor, with its vector instructions and all its cores.
    #[default]
    Cpu,
    /// The definition of every op in plain scalar code, on one thread: slow, to compare others with.
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

/// A name that no backend has.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("there is no backend {0}; there are {known}", known = DeviceKind::ALL.map(DeviceKind::name).join(" and "))]
pub struct UnknownDevice(String);

impl FromStr for DeviceKind {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<DeviceKind, UnknownDevice> {
        let found = DeviceKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| UnknownDevice(name.into()))
    }
}

/// Why a backend cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The CPU cannot.
    #[error(transparent)]
    Cpu(#[from] CpuError),
}

impl Device {
    /// Opens a backend. `threads` is how many compute, where the backend has threads.
    ///
    /// # Errors
    /// If it cannot be used on this machine.
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
        let known = DeviceKind::ALL.map(DeviceKind::name).join(" and ");
        assert_eq!(unknown.to_string(), format!("there is no backend abacus; there are {known}"));
    }
}
