//! Reading and writing: what is written is read back, byte for byte; what breaks the format's rules is rejected.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{hostile_path, rewrite};
use proptest::prelude::*;
use verbatim_gguf::{GgufError, GgufFile, GgufWriter, MAX_NAME_BYTES, Value, ValueType, split_file_name};
use verbatim_quant::{ALL, DType};

/// A file with the given pieces put behind a header of version 3.
fn file_of(tensor_count: u64, entry_count: u64, pieces: &[&[u8]]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(tensor_count.to_le_bytes());
    bytes.extend(entry_count.to_le_bytes());
    pieces.iter().for_each(|piece| bytes.extend(*piece));
    bytes
}

fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

fn entry(key: impl AsRef<[u8]>, value_type: u32, value: &[u8]) -> Vec<u8> {
    [&string(key), &value_type.to_le_bytes()[..], value].concat()
}

/// An entry of the tensor table, of F32.
fn record(name: impl AsRef<[u8]>, dims: &[u64], offset: u64) -> Vec<u8> {
    let dims_bytes: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
    let count = (dims.len() as u32).to_le_bytes();
    [&string(name), &count[..], &dims_bytes, &0u32.to_le_bytes(), &offset.to_le_bytes()].concat()
}

fn error_of(bytes: Vec<u8>) -> String {
    GgufFile::from_bytes(bytes).unwrap_err().to_string()
}

#[test]
fn valid_files_are_rewritten_byte_for_byte() {
    for name in ["valid-baseline", "valid-alignment-64", "valid-unknown-keys", "valid-version-2"] {
        let path = hostile_path(&format!("{name}.gguf"));
        let mut original = fs::read(&path).unwrap();
        let file = GgufFile::open(&path).unwrap();
        assert_eq!(file.version(), u32::from(original[4]));
        assert_eq!(file.bytes_total(), original.len());
        original[4] = 3;
        assert!(rewrite(&file).unwrap() == original, "{name} changed");
    }
}

#[test]
fn the_baseline_file_is_read_as_it_was_written() {
    let file = GgufFile::open(hostile_path("valid-baseline.gguf")).unwrap();
    let metadata = file.metadata();
    assert_eq!((metadata.len(), file.tensors().len(), file.alignment(), file.split_count()), (19, 12, 32, 1));
    assert_eq!(metadata.iter().next().unwrap(), ("general.architecture", Value::Str(b"llama")));
    assert_eq!(metadata.require_u32("llama.embedding_length").unwrap(), 32);
    assert_eq!(metadata.require_usize("llama.attention.head_count").unwrap(), 4);
    assert_eq!(metadata.require_str_array("tokenizer.ggml.tokens").unwrap().iter().count(), 24);
    assert_eq!(metadata.require_i32_array("tokenizer.ggml.token_type").unwrap().len(), 24);
    let tensor = file.require_tensor("blk.0.ffn_up.weight").unwrap();
    assert_eq!(
        (tensor.dims(), tensor.cols(), tensor.rows(), tensor.element_count()),
        (&[32, 48][..], 32, 48, 1536)
    );
    assert_eq!((tensor.dtype(), tensor.row_bytes(), tensor.byte_len()), (DType::F32, 128, 6144));
    assert_eq!(tensor.offset(), 26880);
    let content = fs::read(hostile_path("valid-baseline.gguf")).unwrap();
    tensor.prefetch(0..tensor.byte_len());
    assert_eq!(&tensor.data().unwrap()[..], &content[26880..26880 + 6144]);
    let mut piece = [0; 9];
    tensor.read(100, &mut piece).unwrap();
    assert_eq!(piece, content[26980..26989]);
    let error = file.require_tensor("output\n.weight").unwrap_err().to_string();
    assert_eq!(error, "tensor `output\\n.weight` is missing");
}

#[test]
fn getters_convert_values_that_fit_and_report_others() {
    let mut writer = GgufWriter::new();
    writer.put("u8", 7u8).unwrap();
    writer.put("i64", -5i64).unwrap();
    writer.put("u64", u64::MAX).unwrap();
    writer.put("f64", 0.5f64).unwrap();
    writer.put("bool", true).unwrap();
    writer.put("text", "naïve").unwrap();
    writer.put("latin1", Value::Str(b"na\xefve")).unwrap();
    writer.put_array("mixed", &[1i64, -1, 3]).unwrap();
    writer.put_array("floats", &[1.5f32, f32::NAN]).unwrap();
    writer.put_array("bools", &[true, false]).unwrap();
    writer.put_array::<u16>("none", &[]).unwrap();
    writer.put_array("words", &["a", "", "ü"]).unwrap();
    writer.put_array("raw", &[&b"ok"[..], b"\xff"]).unwrap();
    let file = GgufFile::from_bytes(writer.begin(Vec::new()).unwrap().finish().unwrap()).unwrap();
    let metadata = file.metadata();

    assert_eq!(metadata.get_u32("u8").unwrap(), Some(7));
    assert_eq!(metadata.get_u32("absent").unwrap(), None);
    assert_eq!(metadata.require_i32("i64").unwrap(), -5);
    assert_eq!(metadata.require_u64("u64").unwrap(), u64::MAX);
    assert_eq!(metadata.require_f32("f64").unwrap(), 0.5);
    assert!(metadata.require_bool("bool").unwrap());
    assert_eq!(metadata.require_str("text").unwrap(), "naïve");
    assert_eq!(metadata.require_bytes("latin1").unwrap(), b"na\xefve");
    assert_eq!(metadata.require_i32_array("mixed").unwrap(), [1, -1, 3]);
    assert!(metadata.require_f32_array("floats").unwrap()[1].is_nan());
    assert_eq!(metadata.require_bool_array("bools").unwrap(), [true, false]);
    assert_eq!(metadata.require_u32_array("none").unwrap(), []);
    assert_eq!(metadata.require_array("none").unwrap().element_type(), ValueType::U16);
    assert_eq!(metadata.require_str_array("words").unwrap().iter().collect::<Vec<_>>(), ["a", "", "ü"]);
    assert_eq!(metadata.require_bytes_array("raw").unwrap().iter().last(), Some(&b"\xff"[..]));

    let errors = [
        (metadata.require_u32("absent").err(), "metadata key `absent` is missing"),
        (
            metadata.get_u32("i64").err(),
            "metadata key `i64`: wanted an integer from 0 to 4294967295, found i64 -5",
        ),
        (metadata.get_f32("u8").err(), "metadata key `u8`: wanted a floating-point number, found u8 7"),
        (metadata.get_bool("u8").err(), "metadata key `u8`: wanted a bool, found u8 7"),
        (metadata.get_str("bool").err(), "metadata key `bool`: wanted a UTF-8 string, found bool true"),
        (
            metadata.get_str("latin1").err(),
            "metadata key `latin1`: wanted a UTF-8 string, found string \"na\\xefve\", which is not UTF-8",
        ),
        (
            metadata.get_u32_array("mixed").err(),
            "metadata key `mixed`: wanted an array of integers from 0 to 4294967295, found an array of 3 i64, \
             whose element 1 is i64 -1",
        ),
        (
            metadata.get_str_array("raw").err(),
            "metadata key `raw`: wanted an array of UTF-8 strings, found an array of 2 string, whose element 1 is \
             not UTF-8",
        ),
        (
            metadata.get_str_array("mixed").err(),
            "metadata key `mixed`: wanted an array of UTF-8 strings, found an array of 3 i64",
        ),
    ];
    for (error, expected) in errors {
        assert_eq!(error.unwrap().to_string(), expected);
    }
}

#[test]
fn invalid_names_are_rejected() {
    let empty_key = file_of(0, 1, &[&entry("", 4, &[1; 4])]);
    assert_eq!(error_of(empty_key), "the key of metadata entry 0: the name is empty");
    let bad_key = file_of(0, 1, &[&entry(b"a\xffb", 0, &[1])]);
    assert_eq!(error_of(bad_key), "the key of metadata entry 0: the name \"a\\xffb\" is not UTF-8");
    let long_key = file_of(0, 1, &[&entry(vec![b'k'; MAX_NAME_BYTES + 1], 0, &[1])]);
    assert!(error_of(long_key).contains("65536 bytes long, at most 65535"));
    let bad_name = file_of(1, 0, &[&record(b"\xc0", &[1], 0), &[0; 64]]);
    assert_eq!(error_of(bad_name), "the name of tensor 0: the name \"\\xc0\" is not UTF-8");
    let empty_name = file_of(1, 0, &[&record("", &[1], 0), &[0; 64]]);
    assert_eq!(error_of(empty_name), "the name of tensor 0: the name is empty");

    // Control characters are allowed, but a message never passes them to a terminal.
    let escape = file_of(0, 2, &[&entry("\u{1b}[2J", 0, &[1]), &entry("\u{1b}[2J", 0, &[1])]);
    assert_eq!(error_of(escape), "metadata key `\\u{1b}[2J` is given twice");
}

#[test]
fn invalid_dimensions_are_rejected() {
    let with_dims = |dims: &[u64]| file_of(1, 0, &[&record("t", dims, 0), &[0; 64]]);
    assert_eq!(error_of(with_dims(&[1; 5])), "tensor `t`: it has 5 dimensions, at most 4 are allowed");
    assert_eq!(error_of(with_dims(&[4, 0])), "tensor `t`: dimensions [4, 0] are empty");
    assert!(error_of(with_dims(&[1 << 61, 2, 2])).contains("are too large"));
    assert!(error_of(with_dims(&[1 << 62, 1])).contains("are too large"));
    assert!(error_of(with_dims(&[u64::MAX])).contains("are too large"));
    assert!(
        error_of(file_of(1, 0, &[&record("t", &[1], u64::MAX - 31), &[0; 64]]))
            .contains("4 bytes are needed")
    );

    // No dimensions at all: a single element.
    let file = GgufFile::from_bytes(with_dims(&[])).unwrap();
    assert_eq!((file.tensors()[0].dims(), file.tensors()[0].byte_len()), (&[1][..], 4));

    let mut writer = GgufWriter::new();
    let error = writer.declare("q", DType::Q4_K, &[128, 2]).unwrap_err().to_string();
    assert_eq!(error, "tensor `q`: rows of 128 elements are not whole Q4_K blocks of 256");
}

#[test]
fn invalid_values_are_rejected() {
    let array = |element: u32, count: u64| [&element.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let nested = |depth: usize| {
        let arrays: Vec<u8> = (0..depth).flat_map(|_| array(9, 1)).chain(array(0, 0)).collect();
        file_of(0, 1, &[&entry("k", 9, &arrays)])
    };
    assert!(GgufFile::from_bytes(nested(3)).is_ok());
    assert_eq!(error_of(nested(4)), "metadata key `k`: arrays are nested deeper than 4");
    assert_eq!(error_of(nested(1000)), "metadata key `k`: arrays are nested deeper than 4");
    let bad_bool = file_of(0, 1, &[&entry("k", 7, &[2])]);
    assert_eq!(error_of(bad_bool), "metadata key `k`: a bool is the byte 2, not 0 or 1");
    let bad_bools = file_of(0, 1, &[&entry("k", 9, &[array(7, 2), vec![1, 3]].concat())]);
    assert_eq!(error_of(bad_bools), "metadata key `k`: a bool is the byte 3, not 0 or 1");
    let many_strings = file_of(0, 1, &[&entry("k", 9, &array(8, 1 << 61))]);
    assert!(
        error_of(many_strings).contains("an array of 2305843009213693952 elements is longer than any file")
    );
    let more_strings = file_of(0, 1, &[&entry("k", 9, &array(8, 3)), &[0; 23]]);
    assert!(error_of(more_strings).contains("the file ends inside metadata key `k`: 24 bytes are needed"));

    for alignment in [1u32, 4, 24, 1 << 21, u32::MAX] {
        let bytes = file_of(0, 1, &[&entry("general.alignment", 4, &alignment.to_le_bytes())]);
        let expected = "is not a power of two from 8 to 1048576";
        assert!(error_of(bytes).contains(expected), "{alignment}");
        assert!(
            GgufWriter::new().put("general.alignment", alignment).unwrap_err().to_string().contains(expected)
        );
    }
    assert!(
        error_of(file_of(0, 1, &[&entry("general.alignment", 8, &string("32"))]))
            .contains("string \"32\" is not")
    );
}

#[test]
fn threads_can_share_a_file() {
    let file = GgufFile::open(hostile_path("valid-baseline.gguf")).unwrap();
    let sum = || {
        file.iter_tensors()
            .map(|tensor| tensor.data().unwrap().iter().map(|&byte| u64::from(byte)).sum::<u64>())
            .sum()
    };
    let (one, other): (u64, u64) = std::thread::scope(|scope| {
        let thread = scope.spawn(sum);
        (sum(), thread.join().unwrap())
    });
    assert_eq!(one, other);
    assert!(one > 0);
}

#[test]
fn only_regular_files_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let error = GgufFile::open(folder.path()).unwrap_err();
    assert!(matches!(error.root(), GgufError::NotAFile), "{error}");
    let error = GgufFile::open(folder.path().join("absent.gguf")).unwrap_err();
    assert!(matches!(error.root(), GgufError::Io { .. }), "{error}");
    assert!(error.to_string().contains("absent.gguf: cannot find the file"), "{error}");
}

#[test]
fn the_writer_rejects_data_that_does_not_match_its_declarations() {
    let mut writer = GgufWriter::new();
    writer.put("k", 1u32).unwrap();
    assert_eq!(writer.put("k", 2u32).unwrap_err().to_string(), "metadata key `k` is given twice");
    writer.declare("a", DType::F32, &[2]).unwrap();
    writer.declare("b", DType::F32, &[1]).unwrap();
    assert_eq!(writer.declare("a", DType::F32, &[1]).unwrap_err().to_string(), "tensor `a` is given twice");

    let mut huge = writer.clone();
    huge.declare("c", DType::I8, &[1 << 62]).unwrap();
    assert!(huge.file_bytes() > 1 << 62);
    let error = huge.declare("d", DType::I8, &[1 << 62]).unwrap_err().to_string();
    assert_eq!(error, "tensor `d`: all tensors together are longer than any file");

    let mut data = writer.begin(Vec::new()).unwrap();
    let problem = |result: Result<(), GgufError>| result.unwrap_err().to_string();
    assert!(
        problem(data.append("b", &[0; 4]))
            .contains("it is the turn of tensor `a`, but data of `b` was given")
    );
    data.append("a", &[1; 5]).unwrap();
    assert!(
        problem(data.append("a", &[0; 4]))
            .contains("declared with 8 bytes, of which 3 are left to write, but 4")
    );
    assert!(problem(data.append("b", &[0; 4])).contains("it is the turn of tensor `a`"));
    data.append("a", &[2; 3]).unwrap();
    assert!(problem(data.append("a", &[0])).contains("it is the turn of tensor `b`"));
    data.append("b", &[3; 2]).unwrap();
    let unfinished = data.finish().unwrap_err().to_string();
    assert!(unfinished.contains("2 of the 4 bytes of tensor `b` were given"), "{unfinished}");
}

/// Writes a model of one tensor per part, whose byte is its number.
fn write_split(folder: &Path, count: usize, tensors_declared: i32) -> Vec<PathBuf> {
    let write_part = |index: usize| {
        let mut writer = GgufWriter::new();
        if index == 0 {
            writer.put("general.architecture", "llama").unwrap();
            writer.put("general.alignment", 64u32).unwrap();
        }
        writer.put("split.no", index as u16).unwrap();
        writer.put("split.count", count as u16).unwrap();
        writer.put("split.tensors.count", tensors_declared).unwrap();
        let name = format!("blk.{index}.weight");
        writer.declare(&name, DType::I8, &[3, 2]).unwrap();
        let mut data = writer.begin(Vec::new()).unwrap();
        data.append(&name, &[index as u8; 6]).unwrap();
        let path = folder.join(split_file_name("my-model", index, count));
        fs::write(&path, data.finish().unwrap()).unwrap();
        path
    };
    (0..count).map(write_part).collect()
}

#[test]
fn a_split_model_opens_from_any_of_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let paths = write_split(folder.path(), 3, 3);
    assert!(paths[1].ends_with("my-model-00002-of-00003.gguf"));
    for path in &paths {
        let file = GgufFile::open(path).unwrap();
        assert_eq!((file.split_count(), file.alignment()), (3, 64));
        assert_eq!(file.metadata().require_str("general.architecture").unwrap(), "llama");
        let names: Vec<&str> = file.tensors().iter().map(|info| info.name()).collect();
        assert_eq!(names, ["blk.0.weight", "blk.1.weight", "blk.2.weight"]);
        for (index, tensor) in file.iter_tensors().enumerate() {
            assert_eq!((tensor.split(), &tensor.data().unwrap()[..]), (index, &[index as u8; 6][..]));
        }
        let bytes: u64 = paths.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert_eq!(file.bytes_total() as u64, bytes);
    }
}

#[test]
fn parts_open_under_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let paths = write_split(folder.path(), 3, 3);
    let renamed: Vec<PathBuf> = (0..3).map(|index| folder.path().join(format!("{index}.part"))).collect();
    paths.iter().zip(&renamed).for_each(|(from, to)| fs::rename(from, to).unwrap());
    assert_eq!(GgufFile::open_parts(&renamed).unwrap().tensors().len(), 3);
    let problem = |paths: &[PathBuf]| GgufFile::open_parts(paths).unwrap_err().to_string();
    assert!(
        problem(&renamed[..1]).contains("this should be part 1 of 1, but by its metadata it is part 1 of 3")
    );
    assert!(
        problem(&[renamed[1].clone(), renamed[0].clone(), renamed[2].clone()])
            .contains("should be part 1 of 3")
    );
    assert!(problem(&[]).contains("there is no part"));
}

#[test]
fn inconsistent_splits_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let paths = write_split(folder.path(), 3, 4);
    let problem = |path: &Path| {
        let error = GgufFile::open(path).unwrap_err();
        assert!(matches!(error.root(), GgufError::Split { .. } | GgufError::Duplicate { .. }), "{error}");
        error.to_string()
    };
    assert!(problem(&paths[0]).contains("`split.tensors.count` is 4, but the parts together have 3 tensors"));

    let renamed = folder.path().join("model.gguf");
    fs::copy(&paths[1], &renamed).unwrap();
    let message = problem(&renamed);
    assert!(message.contains("its name must end with \"-00002-of-00003.gguf\""), "{message}");
    assert!(message.contains("is \"model.gguf\""), "{message}");

    write_split(folder.path(), 3, 3);
    fs::copy(&paths[0], &paths[2]).unwrap();
    let message = problem(&paths[0]);
    assert!(
        message.contains("my-model-00003-of-00003.gguf: split model: this should be part 3 of 3"),
        "{message}"
    );

    fs::remove_file(&paths[2]).unwrap();
    let message = problem(&paths[1]);
    assert!(
        message.contains("my-model-00003-of-00003.gguf: split model: part 3 of 3 is missing"),
        "{message}"
    );
    assert!(
        error_of(fs::read(&paths[0]).unwrap())
            .contains("these bytes are part 1 of 3; open the files by path")
    );

    let mut writer = GgufWriter::new();
    writer.put("split.no", 3u16).unwrap();
    writer.put("split.count", 3u16).unwrap();
    fs::write(&paths[0], writer.begin(Vec::new()).unwrap().finish().unwrap()).unwrap();
    assert!(problem(&paths[0]).contains("`split.no` is 3 and `split.count` 3"));
}

/// The largest vocabularies have some 260 000 tokens and twice as many merges.
#[test]
fn a_large_vocabulary_opens_quickly() {
    let tokens: Vec<String> = (0..262_144).map(|id| format!("token{id}")).collect();
    let merges: Vec<String> = (0..524_288).map(|rank| format!("left{rank} right")).collect();
    let mut writer = GgufWriter::new();
    writer.put_array("tokenizer.ggml.tokens", &tokens).unwrap();
    writer.put_array("tokenizer.ggml.scores", &vec![-1.0f32; tokens.len()]).unwrap();
    writer.put_array("tokenizer.ggml.token_type", &vec![1i32; tokens.len()]).unwrap();
    writer.put_array("tokenizer.ggml.merges", &merges).unwrap();
    let bytes = writer.begin(Vec::new()).unwrap().finish().unwrap();

    let start = std::time::Instant::now();
    let file = GgufFile::from_bytes(bytes).unwrap();
    let read = file.metadata().require_str_array("tokenizer.ggml.tokens").unwrap();
    assert!(read.iter().eq(tokens.iter().map(String::as_str)));
    let merges_bytes: usize =
        file.metadata().require_str_array("tokenizer.ggml.merges").unwrap().iter().map(str::len).sum();
    assert_eq!(merges_bytes, merges.iter().map(String::len).sum::<usize>());
    assert_eq!(file.metadata().require_f32_array("tokenizer.ggml.scores").unwrap().len(), tokens.len());
    assert_eq!(file.metadata().require_i32_array("tokenizer.ggml.token_type").unwrap().len(), tokens.len());
    // Some 15 ms here; the bound leaves room for a busy machine.
    assert!(start.elapsed().as_millis() < 500, "{:?}", start.elapsed());
}

/// A metadata value with everything it needs to be written.
#[derive(Clone, Debug)]
enum Owned {
    U8(u8),
    I16(i16),
    U64(u64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(Vec<u8>),
    Numbers(Vec<i32>),
    Strings(Vec<Vec<u8>>),
    Bools(Vec<bool>),
}

fn any_value() -> impl Strategy<Value = Owned> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        any::<u8>().prop_map(Owned::U8),
        any::<i16>().prop_map(Owned::I16),
        any::<u64>().prop_map(Owned::U64),
        any::<f32>().prop_map(Owned::F32),
        any::<f64>().prop_map(Owned::F64),
        any::<bool>().prop_map(Owned::Bool),
        bytes().prop_map(Owned::Str),
        prop::collection::vec(any::<i32>(), 0..9).prop_map(Owned::Numbers),
        prop::collection::vec(bytes(), 0..9).prop_map(Owned::Strings),
        prop::collection::vec(any::<bool>(), 0..9).prop_map(Owned::Bools),
    ]
}

fn put(writer: &mut GgufWriter, key: &str, value: &Owned) -> Result<(), GgufError> {
    match value {
        Owned::U8(value) => writer.put(key, *value),
        Owned::I16(value) => writer.put(key, *value),
        Owned::U64(value) => writer.put(key, *value),
        Owned::F32(value) => writer.put(key, *value),
        Owned::F64(value) => writer.put(key, *value),
        Owned::Bool(value) => writer.put(key, *value),
        Owned::Str(value) => writer.put(key, Value::Str(value)),
        Owned::Numbers(values) => writer.put_array(key, values),
        Owned::Strings(values) => writer.put_array(key, values),
        Owned::Bools(values) => writer.put_array(key, values),
    }
}

/// Whether a value read is the value written, floats bit by bit.
fn same(read: Value<'_>, written: &Owned) -> bool {
    match written {
        Owned::U8(value) => read == Value::U8(*value),
        Owned::I16(value) => read == Value::I16(*value),
        Owned::U64(value) => read == Value::U64(*value),
        Owned::F32(value) => matches!(read, Value::F32(read) if read.to_bits() == value.to_bits()),
        Owned::F64(value) => matches!(read, Value::F64(read) if read.to_bits() == value.to_bits()),
        Owned::Bool(value) => read == Value::Bool(*value),
        Owned::Str(value) => read == Value::Str(value),
        Owned::Numbers(values) => {
            read.as_array().is_some_and(|read| read.iter().eq(values.iter().map(|&value| Value::I32(value))))
        }
        Owned::Strings(values) => {
            read.as_array().is_some_and(|read| read.iter().eq(values.iter().map(|value| Value::Str(value))))
        }
        Owned::Bools(values) => {
            read.as_array().is_some_and(|read| read.iter().eq(values.iter().map(|&value| Value::Bool(value))))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_back(
        values in prop::collection::btree_map("\\PC{1,30}", any_value(), 0..12),
        tensors in prop::collection::btree_map("\\PC{1,30}", (0..ALL.len(), 1usize..4, 1usize..5, 1usize..3), 0..8),
        alignment_power in 3u32..13,
        piece_bytes in 1usize..500,
    ) {
        let mut writer = GgufWriter::new();
        for (key, value) in &values {
            put(&mut writer, key, value).unwrap();
        }
        writer.put("general.alignment", 1u32 << alignment_power).unwrap();
        for (name, &(dtype, blocks, rows, depth)) in &tensors {
            let dtype = ALL[dtype];
            writer.declare(name, dtype, &[blocks * dtype.block_len(), rows, depth]).unwrap();
        }
        let file_bytes = writer.file_bytes();
        let mut data = writer.begin(Vec::new()).unwrap();
        let contents: Vec<Vec<u8>> = tensors.values().enumerate().map(|(index, &(dtype, blocks, rows, depth))| {
            vec![index as u8 + 1; ALL[dtype].block_bytes() * blocks * rows * depth]
        }).collect();
        for (name, content) in tensors.keys().zip(&contents) {
            for piece in content.chunks(piece_bytes) {
                data.append(name, piece).unwrap();
            }
        }
        let bytes = data.finish().unwrap();
        prop_assert_eq!(bytes.len() as u64, file_bytes);

        let file = GgufFile::from_bytes(bytes.clone()).unwrap();
        prop_assert_eq!(file.metadata().len(), values.len() + 1);
        for ((key, value), (read_key, read)) in values.iter().zip(file.metadata().iter()) {
            prop_assert_eq!(key, read_key);
            prop_assert!(same(read, value), "{}: {} {:?}", key, read, value);
            prop_assert!(file.metadata().get(key).is_some_and(|read| same(read, value)));
        }
        prop_assert_eq!(file.tensors().len(), tensors.len());
        for (name, content) in tensors.keys().zip(&contents) {
            let tensor = file.require_tensor(name).unwrap();
            prop_assert_eq!(&tensor.data().unwrap()[..], &content[..]);
            prop_assert!(tensor.offset().is_multiple_of(1 << alignment_power));
        }
        prop_assert!(rewrite(&file).unwrap() == bytes);
    }
}
