//! What a model needs, computed from its file before anything is loaded: memory, and bytes read per token.

use crate::load_error::{LoadError, MAX_CONTEXT};
use crate::sequence_spec::{model_spec, rope_context};
use crate::{LoadOptions, MAX_ROWS};
use verbatim_backend::{PAGE_CELLS, WeightKind};
use verbatim_gguf::GgufFile;
use verbatim_models::Model;
use verbatim_state::{ModelSpec, SLOTS_PER_SEQUENCE, pages_for};

/// What a model needs with some options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// The context size in tokens, of each sequence.
    pub context: usize,
    /// The context size that the model was trained for.
    pub trained_context: usize,
    /// The largest context size up to the trained one that fits the memory that is available; `None` if none does, or the memory
    /// is unknown.
    pub fitting_context: Option<usize>,
    /// Bytes of all weights in the file's formats; packed weights take about as much.
    pub weight_bytes: u64,
    /// Bytes of the KV cache and the recurrent state when all sequences fill the context, without the prefix cache.
    pub state_bytes: u64,
    /// Bytes of weights that are read to decode one token: of an MoE layer only the experts that are used, of an embedding table
    /// nothing.
    pub token_bytes: u64,
}

/// Context sizes that are chosen are multiples of this.
const CONTEXT_STEP: usize = 256;

/// The context size that is chosen if the memory does not suffice for any, unless the model was trained for less.
const SMALL_CONTEXT: usize = 2048;

/// What is needed beside weights and state, for the tokenizer, the values of a step and the program itself.
const OTHER_BYTES: u64 = 256 << 20;

impl Requirements {
    /// Computes them for a file. Validates the file, but reads no matrices.
    ///
    /// # Errors
    /// If the file is not a supported model, the context size is out of range, or the memory of [`LoadOptions::memory`] can never
    /// suffice.
    pub fn read(file: &GgufFile, options: &LoadOptions) -> Result<Requirements, LoadError> {
        let model = verbatim_models::open(file)?;
        let spec = model_spec(file, &*model, rope_context(&*model, options), options.kv_format())?;
        Requirements::of(file, &*model, &spec, options)
    }

    /// The same for a model whose per-sequence state is known.
    pub(crate) fn of(
        file: &GgufFile,
        model: &dyn Model,
        spec: &ModelSpec,
        options: &LoadOptions,
    ) -> Result<Requirements, LoadError> {
        let trained_context = model.hyperparameters().context;
        let (weight_bytes, token_bytes) = weight_bytes(file, model)?;
        let memory = options.memory.and_then(|memory| memory());
        // Packed weights are padded.
        let packed_bytes = weight_bytes.saturating_add(weight_bytes / 16);
        let beside_state = packed_bytes.saturating_add(options.cache_bytes as u64);
        let largest = |most: usize, memory_bytes: u64| {
            let for_state = memory_bytes.saturating_sub(beside_state);
            largest_context(most, |context| state_bytes(spec, options, context) <= for_state)
        };
        let fitting_context = memory.and_then(|memory| {
            let usable = memory.available.min(memory.allocatable).saturating_sub(OTHER_BYTES);
            largest(trained_context, usable)
        });
        let context = options.context.unwrap_or(match (memory, fitting_context) {
            (None, _) => trained_context,
            (Some(_), Some(context)) => context,
            (Some(_), None) => trained_context.min(SMALL_CONTEXT),
        });
        if context == 0 || context > MAX_CONTEXT {
            return Err(LoadError::Context(context));
        }
        let state_bytes = state_bytes(spec, options, context);
        let needs = Requirements {
            context,
            trained_context,
            fitting_context,
            weight_bytes,
            state_bytes,
            token_bytes,
        };
        match memory.map(|memory| memory.total) {
            Some(total) if packed_bytes > total => {
                Err(LoadError::WeightMemory { weight_bytes, memory_bytes: total })
            }
            Some(total) if beside_state.saturating_add(state_bytes) > total => {
                Err(LoadError::ContextMemory {
                    context,
                    sequences: options.sequences,
                    state_bytes,
                    weight_bytes,
                    memory_bytes: total,
                    fitting: largest(context, total).unwrap_or(0),
                })
            }
            _ => Ok(needs),
        }
    }

    /// Bytes of weights and state.
    pub fn total_bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.state_bytes)
    }
}

/// The largest context size up to `most` that fits, in steps; `None` if not even one step does.
fn largest_context(most: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    if fits(most) {
        return Some(most);
    }
    // Memory grows with the context: the last step that fits is found by bisection.
    let (mut fitting, mut too_many) = (0, most.div_ceil(CONTEXT_STEP));
    while too_many - fitting > 1 {
        let steps = fitting.midpoint(too_many);
        if fits(steps * CONTEXT_STEP) { fitting = steps } else { too_many = steps }
    }
    (fitting > 0).then_some(fitting * CONTEXT_STEP)
}

/// Bytes of all weights, and of those that one token reads.
fn weight_bytes(file: &GgufFile, model: &dyn Model) -> Result<(u64, u64), LoadError> {
    let architecture = &model.hyperparameters().architecture;
    let used_experts = file.metadata().get_usize(&format!("{architecture}.expert_used_count"))?;
    // Without a matrix of its own, the LM head is the embedding table.
    let has_head = file.tensor("output.weight").is_some();
    let (mut all, mut token) = (0u64, 0u64);
    for spec in model.weights() {
        let bytes = file.require_tensor(&spec.name)?.byte_len() as u64;
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

/// Bytes of the state of all sequences, as the state allocates them.
fn state_bytes(spec: &ModelSpec, options: &LoadOptions, context: usize) -> u64 {
    let sequences = options.sequences as u64;
    let kv = spec.layers.iter().map(|layer| {
        // The first and the last page of a window may be partially used.
        let in_window =
            |window: usize| window.saturating_add(MAX_ROWS).div_ceil(PAGE_CELLS).saturating_add(1);
        let pages = layer.window.map_or(usize::MAX, in_window).min(pages_for(context));
        let cells = (pages as u64).saturating_mul(PAGE_CELLS as u64).saturating_mul(sequences);
        layer.kv.cell_bytes().map_or(u64::MAX, |bytes| (bytes as u64).saturating_mul(cells))
    });
    let slots = (SLOTS_PER_SEQUENCE as u64).saturating_mul(sequences);
    let recurrent = spec
        .recurrent
        .iter()
        .map(|layer| layer.slot_bytes().map_or(u64::MAX, |bytes| (bytes as u64).saturating_mul(slots)));
    kv.chain(recurrent).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use std::cell::Cell;
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
        let embedding = data("llama3-rope-untied").require_tensor("token_embd.weight").unwrap().byte_len();
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

    thread_local! {
        static MEMORY: Cell<Memory> = const { Cell::new(Memory { total: 0, available: 0, allocatable: 0 }) };
    }

    /// What is needed on a machine with this memory.
    fn on_machine(memory: Memory, options: LoadOptions) -> Result<Requirements, LoadError> {
        MEMORY.set(memory);
        Requirements::read(&data("qwen3"), &LoadOptions { memory: Some(|| Some(MEMORY.get())), ..options })
    }

    #[test]
    fn the_default_is_the_trained_context_or_what_fits() {
        let options = LoadOptions::default();
        let needs = Requirements::read(&data("qwen3"), &options).unwrap();
        let trained = needs.trained_context;
        assert!(needs.context == trained && trained > CONTEXT_STEP && needs.fitting_context.is_none());
        let unknown = LoadOptions { memory: Some(|| None), ..options };
        assert_eq!(Requirements::read(&data("qwen3"), &unknown).unwrap(), needs);

        let much = Memory { total: 1 << 40, available: 1 << 40, allocatable: u64::MAX };
        let context = |memory, options| on_machine(memory, options).unwrap().context;
        assert_eq!(context(much, options), trained);
        // Just enough for one step of the context, then a byte less.
        let beside = needs.weight_bytes + needs.weight_bytes / 16 + OTHER_BYTES;
        let enough = beside + read("qwen3", CONTEXT_STEP).state_bytes;
        assert_eq!(context(Memory { available: enough, ..much }, options), CONTEXT_STEP);
        assert_eq!(context(Memory { allocatable: enough, ..much }, options), CONTEXT_STEP);
        let small = trained.min(SMALL_CONTEXT);
        assert_eq!(context(Memory { available: enough - 1, ..much }, options), small);
        // More sequences share it, and the prefix cache takes its part.
        let enough = beside + 3 * read("qwen3", CONTEXT_STEP).state_bytes;
        let three = LoadOptions { sequences: 3, ..options };
        assert_eq!(context(Memory { available: enough, ..much }, three), CONTEXT_STEP);
        let cached = LoadOptions { cache_bytes: 1 << 20, ..three };
        assert_eq!(context(Memory { available: enough + (1 << 20), ..much }, cached), CONTEXT_STEP);
    }

    #[test]
    fn what_can_never_fit_is_an_error() {
        let options = |context| LoadOptions { context: Some(context), ..LoadOptions::default() };
        let needs = read("qwen3", 512);
        let total = needs.weight_bytes + needs.weight_bytes / 16 + needs.state_bytes;
        // Nothing is available, but it may become so.
        let memory = Memory { total, available: 0, allocatable: u64::MAX };
        let found = on_machine(memory, options(512)).unwrap();
        assert_eq!((found.context, found.fitting_context), (512, None));
        let error = on_machine(memory, options(513)).unwrap_err();
        assert!(matches!(error, LoadError::ContextMemory { context: 513, fitting: 512, .. }), "{error}");
        let error = on_machine(Memory { total: needs.weight_bytes, ..memory }, options(1)).unwrap_err();
        assert!(matches!(error, LoadError::WeightMemory { .. }), "{error}");
    }

    #[test]
    fn the_memory_of_many_sequences_does_not_overflow() {
        let options =
            LoadOptions { context: Some(MAX_CONTEXT), sequences: usize::MAX, ..LoadOptions::default() };
        assert_eq!(Requirements::read(&data("qwen35-hybrid"), &options).unwrap().state_bytes, u64::MAX);
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
