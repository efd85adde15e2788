//! Copies a GGUF model through this crate, joining the parts of a split one into a single file:
//! `cargo run -p verbatim-gguf --example copy -- model-00001-of-00003.gguf joined.gguf`.

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::process::ExitCode;

use verbatim_gguf::{GgufFile, GgufWriter};

fn main() -> ExitCode {
    match copy() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn copy() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(from), Some(to)) = (arguments.next(), arguments.next()) else {
        return Err("give a model and the file to write".into());
    };
    let model = GgufFile::open(from)?;
    let mut writer = GgufWriter::new();
    for (key, value) in model.metadata().iter().filter(|(key, _)| !key.starts_with("split.")) {
        writer.put(key, value)?;
    }
    for info in model.tensors() {
        writer.declare(info.name(), info.dtype(), info.dims())?;
    }
    let mut data = writer.begin(BufWriter::new(File::create_new(to)?))?;
    for tensor in model.iter_tensors() {
        data.append(tensor.name(), &tensor.data()?)?;
    }
    data.finish()?;
    Ok(())
}
