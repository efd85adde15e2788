//! The `verbatim` program. Everything is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    verbatim_cli::main()
}
