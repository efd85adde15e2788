//! Hostile and damaged files: each has the outcome that the index lists, quickly, in little memory, with a message that names the
//! place and the problem. See `tests/data/hostile/README.md`.

mod common;
#[path = "common/measured.rs"]
mod measured;

use std::fs;
use std::time::{Duration, Instant};

use common::hostile_path;
use measured::measured;
use proptest::prelude::*;
use verbatim_gguf::{GgufError, GgufFile};

const TIME_MAX: Duration = Duration::from_millis(50);
const PEAK_BYTES_MAX: isize = 64 << 20;

/// Runs something under the bound on memory.
fn bounded<T>(name: &str, run: impl FnOnce() -> T) -> T {
    let (result, peak_bytes) = measured(run);
    assert!(peak_bytes < PEAK_BYTES_MAX, "{name} allocated {peak_bytes} bytes");
    result
}

/// Runs something under the bounds on time and memory. Of a few runs the fastest counts: the machine may be under load.
fn bounded_and_quick<T>(name: &str, run: impl Fn() -> T) -> T {
    let mut fastest = Duration::MAX;
    for _ in 0..4 {
        let start = Instant::now();
        bounded(name, &run);
        fastest = fastest.min(start.elapsed());
    }
    assert!(fastest < TIME_MAX, "{name} took {fastest:?}");
    bounded(name, run)
}

fn baseline() -> Vec<u8> {
    fs::read(hostile_path("valid-baseline.gguf")).unwrap()
}

fn open_bytes(bytes: &[u8]) -> Result<GgufFile, GgufError> {
    GgufFile::from_bytes(bytes.to_vec())
}

fn index() -> serde_json::Value {
    serde_json::from_slice(&fs::read(hostile_path("index.json")).unwrap()).unwrap()
}

/// Reads everything that an accepted file offers.
fn walk(file: &GgufFile) -> usize {
    let mut sum = 0;
    for (key, value) in file.metadata().iter() {
        sum += key.len() + value.to_string().len();
        sum += value.as_array().map_or(0, |array| array.iter().count());
        assert!(file.metadata().contains(key));
    }
    for tensor in file.iter_tensors() {
        let data = tensor.data().unwrap();
        assert_eq!(data.len(), tensor.rows() * tensor.row_bytes());
        sum += data.iter().map(|&byte| usize::from(byte)).sum::<usize>();
    }
    sum
}

/// The files that only a model's loader can reject: the container is valid, but its content is no valid model.
const FOR_THE_LOADER: [&str; 8] = [
    "tokens-wrong-type.gguf",
    "missing-architecture.gguf",
    "missing-block-count.gguf",
    "head-count-0.gguf",
    "kv-heads-exceed-heads.gguf",
    "embedding-vocab-mismatch.gguf",
    "block-count-2pow31.gguf",
    "nan-and-inf-weights.gguf",
];

#[test]
fn every_file_has_the_outcome_of_the_index() {
    let index = index();
    let files = index["files"].as_array().unwrap();
    assert_eq!(files.len(), 38);
    for entry in files {
        let name = entry["file"].as_str().unwrap();
        let path = hostile_path(name);
        let opened = bounded_and_quick(name, || GgufFile::open(&path));
        let accepted = entry["outcome"] == "accepted" || FOR_THE_LOADER.contains(&name);
        match opened {
            Ok(file) => {
                assert!(accepted, "{name} was accepted");
                bounded_and_quick(name, || walk(&file));
            }
            Err(error) => assert!(!accepted, "{name} was rejected: {error}"),
        }
    }
}

#[test]
fn messages_name_the_place_and_the_problem() {
    let cases = [
        ("empty-file.gguf", "the file ends inside the magic: 4 bytes are needed at offset 0, 0 are left"),
        (
            "trunc-in-header.gguf",
            "the file ends inside the header: 8 bytes are needed at offset 8, 4 are left",
        ),
        (
            "trunc-in-key.gguf",
            "the header: it declares 19 metadata entries, but the 175 bytes after it can hold at most 12",
        ),
        ("trunc-in-token-array.gguf", "inside metadata key `tokenizer.ggml.tokens`"),
        ("trunc-in-tensor-info.gguf", "inside tensor `blk.0.attn_k.weight`"),
        (
            "trunc-in-last-tensor.gguf",
            "inside the data of tensor `blk.0.ffn_down.weight`: 6144 bytes are needed at offset 33024, 6143 are left; it is \
             incomplete (at least 1 bytes are missing)",
        ),
        ("bad-magic.gguf", "it starts with \"GGML\" instead of \"GGUF\""),
        ("version-1.gguf", "version 1 is not supported"),
        ("version-99.gguf", "version 99 is not supported"),
        ("big-endian.gguf", "the file is big-endian"),
        (
            "n-tensors-2pow58.gguf",
            "the header: it declares 288230376151711744 tensors, but the 39144 bytes after it",
        ),
        ("n-kv-2pow60.gguf", "the header: it declares 1152921504606846976 metadata entries"),
        (
            "key-length-2pow63.gguf",
            "inside the key of metadata entry 1: 9223372036854775808 bytes are needed",
        ),
        ("string-length-2pow63.gguf", "inside metadata key `x.s`: 9223372036854775813 bytes are needed"),
        (
            "array-count-overflow.gguf",
            "metadata key `x.a`: an array of 2305843009213693952 elements is longer than any file",
        ),
        ("unknown-value-type.gguf", "metadata key `x.k`: value type 99 is unknown"),
        ("unknown-dtype.gguf", "tensor `blk.0.attn_q.weight`: its type has the id 99"),
        (
            "dims-product-overflow.gguf",
            "tensor `blk.0.attn_q.weight`: dimensions [8589934592, 8589934592, 1, 1] are too large: the size overflows",
        ),
        (
            "offset-misaligned.gguf",
            "tensor `output_norm.weight`: its offset 3076 is not a multiple of the alignment 32",
        ),
        (
            "offset-past-end.gguf",
            "the data of tensor `blk.0.ffn_down.weight`: 6144 bytes are needed at offset 109951162",
        ),
        ("tensors-overlap.gguf", "tensors `token_embd.weight` and `blk.0.attn_v.weight` share bytes"),
        ("duplicate-key.gguf", "metadata key `llama.block_count` is given twice"),
        ("duplicate-tensor.gguf", "tensor `output_norm.weight` is given twice"),
        (
            "alignment-0.gguf",
            "metadata key `general.alignment`: u32 0 is not a power of two from 8 to 1048576",
        ),
    ];
    for (name, expected) in cases {
        let path = hostile_path(name);
        let message = GgufFile::open(&path).unwrap_err().to_string();
        assert!(message.contains(expected), "{name}: {message}");
        assert!(message.starts_with(&path.display().to_string()), "{message}");
    }
}

#[test]
fn every_listed_truncation_is_rejected() {
    let (index, bytes) = (index(), baseline());
    let lengths = index["truncations"]["lengths"].as_array().unwrap();
    assert_eq!(lengths.len(), 162);
    for length in lengths {
        let length = length.as_u64().unwrap() as usize;
        let path = tempfile::NamedTempFile::new().unwrap();
        fs::write(&path, &bytes[..length]).unwrap();
        let error = bounded("a truncation", || GgufFile::open(&path)).unwrap_err();
        assert!(
            matches!(error.root(), GgufError::Truncated { .. } | GgufError::Malformed { .. }),
            "{length}: {error}"
        );
    }
}

#[test]
fn every_truncation_is_rejected() {
    let bytes = baseline();
    assert!(open_bytes(&bytes).is_ok());
    for length in 0..bytes.len() {
        assert!(bounded("a truncation", || open_bytes(&bytes[..length])).is_err(), "{length}");
    }
}

/// The densest tables that a file can hold take a small multiple of its length.
#[test]
fn memory_is_bounded_by_the_length_of_the_file() {
    let head = |tensor_count: u64, entry_count: u64| {
        [b"GGUF\x03\0\0\0".as_slice(), &tensor_count.to_le_bytes(), &entry_count.to_le_bytes()].concat()
    };
    let name = |index: u64| [&4u64.to_le_bytes()[..], format!("{index:04x}").as_bytes()].concat();
    let entry = |index| [name(index), vec![0; 5]].concat();
    let record = |index: u64| [name(index), vec![0; 8], (index * 32).to_le_bytes().to_vec()].concat();
    let entries = [head(0, 1 << 16), (0..1 << 16).flat_map(entry).collect()].concat();
    let tensors = [head(1 << 16, 0), (0..1 << 16).flat_map(record).collect(), vec![0; 64]].concat();
    for (bytes, accepted) in [(entries, true), (tensors, false)] {
        let length = bytes.len() as isize;
        let (opened, peak_bytes) = measured(|| GgufFile::from_bytes(bytes));
        assert_eq!(opened.is_ok(), accepted);
        assert!(peak_bytes < 6 * length, "{peak_bytes} bytes held for a file of {length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes of header, metadata and table replaced at random: rejected or accepted, no panic.
    #[test]
    fn random_damage_causes_no_panic(damage in prop::collection::vec((0usize..1920, any::<u8>()), 1..6)) {
        let mut bytes = baseline();
        for (offset, byte) in damage {
            bytes[offset] = byte;
        }
        match bounded("a damaged file", || open_bytes(&bytes)) {
            Ok(file) => prop_assert!(walk(&file) > 0),
            Err(error) => prop_assert!(error.to_string().chars().all(|char| !char.is_control())),
        }
    }

    /// Numbers that lie near a power of two, where arithmetic wraps, put over any eight bytes.
    #[test]
    fn wrapping_numbers_are_survived(offset in 8usize..1912, power in 0u32..64, near in -2i64..=2) {
        let mut bytes = baseline();
        bytes[offset..offset + 8].copy_from_slice(&(1u64 << power).wrapping_add_signed(near).to_le_bytes());
        if let Ok(file) = bounded("a damaged file", || open_bytes(&bytes)) {
            prop_assert!(walk(&file) > 0);
        }
    }
}
