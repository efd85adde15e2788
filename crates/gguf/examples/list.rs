//! Lists the metadata and the tensors of GGUF files: `cargo run -p verbatim-gguf --example list -- model.gguf`.

use std::ffi::OsStr;
use std::process::ExitCode;

use verbatim_gguf::{GgufError, GgufFile};

fn main() -> ExitCode {
    for path in std::env::args_os().skip(1) {
        if let Err(error) = list(&path) {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn list(path: &OsStr) -> Result<(), GgufError> {
    let file = GgufFile::open(path)?;
    println!("{file:?}");
    for (key, value) in file.metadata().iter() {
        println!("{key:?} {} {value}", value.value_type());
    }
    for tensor in file.tensors() {
        println!("{:?} {} {:?} {} bytes", tensor.name(), tensor.dtype(), tensor.dims(), tensor.byte_len());
    }
    Ok(())
}
