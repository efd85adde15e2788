//! Models split over several files: `NAME-00001-of-00003.gguf` and so on, tied together by three metadata
//! keys.

use std::path::{Path, PathBuf};

use crate::error::{GgufError, quoted};
use crate::metadata::Metadata;

/// The index of a part, and the number of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitPosition {
    /// From 0.
    pub(crate) index: usize,
    /// At least 1; the keys are 16 bits wide.
    pub(crate) count: usize,
}

impl SplitPosition {
    /// Reads `split.no` and `split.count`; a file without them is not split.
    pub(crate) fn from_metadata(metadata: &Metadata) -> Result<SplitPosition, GgufError> {
        let count = metadata.get_u32("split.count")?.unwrap_or(1);
        if count <= 1 {
            return Ok(SplitPosition { index: 0, count: 1 });
        }
        let index = metadata.require_u32("split.no")?;
        if count > u32::from(u16::MAX) || index >= count {
            let problem =
                format!("`split.no` is {index} and `split.count` {count}; a part is numbered from 0");
            return Err(GgufError::Split { problem });
        }
        Ok(SplitPosition { index: index as usize, count: count as usize })
    }

    /// The files of all parts in order, from the path of this one.
    pub(crate) fn paths(self, path: &Path) -> Result<impl Iterator<Item = PathBuf>, GgufError> {
        let SplitPosition { index, count } = self;
        let suffix = split_file_name("", index, count);
        let name = path.file_name().map(|name| name.as_encoded_bytes()).unwrap_or_default();
        let prefix = name.strip_suffix(suffix.as_bytes()).and_then(|prefix| str::from_utf8(prefix).ok());
        let Some(prefix) = prefix.map(str::to_string) else {
            let found = quoted(name);
            let problem = format!(
                "this file is part {} of {count}, so its name must end with \"{suffix}\" for the others to be \
                 found, and be UTF-8, but is \"{found}\"; give it back the name that it was published with",
                index + 1
            );
            return Err(GgufError::Split { problem });
        };
        let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        Ok((0..count).map(move |index| folder.join(split_file_name(&prefix, index, count))))
    }
}

/// The file name of part `index` (from 0) of `count` of a model, such as `model-00001-of-00003.gguf`.
///
/// The parts carry `split.no` (`index` as a u16), `split.count` (u16) and `split.tensors.count` (i32, all
/// tensors of the model); the model's own metadata is in the first.
pub fn split_file_name(prefix: &str, index: usize, count: usize) -> String {
    format!("{prefix}-{:05}-of-{count:05}.gguf", index + 1)
}
