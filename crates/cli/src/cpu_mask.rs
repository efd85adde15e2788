//! The CPU affinity mask.

use std::str::FromStr;

use anyhow::ensure;

/// Maximum CPUs in the system's CPU set.
const CPUS_MAX: usize = 1024;

/// A set of logical CPUs, written in hexadecimal: bit i is CPU i.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuMask(Vec<usize>);

impl FromStr for CpuMask {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuMask, String> {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
        let form = || "a mask must be in hexadecimal, such as 0xf0 for CPUs 4 to 7".to_owned();
        let values = digits.chars().rev().map(|digit| digit.to_digit(16).ok_or_else(form));
        let values = values.collect::<Result<Vec<u32>, String>>()?;
        if values.is_empty() {
            return Err(form());
        }
        let cpus = values.iter().enumerate().flat_map(|(index, value)| {
            (0..4).filter(move |bit| value >> bit & 1 == 1).map(move |bit| 4 * index + bit)
        });
        let cpus: Vec<usize> = cpus.collect();
        match cpus.last() {
            None => Err("a mask of 0 leaves no CPU".to_owned()),
            Some(&last) if last >= CPUS_MAX => {
                Err(format!("CPU {last} is beyond the maximum of {CPUS_MAX} CPUs"))
            }
            Some(_) => Ok(CpuMask(cpus)),
        }
    }
}

impl CpuMask {
    /// Number of CPUs.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Sets the affinity of this thread, which threads created later inherit.
    ///
    /// # Errors
    /// If the process may not use one of them, or the system cannot pin threads.
    pub fn apply(&self) -> anyhow::Result<()> {
        let allowed = system::allowed()?;
        let rejected = self.0.iter().find(|cpu| !allowed.contains(cpu));
        ensure!(
            rejected.is_none(),
            "--cpu-mask includes CPU {}, but this process may only use: {}",
            rejected.copied().unwrap_or_default(),
            allowed.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
        );
        system::pin(&self.0)
    }
}

#[cfg(target_os = "linux")]
mod system {
    use anyhow::Context;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    pub(super) fn allowed() -> anyhow::Result<Vec<usize>> {
        let set = sched_getaffinity(None).context("cannot read the CPU affinity")?;
        Ok((0..CpuSet::MAX_CPU.min(super::CPUS_MAX)).filter(|&cpu| set.is_set(cpu)).collect())
    }

    pub(super) fn pin(cpus: &[usize]) -> anyhow::Result<()> {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu));
        sched_setaffinity(None, &set).context("the system rejects --cpu-mask")
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use anyhow::bail;

    pub(super) fn allowed() -> anyhow::Result<Vec<usize>> {
        bail!("--cpu-mask is only supported on Linux")
    }

    pub(super) fn pin(_: &[usize]) -> anyhow::Result<()> {
        allowed().map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_i_is_cpu_i() {
        let cpus = |text: &str| text.parse::<CpuMask>().unwrap().0;
        assert_eq!(cpus("1"), [0]);
        assert_eq!(cpus("0xF0"), [4, 5, 6, 7]);
        assert_eq!(cpus("0X8000000000000000002"), [1, 75]);
        assert_eq!("a5".parse::<CpuMask>().unwrap().count(), 4);
    }

    #[test]
    fn invalid_masks_are_rejected() {
        let message = |text: &str| text.parse::<CpuMask>().unwrap_err();
        for text in ["", "0x", "xyz", "-1", "1 2", "0x0x1"] {
            assert!(message(text).contains("in hexadecimal"), "{text}");
        }
        assert!(message("0x000").contains("leaves no CPU"));
        assert!(message(&format!("1{}", "0".repeat(256))).contains("CPU 1024 is beyond the maximum of 1024"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_started_later_stay_on_the_mask() {
        // In a separate thread: the other tests keep their CPUs.
        std::thread::spawn(|| {
            let first = system::allowed().unwrap()[0];
            CpuMask(vec![first]).apply().unwrap();
            let inherited = std::thread::spawn(|| system::allowed().unwrap()).join().unwrap();
            assert_eq!(inherited, [first]);
            assert_eq!(std::thread::available_parallelism().unwrap().get(), 1);
            let rejected = CpuMask(vec![first, 1000]).apply().unwrap_err().to_string();
            assert_eq!(
                rejected,
                format!("--cpu-mask includes CPU 1000, but this process may only use: {first}")
            );
        })
        .join()
        .unwrap();
    }
}
