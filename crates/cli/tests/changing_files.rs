//! A model file that another program shortens or overwrites while a command loads it.

mod support;

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use support::{data, verbatim};

/// `VERBATIM_TEST_TRIES` sets more.
const TRIES: usize = 40;

/// Shortens the file, or writes its content again, in pieces.
fn keep_writing(path: &Path, content: &[u8], stop: &AtomicBool) {
    let mut file = OpenOptions::new().write(true).open(path).unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    while !stop.load(Ordering::Relaxed) {
        if random.bool() {
            file.set_len(random.u64(..content.len() as u64)).unwrap();
            thread::sleep(Duration::from_micros(random.u64(..3000)));
        }
        file.seek(SeekFrom::Start(0)).unwrap();
        content.chunks(1 << random.u32(12..20)).for_each(|piece| file.write_all(piece).unwrap());
        if random.bool() {
            thread::sleep(Duration::from_micros(random.u64(..200_000)));
        }
    }
}

#[test]
fn a_command_says_that_the_file_changed() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("model.gguf");
    let content = fs::read(data("models/qwen3/model.gguf")).unwrap();
    fs::write(&path, &content).unwrap();
    let answer = || {
        let mut command = verbatim(home.path());
        command.args(["run", "--no-template", "--temp", "0", "-n", "2", "--threads", "1", "-m"]).arg(&path);
        command.args(["-q", "hello"]).output().unwrap()
    };
    let expected = answer().stdout;
    let tries = std::env::var("VERBATIM_TEST_TRIES").map_or(TRIES, |tries| tries.parse().unwrap());
    let stop = AtomicBool::new(false);
    let outputs: Vec<Output> = thread::scope(|scope| {
        scope.spawn(|| keep_writing(&path, &content, &stop));
        let runs = [0, 1].map(|_| scope.spawn(|| (0..tries).map(|_| answer()).collect::<Vec<_>>()));
        let outputs = runs.into_iter().flat_map(|run| run.join().expect("no panic")).collect();
        stop.store(true, Ordering::Relaxed);
        outputs
    });
    let mut changed = 0;
    for output in &outputs {
        let error = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => assert_eq!(output.stdout, expected),
            Some(1) if error.contains("the file changed while it was being loaded") => changed += 1,
            // A file that stays cut for as long as it is opened.
            Some(1) => assert!(error.contains("download it again"), "{error}"),
            _ => panic!("{}: {error}", output.status),
        }
    }
    assert!(changed > 0, "of {} commands none found a file that changed", outputs.len());
}
