//! Files derived from golden ones: a dense model rewritten as an equivalent MoE gives the same output, and unsupported settings are
//! rejected by name.

use crate::common::*;
use verbatim_cpu::Cpu;
use verbatim_engine::Stepper;
use verbatim_gguf::{GgufFile, GgufWriter, Value};
use verbatim_quant::{DType, quantize};
use verbatim_simd::Isa;

/// A tensor of f32.
struct Tensor {
    name: String,
    dims: Vec<usize>,
    values: Vec<f32>,
}

/// A model file that can be changed.
struct Model {
    architecture: String,
    hidden: usize,
    tensors: Vec<Tensor>,
}

impl Model {
    fn open(file: &GgufFile) -> Model {
        let architecture = file.metadata().require_str("general.architecture").expect("there").to_owned();
        let tensors = file.iter_tensors().map(|tensor| {
            let data = tensor.data().expect("readable");
            let words = data.as_chunks::<4>().0.iter();
            Tensor {
                name: tensor.name().to_owned(),
                dims: tensor.dims().to_vec(),
                values: words.map(|word| f32::from_le_bytes(*word)).collect(),
            }
        });
        let hidden = file.require_tensor("token_embd.weight").expect("there").cols();
        Model { architecture, hidden, tensors: tensors.collect() }
    }

    fn take(&mut self, name: &str) -> Tensor {
        let at = self.tensors.iter().position(|tensor| tensor.name == name);
        self.tensors.remove(at.unwrap_or_else(|| panic!("no tensor {name}")))
    }

    fn push(&mut self, name: String, dims: &[usize], values: Vec<f32>) {
        assert_eq!(dims.iter().product::<usize>(), values.len(), "{name}");
        self.tensors.push(Tensor { name, dims: dims.to_vec(), values });
    }

    /// The file, with the metadata of `file` under this model's architecture and `more` besides, and its experts'
    /// matrices in this format.
    fn write(&self, file: &GgufFile, more: &[(&str, Value<'_>)], experts: DType) -> GgufFile {
        let mut writer = GgufWriter::new();
        let old = file.metadata().require_str("general.architecture").expect("there");
        let key_of = |name: &str| format!("{}.{name}", self.architecture);
        for (key, value) in file.metadata().iter() {
            let key = match key.strip_prefix(old).and_then(|rest| rest.strip_prefix('.')) {
                Some(name) => key_of(name),
                None => key.to_owned(),
            };
            if key == "general.architecture" {
                writer.put(&key, self.architecture.as_str()).expect("fits");
            } else if more.iter().all(|(name, _)| key_of(name) != key) {
                writer.put(&key, value).expect("fits");
            }
        }
        for &(name, value) in more {
            writer.put(&key_of(name), value).expect("fits");
        }
        let dtype = |tensor: &Tensor| {
            if tensor.name.ends_with("_exps.weight") { experts } else { DType::F32 }
        };
        for tensor in &self.tensors {
            writer.declare(&tensor.name, dtype(tensor), &tensor.dims).expect("fits");
        }
        let mut data = writer.begin(Vec::new()).expect("memory");
        for tensor in &self.tensors {
            let dtype = dtype(tensor);
            let mut bytes = vec![0; dtype.row_bytes(tensor.values.len()).expect("whole blocks")];
            quantize(dtype, &tensor.values, &mut bytes).expect("finite");
            data.append(&tensor.name, &bytes).expect("memory");
        }
        GgufFile::from_bytes(data.finish().expect("complete")).expect("a file")
    }
}

/// Columns `start..start + count` of rows of `cols`, each times `factor`.
fn columns(values: &[f32], cols: usize, start: usize, count: usize, factor: f32) -> Vec<f32> {
    values.chunks(cols).flat_map(|row| row[start..start + count].iter().map(move |x| x * factor)).collect()
}

const LAYERS: usize = 4;
const EXPERTS: usize = 2;
const EXPERT_FFN: usize = 32;
const SHARED: usize = 64;
const FFN: usize = SHARED + EXPERTS * EXPERT_FFN;

fn name(layer: usize, part: &str) -> String {
    format!("blk.{layer}.{part}")
}

/// Gives every feed-forward network of a dense model biases.
fn add_biases(model: &mut Model) {
    let numbers =
        |count: usize| (0..count).map(|i| ((i * 37 % 19) as f32 - 9.0) / 50.0).collect::<Vec<f32>>();
    for layer in 0..LAYERS {
        let hidden = model.hidden;
        for (part, len) in [("ffn_gate.bias", FFN), ("ffn_up.bias", FFN), ("ffn_down.bias", hidden)] {
            model.push(name(layer, part), &[len], numbers(len));
        }
    }
}

/// Rewrites every feed-forward network as an equivalent MoE: its first half becomes a shared expert that is gated by
/// sigmoid(0) = 1/2, its second half experts that are all chosen with equal weights.
fn rewrite_as_moe(model: &mut Model, fused: bool, biases: bool) {
    model.architecture = "qwen35moe".into();
    let hidden = model.hidden;
    let split = SHARED * hidden;
    for layer in 0..LAYERS {
        let name = |part: &str| name(layer, part);
        let [gate, up, down] = ["ffn_gate", "ffn_up", "ffn_down"]
            .map(|part| model.take(&name(&format!("{part}.weight"))).values);
        model.push(name("ffn_gate_shexp.weight"), &[hidden, SHARED], gate[..split].to_vec());
        model.push(name("ffn_up_shexp.weight"), &[hidden, SHARED], up[..split].to_vec());
        model.push(name("ffn_down_shexp.weight"), &[SHARED, hidden], columns(&down, FFN, 0, SHARED, 2.0));
        model.push(name("ffn_gate_inp_shexp.weight"), &[hidden], vec![0.0; hidden]);
        model.push(name("ffn_gate_inp.weight"), &[hidden, EXPERTS], vec![0.0; hidden * EXPERTS]);
        let downs = (0..EXPERTS)
            .flat_map(|e| columns(&down, FFN, SHARED + e * EXPERT_FFN, EXPERT_FFN, EXPERTS as f32));
        model.push(name("ffn_down_exps.weight"), &[EXPERT_FFN, hidden, EXPERTS], downs.collect());
        if fused {
            let experts =
                gate[split..].chunks(EXPERT_FFN * hidden).zip(up[split..].chunks(EXPERT_FFN * hidden));
            let both = experts.flat_map(|(gate, up)| [gate, up].concat()).collect();
            model.push(name("ffn_gate_up_exps.weight"), &[hidden, 2 * EXPERT_FFN, EXPERTS], both);
        } else {
            model.push(name("ffn_gate_exps.weight"), &[hidden, EXPERT_FFN, EXPERTS], gate[split..].to_vec());
            model.push(name("ffn_up_exps.weight"), &[hidden, EXPERT_FFN, EXPERTS], up[split..].to_vec());
        }
        if biases {
            for part in ["ffn_gate", "ffn_up"] {
                let bias = model.take(&name(&format!("{part}.bias"))).values;
                model.push(name(&format!("{part}_shexp.bias")), &[SHARED], bias[..SHARED].to_vec());
                model.push(
                    name(&format!("{part}_exps.bias")),
                    &[EXPERT_FFN, EXPERTS],
                    bias[SHARED..].to_vec(),
                );
            }
            // One half comes from the shared expert, the other from the experts together.
            let bias = model.take(&name("ffn_down.bias")).values;
            let stacked = (0..EXPERTS).flat_map(|_| bias.iter().map(|x| x / 2.0));
            model.push(name("ffn_down_exps.bias"), &[hidden, EXPERTS], stacked.collect());
            model.push(name("ffn_down_shexp.bias"), &[hidden], bias);
        }
    }
}

const MOE_KEYS: [(&str, Value<'_>); 4] = [
    ("expert_count", Value::U32(EXPERTS as u32)),
    ("expert_used_count", Value::U32(EXPERTS as u32)),
    ("expert_feed_forward_length", Value::U32(EXPERT_FFN as u32)),
    ("expert_shared_feed_forward_length", Value::U32(SHARED as u32)),
];

#[test]
fn a_dense_model_rewritten_as_moe_gives_the_same_output() {
    let golden = Golden::open("models/qwen35-hybrid/golden.safetensors");
    let file = GgufFile::open(data("models/qwen35-hybrid/model.gguf")).expect("a file");
    let (shape, reference) = golden.f32("logits_hf");
    let tokens = golden.ids("token_ids");
    let run = |file: &GgufFile| {
        let mut engine = load(file, &exact()).expect("a model");
        logits(&mut engine, &tokens, &[512])
    };
    let moe = |fused: bool, biases: bool| {
        let mut model = Model::open(&file);
        if biases {
            add_biases(&mut model);
        }
        rewrite_as_moe(&mut model, fused, biases);
        run(&model.write(&file, &MOE_KEYS, DType::F32))
    };
    let plain = moe(false, false);
    let relative = worst_relative(&plain, &reference, shape[1]);
    println!("rewritten as MoE: logits within {relative:.1e} relative");
    assert!(relative < 1e-4, "{relative:e}");
    assert!(moe(true, false) == plain, "gate and up in one tensor");

    let mut biased = Model::open(&file);
    add_biases(&mut biased);
    let reference = run(&biased.write(&file, &[], DType::F32));
    assert!(worst_relative(&plain, &reference, shape[1]) > 1e-2, "biases matter");
    let relative = worst_relative(&moe(false, true), &reference, shape[1]);
    println!("rewritten as MoE with biases: logits within {relative:.1e} relative");
    assert!(relative < 1e-4, "{relative:e}");
}

#[test]
fn quantised_experts_give_the_same_bits_at_every_batch_size_thread_count_and_instruction_set() {
    let file = GgufFile::open(data("models/qwen35-hybrid/model.gguf")).expect("a file");
    let mut model = Model::open(&file);
    rewrite_as_moe(&mut model, false, false);
    for dtype in [DType::Q8_0, DType::Q4_0, DType::F16] {
        let file = model.write(&file, &MOE_KEYS, dtype);
        let mut reference = None;
        for (threads, cuts) in [(1, &[1][..]), (3, &[7]), (2, &[30, 1, 9]), (8, &[80])] {
            for isa in Isa::supported() {
                let backend = Cpu::with_isa(threads, isa).expect("supported");
                let mut engine = Stepper::load(backend, &file, &exact()).expect("a model");
                let tokens: Vec<u32> = (0..80).map(|i| (i * 37 + 5) % 500).collect();
                let given = logits(&mut engine, &tokens, cuts);
                let reference = reference.get_or_insert_with(|| given.clone());
                assert!(given == *reference, "{dtype} {threads} threads {cuts:?} {}", isa.name());
            }
        }
    }
}

/// Loads a golden model with some settings changed; returns why it was rejected.
fn rejection(model: &str, settings: &[(&str, Value<'_>)]) -> String {
    let file = GgufFile::open(data(&format!("models/{model}/model.gguf"))).expect("a file");
    let file = Model::open(&file).write(&file, settings, DType::F32);
    load(&file, &exact()).err().unwrap_or_else(|| panic!("{model} with {settings:?}")).to_string()
}

#[test]
fn unsupported_settings_are_rejected_by_name() {
    let cases = [
        ("qwen3moe", "expert_gating_func", Value::U32(2), "1, the softmax"),
        ("qwen3moe", "expert_weights_norm", Value::Bool(false), "true"),
        ("qwen3moe", "expert_used_count", Value::U32(9), "at most 8"),
        ("qwen3moe", "expert_used_count", Value::U32(0), "at least 1"),
        ("qwen3moe", "expert_group_count", Value::U32(2), "groups of experts"),
        ("qwen3moe", "leading_dense_block_count", Value::U32(1), "every layer has experts"),
        ("qwen3moe", "expert_count", Value::U32(7), "[64, 48, 7]"),
        ("qwen35-hybrid", "nextn_predict_layers", Value::U32(4), "fewer than the 4"),
        ("qwen35-hybrid", "ssm.time_step_rank", Value::U32(3), "a multiple of the 2"),
        ("qwen35-hybrid", "ssm.inner_size", Value::U32(63), "a multiple of the 4"),
        ("qwen35-hybrid", "ssm.conv_kernel", Value::U32(3), "[3, 128]"),
        ("qwen35-hybrid", "ssm.state_size", Value::U32(u32::MAX), "smaller"),
        ("qwen35-hybrid", "block_count", Value::U32(5), "a list of 4"),
        ("qwen35-hybrid-mtp", "full_attention_interval", Value::U32(2), "blk.1.attn_q"),
        ("qwen35-hybrid-mtp", "nextn_predict_layers", Value::U32(0), "blk.4.attn_qkv"),
        ("qwen35-hybrid-mtp", "block_count", Value::U32(u32::MAX), "blk.4"),
    ];
    for (model, key, value, expected) in cases {
        let rejection = rejection(model, &[(key, value)]);
        let named = rejection.contains(key) || rejection.contains("tensor");
        assert!(named && rejection.contains(expected), "{model} {key}: {rejection}");
    }
}
