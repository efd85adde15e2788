//! Fuzzing: opening any bytes returns a file or an error, and a file that was opened is the same after being written and read
//! again.
//!
//! Plain `cargo test` runs the stored corpus (`__fuzz__/container/corpus`) and a burst of random inputs;
//! `cargo bolero test -p verbatim-gguf container` searches on from the corpus.

mod common;

use common::rewrite;
use verbatim_gguf::{GgufFile, Value};

#[test]
fn container() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let Ok(file) = GgufFile::from_bytes(bytes.to_vec()) else { return };
        let rewritten = rewrite(&file).expect("what was accepted can be written");
        let again = GgufFile::from_bytes(rewritten.clone()).expect("what was written is accepted");
        assert_same(&file, &again);
        assert!(rewrite(&again).expect("and written again") == rewritten);
    });
}

fn assert_same(file: &GgufFile, again: &GgufFile) {
    assert_eq!(file.metadata().len(), again.metadata().len());
    for ((key, value), (key_again, value_again)) in file.metadata().iter().zip(again.metadata().iter()) {
        assert_eq!(key, key_again);
        assert_eq!(walk(value), walk(value_again));
        assert_eq!(file.metadata().get(key).map(walk), again.metadata().get(key).map(walk));
        // Whether a getter takes a value or not, it must not panic.
        let _ =
            (file.metadata().get_u32(key), file.metadata().get_str(key), file.metadata().get_str_array(key));
        let _ = (file.metadata().get_i32_array(key), file.metadata().get_f32_array(key));
    }
    assert_eq!(file.tensors().len(), again.tensors().len());
    for (tensor, tensor_again) in file.iter_tensors().zip(again.iter_tensors()) {
        assert_eq!(
            (tensor.name(), tensor.dtype(), tensor.dims()),
            (tensor_again.name(), tensor_again.dtype(), tensor_again.dims())
        );
        assert_eq!(tensor.data().unwrap(), tensor_again.data().unwrap());
        assert_eq!(tensor.rows() * tensor.row_bytes(), tensor.byte_len());
    }
}

/// A value and everything inside it, as text.
fn walk(value: Value<'_>) -> String {
    match value.as_array() {
        Some(array) => {
            let elements: Vec<String> = array.iter().map(walk).collect();
            assert_eq!(elements.len(), array.len());
            format!("{value} {}", elements.join(","))
        }
        None => value.to_string(),
    }
}
