//! Loading a model file that another program shortens or overwrites meanwhile.

use crate::common::{cpu, data, exact, logits};
use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verbatim_engine::{LoadError, LoadOptions, Stepper};
use verbatim_gguf::{GgufError, GgufFile};

/// Per loading thread.
const TRIES: usize = 60;
const LOADERS: usize = 4;

#[derive(Debug, PartialEq)]
enum Outcome {
    Logits(Vec<u32>),
    Changed,
    /// The file stayed cut for as long as it was opened.
    Cut,
}

fn try_to_load(path: &Path) -> Outcome {
    let options = LoadOptions { context: Some(64), ..exact() };
    let opened = GgufFile::open(path).map_err(LoadError::from);
    match opened.and_then(|file| Stepper::load(cpu(1), &file, &options)) {
        Ok(mut stepper) => {
            Outcome::Logits(logits(&mut stepper, &[1, 5, 9], &[3]).into_iter().map(f32::to_bits).collect())
        }
        Err(LoadError::File(error)) if matches!(error.root(), GgufError::Changed) => Outcome::Changed,
        Err(LoadError::File(error)) if matches!(error.root(), GgufError::Truncated { .. }) => Outcome::Cut,
        Err(error) => panic!("{error}"),
    }
}

/// Two models of the same shape: one with every other weight negated.
fn models() -> [Vec<u8>; 2] {
    let path = data("models/llama-gqa-tied/model.gguf");
    let (bytes, file) = (fs::read(&path).expect("a file"), GgufFile::open(&path).expect("a model"));
    let mut other = bytes.clone();
    for tensor in file.tensors() {
        let data = &mut other[tensor.offset()..][..tensor.byte_len()];
        data.iter_mut().skip(3).step_by(8).for_each(|high_byte| *high_byte ^= 0x80);
    }
    [bytes, other]
}

fn keep_writing(path: &Path, contents: &[Vec<u8>; 2], stop: &AtomicBool) {
    let mut file = OpenOptions::new().write(true).open(path).expect("a file");
    let mut random = fastrand::Rng::with_seed(3);
    while !stop.load(Ordering::Relaxed) {
        let content = &contents[random.usize(..2)];
        if random.bool() {
            file.set_len(random.u64(..content.len() as u64)).expect("a file");
            std::thread::sleep(Duration::from_micros(random.u64(..2000)));
        }
        file.seek(SeekFrom::Start(0)).expect("a file");
        content.chunks(1 << random.u32(12..19)).for_each(|piece| file.write_all(piece).expect("a file"));
        if random.bool() {
            std::thread::sleep(Duration::from_micros(random.u64(..200_000)));
        }
    }
}

#[test]
fn a_model_that_changes_while_it_is_loaded_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let contents = models();
    let expected = contents.each_ref().map(|content| {
        fs::write(&path, content).expect("written");
        try_to_load(&path)
    });
    assert_ne!(expected[0], expected[1]);
    let stop = AtomicBool::new(false);
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        scope.spawn(|| keep_writing(&path, &contents, &stop));
        let try_all = || (0..TRIES).map(|_| try_to_load(&path)).collect::<Vec<_>>();
        let loaders: Vec<_> = (0..LOADERS).map(|_| scope.spawn(try_all)).collect();
        let outcomes: Vec<_> = loaders.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        outcomes.into_iter().flat_map(|outcomes| outcomes.expect("no loader panics")).collect()
    });
    let count = |is: &dyn Fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| is(outcome)).count();
    let (changed, cut) = (count(&|it| *it == Outcome::Changed), count(&|it| *it == Outcome::Cut));
    let loaded = count(&|it| expected.contains(it));
    assert!(loaded > 0 && changed > 0, "{loaded} loaded, {changed} changed, {cut} cut");
    assert_eq!(loaded + changed + cut, outcomes.len(), "a model that is neither of the two was loaded");
}
