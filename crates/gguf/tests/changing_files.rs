//! Files that another program shortens or overwrites while they are read: errors, never a crash or a mixture of contents.

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use verbatim_gguf::{GgufError, GgufFile, GgufWriter};
use verbatim_quant::DType;

/// Per reading thread.
const TRIES: usize = 700;
const READERS: usize = 4;
const TENSORS: usize = 6;
const ELEMENTS: usize = 16 << 10;

/// A model that consists of this byte, in its metadata too.
fn content(byte: u8) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.put("general.name", [byte; 3000].map(char::from).iter().collect::<String>().as_str()).unwrap();
    let names: Vec<String> = (0..TENSORS).map(|index| format!("{index}.weight")).collect();
    names.iter().for_each(|name| writer.declare(name, DType::F32, &[ELEMENTS]).unwrap());
    let mut data = writer.begin(Vec::new()).unwrap();
    names.iter().for_each(|name| data.append(name, &vec![byte; 4 * ELEMENTS]).unwrap());
    data.finish().unwrap()
}

/// Opens the file and reads all of it: the byte that it consists of.
fn read(path: &Path) -> Result<u8, GgufError> {
    let file = GgufFile::open(path)?;
    let read = read_tensors(&file);
    file.check_unchanged()?;
    read
}

fn read_tensors(file: &GgufFile) -> Result<u8, GgufError> {
    let name = file.metadata().require_bytes("general.name")?;
    let mut same = name.iter().all(|byte| *byte == name[0]);
    for tensor in file.iter_tensors() {
        let mut piece = vec![0; ELEMENTS];
        for start in (0..tensor.byte_len()).step_by(piece.len()) {
            tensor.read(start, &mut piece)?;
            same &= piece.iter().all(|byte| *byte == name[0]);
        }
    }
    file.check_unchanged()?;
    assert!(same, "a mixture of two contents was read as one");
    Ok(name[0])
}

/// Shortens the file, or writes another content over it, piece by piece, until told to stop.
fn keep_writing(path: &Path, contents: &[Vec<u8>; 2], stop: &AtomicBool) {
    let mut file = OpenOptions::new().write(true).open(path).unwrap();
    let mut random = 1u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % bound
    };
    while !stop.load(Ordering::Relaxed) {
        let content = &contents[below(2) as usize];
        if below(2) == 0 {
            file.set_len(below(content.len() as u64)).unwrap();
            thread::sleep(Duration::from_micros(below(2000)));
        }
        file.seek(SeekFrom::Start(0)).unwrap();
        for piece in content.chunks(1 << (10 + below(9))) {
            file.write_all(piece).unwrap();
        }
        // Long enough at times for a reader to succeed.
        thread::sleep(Duration::from_micros(below(2) * below(50_000)));
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let contents = [content(b'a'), content(b'b')];
    assert_eq!(contents[0].len(), contents[1].len());
    fs::write(&path, &contents[0]).unwrap();
    let stop = AtomicBool::new(false);
    let outcomes: Vec<Result<u8, GgufError>> = thread::scope(|scope| {
        scope.spawn(|| keep_writing(&path, &contents, &stop));
        let try_all = || (0..TRIES).map(|_| read(&path)).collect::<Vec<_>>();
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(try_all)).collect();
        let outcomes: Vec<_> = readers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        outcomes.into_iter().flat_map(|outcomes| outcomes.expect("no reader panics")).collect()
    });
    let count = |is: &dyn Fn(&Result<u8, GgufError>) -> bool| outcomes.iter().filter(|it| is(it)).count();
    let is_changed = |error: &GgufError| matches!(error.root(), GgufError::Changed);
    let read = count(&|it| matches!(it, Ok(b'a' | b'b')));
    let changed = count(&|it| it.as_ref().is_err_and(is_changed));
    // A file that stays cut for as long as it is opened.
    let cut = |error: &GgufError| matches!(error.root(), GgufError::Truncated { .. });
    let cut = count(&|it| it.as_ref().is_err_and(cut));
    println!("{read} read, {changed} changed, {cut} cut");
    assert!(read > 0 && changed > 0, "{read} read, {changed} changed");
    assert_eq!(read + changed + cut, READERS * TRIES, "{outcomes:?}");
}

#[test]
fn the_message_says_that_the_file_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let bytes = content(b'x');
    let opened = |change: &dyn Fn()| {
        fs::write(&path, &bytes).unwrap();
        let file = GgufFile::open(&path).unwrap();
        file.check_unchanged().unwrap();
        change();
        file
    };
    let changed = "model.gguf: the file changed while it was being loaded: another program is writing to it";
    let shorter = opened(&|| OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap());
    let errors = [
        shorter.check_unchanged(),
        shorter.require_tensor("5.weight").unwrap().data().map(drop),
        shorter.require_tensor("5.weight").unwrap().read(7, &mut [0; 5]),
        opened(&|| OpenOptions::new().append(true).open(&path).unwrap().write_all(b"x").unwrap())
            .check_unchanged(),
        opened(&|| fs::write(&path, &bytes).unwrap()).check_unchanged(),
    ];
    for error in errors {
        let message = error.unwrap_err().to_string();
        assert!(message.contains(changed), "{message}");
    }
    // What was read stays; and a new file in its place is another file.
    assert_eq!(shorter.metadata().require_bytes("general.name").unwrap(), [b'x'; 3000]);
    let other = folder.path().join("other");
    fs::write(&other, b"x").unwrap();
    let replaced = opened(&|| fs::rename(&other, &path).unwrap());
    assert_eq!(replaced.require_tensor("5.weight").unwrap().data().unwrap()[0], b'x');
    replaced.check_unchanged().unwrap();
}
