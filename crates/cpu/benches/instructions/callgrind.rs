//! Runs this program under callgrind and reads the counts.
//!
//! Callgrind is configured to count only within [`measured`] and to write the count out at every return from it, so one run writes
//! one numbered file per kernel, in the order in which the child prints the kernels' names.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs, io};

use verbatim_simd::ISA_VARIABLE;

/// Makes this program run the kernels instead of starting a child.
pub(crate) const CHILD_ARGUMENT: &str = "--kernels";

/// The function whose calls are counted, for each of the two options that name it: callgrind keeps one option per pattern.
const COUNT_WITHIN: &str = "--toggle-collect=instructions::callgrind::measured";
const WRITE_AFTER: &str = "--dump-after=*callgrind::measured";

/// Calls a kernel. What happens within is counted; what the call itself takes is a few instructions.
#[inline(never)]
pub(crate) fn measured(kernel: &mut dyn FnMut()) {
    kernel();
    // Prevents a tail call, from which callgrind would see no return.
    std::hint::black_box(());
}

/// Names of all kernels and the instructions of one call, on one instruction set.
pub(crate) fn count(isa: &str) -> io::Result<Vec<(String, u64)>> {
    let folder = tempfile::tempdir()?;
    let files = folder.path().join("counts");
    let output = Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind", COUNT_WITHIN, WRITE_AFTER])
        .arg(format!("--callgrind-out-file={}", files.display()))
        .arg(env::current_exe()?)
        .arg(CHILD_ARGUMENT)
        .env(ISA_VARIABLE, isa)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| io::Error::other(format!("valgrind cannot be started: {error}; install it")))?;
    if !output.status.success() {
        return Err(io::Error::other(format!("valgrind has failed: {}", output.status)));
    }
    let names = String::from_utf8(output.stdout).map_err(io::Error::other)?;
    let names = names.lines().enumerate();
    names
        .map(|(index, name)| Ok((name.to_owned(), total(&files.with_extension((index + 1).to_string()))?)))
        .collect()
}

/// The sum that a file of callgrind ends with.
fn total(file: &Path) -> io::Result<u64> {
    let error = || io::Error::other(format!("no count in {}", file.display()));
    let text = fs::read_to_string(file)?;
    let total = text.lines().rev().find_map(|line| line.strip_prefix("totals:")).ok_or_else(error)?;
    total.trim().parse().map_err(|_| error())
}
