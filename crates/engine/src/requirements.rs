//! What a model needs, computed from its file before anything is loaded: memory, and bytes read per token.

use crate::load::{LoadError, context_size, model_spec};
use crate::{LoadOptions, MAX_ROWS};
use verbatim_backend::{PAGE_CELLS, WeightKind};
use verbatim_gguf::GgufFile;
use verbatim_models::Model;
use verbatim_state::{ModelSpec, SLOTS_PER_SEQUENCE, pages_for};

/// What a model needs for one sequence, without a prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// The context size in tokens.
    pub context: usize,
    /// Bytes of all weights in the file's formats; packed weights take about as much.
    pub weight_bytes: u64,
    /// Bytes of the KV cache and the recurrent state.
    pub state_bytes: u64,
    /// Bytes of weights that are read to decode one token: of an MoE layer only the experts that are used, of an embedding table
    /// nothing.
    pub token_bytes: u64,
}

impl Requirements {
    /// Computes them for a file. Validates the file, but reads no matrices.
    ///
    /// # Errors
    /// If the file is not a supported model, or the context size is out of range.
    pub fn read(file: &GgufFile, options: &LoadOptions) -> Result<Requirements, LoadError> {
        let model = verbatim_models::open(file)?;
        let context = context_size(&*model, options)?;
        let spec = model_spec(file, &*model, context, options.kv_format())?;
        let (weight_bytes, token_bytes) = weight_bytes(file, &*model)?;
        Ok(Requirements { context, weight_bytes, state_bytes: state_bytes(&spec, context), token_bytes })
    }

    /// Bytes of weights and state.
    pub fn total_bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.state_bytes)
    }
}

/// Bytes of all weights, and of those that one token reads.
fn weight_bytes(file: &GgufFile, model: &dyn Model) -> Result<(u64, u64), LoadError> {
    let architecture = &model.hyperparameters().architecture;
    let used_experts = file.metadata().get_usize(&format!("{architecture}.expert_used_count"))?;
    // Without a matrix of its own, the LM head is the embedding table.
    let has_head = file.tensor("output.weight").is_some();
    let (mut all, mut token) = (0u64, 0u64);
    for spec in model.weights() {
        let bytes = file.require_tensor(&spec.name)?.data().len() as u64;
        all = all.saturating_add(bytes);
        token = token.saturating_add(match spec.kind {
            WeightKind::Experts(count) => {
                let used = used_experts.unwrap_or(count).min(count);
                bytes / count.max(1) as u64 * used as u64
            }
            _ if has_head && spec.name == "token_embd.weight" => 0,
            _ => bytes,
        });
    }
    Ok((all, token))
}

fn state_bytes(spec: &ModelSpec, context: usize) -> u64 {
    let kv = spec.layers.iter().map(|layer| {
        // As the state allocates them: the first and the last page of a window may be partially used.
        let in_window =
            |window: usize| window.saturating_add(MAX_ROWS).div_ceil(PAGE_CELLS).saturating_add(1);
        let pages = layer.window.map_or(usize::MAX, in_window).min(pages_for(context));
        layer
            .kv
            .cell_bytes()
            .map_or(u64::MAX, |bytes| (bytes as u64).saturating_mul((pages * PAGE_CELLS) as u64))
    });
    let slots = SLOTS_PER_SEQUENCE as u64;
    let recurrent =
        spec.recurrent.iter().map(|layer| layer.slot_bytes().map_or(u64::MAX, |bytes| bytes as u64 * slots));
    kv.chain(recurrent).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_models::ModelError;

    fn data(name: &str) -> GgufFile {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/models");
        GgufFile::open(format!("{folder}/{name}/model.gguf")).unwrap()
    }

    fn read(name: &str, context: usize) -> Requirements {
        let options = LoadOptions { context: Some(context), ..LoadOptions::default() };
        Requirements::read(&data(name), &options).unwrap()
    }

    #[test]
    fn weights_are_the_tensors_of_the_file() {
        for name in ["qwen3", "qwen3moe", "qwen35-hybrid", "gemma3-iswa", "llama-gqa-tied"] {
            let bytes: usize = data(name).tensors().iter().map(|tensor| tensor.byte_len()).sum();
            assert_eq!(read(name, 64).weight_bytes, bytes as u64, "{name}");
        }
    }

    #[test]
    fn a_token_reads_the_experts_that_it_uses_and_no_embedding() {
        let tied = read("llama-gqa-tied", 64);
        assert_eq!(tied.token_bytes, tied.weight_bytes);
        let untied = read("llama3-rope-untied", 64);
        let embedding = data("llama3-rope-untied").require_tensor("token_embd.weight").unwrap().data().len();
        assert_eq!(untied.token_bytes, untied.weight_bytes - embedding as u64);
        let moe = read("qwen3moe", 64);
        assert!(moe.token_bytes < moe.weight_bytes);
    }

    #[test]
    fn state_grows_with_the_context_up_to_the_window() {
        let [small, large] = [64, 4096].map(|context| read("qwen3", context).state_bytes);
        assert_eq!(large, small * 64);
        let [small, large] = [64, 1 << 20].map(|context| read("gemma3-iswa", context).state_bytes);
        assert!(large < small * (1 << 14));
        let [small, large] = [64, 128].map(|context| read("qwen35-hybrid", context).state_bytes);
        assert!(large < small * 2, "recurrent state does not grow");
    }

    #[test]
    fn a_context_out_of_range_is_an_error() {
        let options = LoadOptions { context: Some(0), ..LoadOptions::default() };
        assert!(matches!(Requirements::read(&data("qwen3"), &options), Err(LoadError::Context(0))));
        let nothing = GgufFile::open(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/data/hostile/missing-architecture.gguf"
        ));
        let error = Requirements::read(&nothing.unwrap(), &LoadOptions::default()).unwrap_err();
        assert!(matches!(error, LoadError::Model(ModelError::File(_))), "{error}");
    }
}
