//! Lists the metadata and the tensors of a GGUF file: `cargo run -p verbatim-gguf --example list -- model.gguf`.

use verbatim_gguf::{GgufError, GgufFile};

fn main() -> Result<(), GgufError> {
    for path in std::env::args_os().skip(1) {
        let file = GgufFile::open(path)?;
        println!("{file:?}");
        for (key, value) in file.metadata().iter() {
            println!("{key:?} {} {value}", value.value_type());
        }
        for tensor in file.tensors() {
            println!(
                "{:?} {} {:?} {} bytes",
                tensor.name(),
                tensor.dtype(),
                tensor.dims(),
                tensor.byte_len()
            );
        }
    }
    Ok(())
}
