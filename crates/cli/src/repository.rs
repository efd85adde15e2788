//! Which file of a repository to take: its quantisation types, and the best one that this machine has memory for.

use std::collections::BTreeMap;

use crate::hub::RepositoryFile;
use crate::machine;
use crate::source::{SplitName, all_parts, file_name, stem};
use crate::standard_io::human_bytes;

/// Quantisation types in file names, the ones to prefer first: Q4_K_M is the usual balance of size and quality, larger types follow
/// in steps that are worth their size, and types below 4 bits come last.
const PREFERENCE: [&str; 46] = [
    "Q4_K_M",
    "Q4_K_XL",
    "Q4_K_L",
    "MXFP4",
    "MXFP4_MOE",
    "Q5_K_M",
    "Q5_K_S",
    "Q4_K_S",
    "IQ4_NL",
    "IQ4_XS",
    "Q4_1",
    "Q4_0",
    "Q5_K_XL",
    "Q5_K_L",
    "Q5_1",
    "Q5_0",
    "Q6_K",
    "Q6_K_L",
    "Q6_K_XL",
    "Q8_0",
    "Q8_K_XL",
    "NVFP4",
    "BF16",
    "F16",
    "F32",
    "Q3_K_XL",
    "Q3_K_L",
    "Q3_K_M",
    "IQ3_M",
    "IQ3_S",
    "Q3_K_S",
    "IQ3_XS",
    "IQ3_XXS",
    "Q2_K_XL",
    "Q2_K_L",
    "Q2_K",
    "Q2_K_S",
    "IQ2_M",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
    "IQ1_M",
    "IQ1_S",
    "TQ2_0",
    "TQ1_0",
    "Q1_0",
];
/// Files of these types are preferred to all others if they are small: small models lose most by quantisation.
const PREFERRED_IF_SMALL: &str = "Q8_0";
const SMALL_BYTES: u64 = 1_000_000_000;

/// A model file, or all files of a split one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its quantisation type by its name, with `UD-` if the name has it; `None` if the name has none.
    pub quant: Option<String>,
    /// Its files, in order.
    pub files: Vec<RepositoryFile>,
}

/// Why no file of a repository was chosen.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// It has no model.
    #[error(
        "{repository} has no GGUF file; such repositories are often named after the model with -GGUF at the end"
    )]
    NoModel {
        /// The repository.
        repository: String,
    },
    /// It has no file of this type.
    #[error("{repository} has no {quant}, but {offered}")]
    NoSuchQuant {
        /// The repository.
        repository: String,
        /// What was asked for.
        quant: String,
        /// What it has.
        offered: String,
    },
    /// A split model lacks a file.
    #[error("{repository}: a part of {name} is missing")]
    MissingPart {
        /// The repository.
        repository: String,
        /// The model.
        name: String,
    },
    /// Not enough memory for any.
    #[error(
        "no file of {repository} fits the {} of memory that are available: the smallest has {} ({repository}:{quant} takes it \
         nevertheless)",
        human_bytes(*available),
        human_bytes(*smallest)
    )]
    TooLarge {
        /// The repository.
        repository: String,
        /// Available memory.
        available: u64,
        /// Size of the smallest model.
        smallest: u64,
        /// Its quantisation type.
        quant: String,
    },
}

impl Candidate {
    /// Size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add)
    }

    fn quant_name(&self) -> &str {
        self.quant.as_deref().unwrap_or("a file without a quantisation type in its name")
    }

    /// Whether this is the type that the user means. `UD-` may be left out.
    fn is_quant(&self, wanted: &str) -> bool {
        let own = self.quant.as_deref().unwrap_or_default();
        own == wanted || own.strip_prefix("UD-") == Some(wanted)
    }

    fn rank(&self) -> usize {
        let plain = self.quant.as_deref().map(|quant| quant.trim_start_matches("UD-"));
        match plain {
            Some(PREFERRED_IF_SMALL) if self.bytes() <= SMALL_BYTES => 0,
            Some(quant) => {
                PREFERENCE.iter().position(|known| *known == quant).map_or(usize::MAX, |rank| rank + 1)
            }
            None => usize::MAX,
        }
    }

    fn is_complete(&self) -> bool {
        let first = self.files.first().map(|file| file_name(&file.path)).unwrap_or_default();
        SplitName::parse(first).map_or(1, |split| split.count) == self.files.len()
    }
}

/// The models among the files of a repository. Projectors of vision models and importance matrices are none.
pub fn candidates(files: Vec<RepositoryFile>) -> Vec<Candidate> {
    let mut models: BTreeMap<String, Vec<RepositoryFile>> = BTreeMap::new();
    for file in files {
        let name = file_name(&file.path).to_ascii_lowercase();
        if name.ends_with(".gguf") && !name.contains("mmproj") && !name.contains("imatrix") {
            // Parts of a model have the same first part.
            let first = all_parts(&file.path).swap_remove(0);
            models.entry(first).or_default().push(file);
        }
    }
    let candidate = |mut files: Vec<RepositoryFile>| {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Candidate { quant: quant_of(stem(&files[0].path)), files }
    };
    models.into_values().map(candidate).collect()
}

/// The quantisation type at the end of a file's name.
pub fn quant_of(stem: &str) -> Option<String> {
    let stem = stem.to_ascii_uppercase();
    let ends = |quant: &&&str| {
        stem.strip_suffix(**quant).is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '.', '_']))
    };
    // The longest, since the name of one type may end with that of another.
    let quant = PREFERENCE.iter().filter(ends).max_by_key(|quant| quant.len())?;
    let is_dynamic = stem.strip_suffix(quant).is_some_and(|rest| rest.ends_with("UD-"));
    Some(if is_dynamic { format!("UD-{quant}") } else { (*quant).to_owned() })
}

/// Chooses the model with the wanted quantisation type, else the best one that fits `available` bytes of memory.
///
/// # Errors
/// When there is none.
pub fn choose(
    repository: &str,
    mut candidates: Vec<Candidate>,
    wanted: Option<&str>,
    available: Option<u64>,
) -> Result<Candidate, ChoiceError> {
    let repository = repository.to_owned();
    candidates.sort_by_key(|candidate| (candidate.rank(), candidate.bytes()));
    let Some(smallest) = candidates.iter().min_by_key(|candidate| candidate.bytes()).cloned() else {
        return Err(ChoiceError::NoModel { repository });
    };
    let chosen = match wanted {
        Some(quant) => candidates.iter().find(|candidate| candidate.is_quant(quant)).ok_or_else(|| {
            ChoiceError::NoSuchQuant {
                repository: repository.clone(),
                quant: quant.to_owned(),
                offered: offered(&candidates),
            }
        })?,
        None => {
            let fits = |candidate: &&Candidate| {
                available.is_none_or(|available| machine::fits(candidate.bytes(), available))
            };
            candidates.iter().find(fits).ok_or_else(|| ChoiceError::TooLarge {
                repository: repository.clone(),
                available: available.unwrap_or(0),
                smallest: smallest.bytes(),
                quant: smallest.quant_name().to_owned(),
            })?
        }
    };
    if !chosen.is_complete() {
        let name = chosen.files.first().map(|file| stem(&file.path).to_owned()).unwrap_or_default();
        return Err(ChoiceError::MissingPart { repository, name });
    }
    Ok(chosen.clone())
}

/// The quantisation types that there are, for people.
pub fn offered(candidates: &[Candidate]) -> String {
    let mut names: Vec<&str> = candidates.iter().map(Candidate::quant_name).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn files(list: &[(&str, u64)]) -> Vec<Candidate> {
        let file = |&(path, bytes): &(&str, u64)| RepositoryFile { path: path.into(), bytes, sha256: None };
        candidates(list.iter().map(file).collect())
    }

    fn chosen(
        list: &[(&str, u64)],
        wanted: Option<&str>,
        available: Option<u64>,
    ) -> Result<String, ChoiceError> {
        choose("hf:o/r", files(list), wanted, available).map(|found| found.quant.unwrap_or_default())
    }

    const MANY: [(&str, u64); 6] = [
        ("M-Q2_K.gguf", 3 * GB),
        ("M-Q4_K_M.gguf", 5 * GB),
        ("M-UD-Q4_K_XL.gguf", 5 * GB + 1),
        ("M-Q8_0.gguf", 9 * GB),
        ("M-BF16.gguf", 16 * GB),
        ("mmproj-M-f16.gguf", GB),
    ];

    #[test]
    fn types_are_read_from_names() {
        for (stem, quant) in [
            ("Llama-3.2-1B-Instruct-Q4_K_M", Some("Q4_K_M")),
            ("smollm2-1.7b-instruct-q4_k_m", Some("Q4_K_M")),
            ("SmolLM2-135M-Instruct.Q4_1", Some("Q4_1")),
            ("Qwen3.6-35B-A3B-UD-Q4_K_M", Some("UD-Q4_K_M")),
            ("gpt-oss-20b-mxfp4", Some("MXFP4")),
            ("M-IQ4_XS", Some("IQ4_XS")),
            ("M-bf16", Some("BF16")),
            ("M-Q4_0_4_4", None),
            ("Phi-3-mini-4k-instruct-q4", None),
        ] {
            assert_eq!(quant_of(stem).as_deref(), quant, "{stem}");
        }
    }

    #[test]
    fn the_best_type_that_fits_is_chosen() {
        assert_eq!(chosen(&MANY, None, Some(32 * GB)).unwrap(), "Q4_K_M");
        assert_eq!(chosen(&MANY, None, Some(4 * GB)).unwrap(), "Q2_K");
        assert_eq!(chosen(&MANY, None, None).unwrap(), "Q4_K_M");
        let error = chosen(&MANY, None, Some(GB)).unwrap_err();
        assert!(
            matches!(&error, ChoiceError::TooLarge { quant, smallest, .. } if quant == "Q2_K" && *smallest == 3 * GB)
        );
        assert!(error.to_string().contains("(hf:o/r:Q2_K takes it nevertheless)"), "{error}");
        let small = [("m-Q4_K_M.gguf", 400_000_000), ("m-Q8_0.gguf", 640_000_000)];
        assert_eq!(chosen(&small, None, Some(32 * GB)).unwrap(), "Q8_0");
        assert_eq!(chosen(&small, None, Some(750_000_000)).unwrap(), "Q4_K_M");
    }

    #[test]
    fn a_type_can_be_named() {
        assert_eq!(chosen(&MANY, Some("Q8_0"), Some(GB)).unwrap(), "Q8_0");
        assert_eq!(chosen(&MANY, Some("Q4_K_XL"), None).unwrap(), "UD-Q4_K_XL");
        let error = chosen(&MANY, Some("Q3_K_M"), None).unwrap_err().to_string();
        assert_eq!(error, "hf:o/r has no Q3_K_M, but BF16, Q2_K, Q4_K_M, Q8_0, UD-Q4_K_XL");
    }

    #[test]
    fn parts_are_one_model() {
        let split = [("Q4/m-Q4_K_M-00002-of-00002.gguf", 2 * GB), ("Q4/m-Q4_K_M-00001-of-00002.gguf", GB)];
        let found = choose("hf:o/r", files(&split), None, None).unwrap();
        assert_eq!((found.bytes(), found.quant.as_deref()), (3 * GB, Some("Q4_K_M")));
        assert!(found.files[0].path.ends_with("-00001-of-00002.gguf"));
        let missing = choose("hf:o/r", files(&split[..1]), None, None).unwrap_err();
        assert!(matches!(missing, ChoiceError::MissingPart { .. }));
        assert!(matches!(chosen(&[("README.md", 1)], None, None), Err(ChoiceError::NoModel { .. })));
    }
}
