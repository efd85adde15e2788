//! Weights with a factor in a tensor of its own, as converters write NVFP4: `blk.0.attn_q.scale` beside
//! `blk.0.attn_q.weight`.

use crate::common::*;
use verbatim_engine::Stepper;
use verbatim_gguf::{GgufFile, GgufWriter};
use verbatim_quant::{DType, dequantize};
use verbatim_reference::Reference;

/// The tensors of a model file, to be written again.
struct Tensors(Vec<(String, DType, Vec<usize>, Vec<u8>)>);

impl Tensors {
    fn push(&mut self, name: String, dims: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.0.push((name, DType::F32, dims.to_vec(), bytes));
    }

    fn write(&self, file: &GgufFile) -> GgufFile {
        let mut writer = GgufWriter::new();
        for (key, value) in file.metadata().iter() {
            writer.put(key, value).expect("fits");
        }
        for (name, dtype, dims, _) in &self.0 {
            writer.declare(name, *dtype, dims).expect("fits");
        }
        let mut data = writer.begin(Vec::new()).expect("memory");
        for (name, _, _, bytes) in &self.0 {
            data.append(name, bytes).expect("memory");
        }
        GgufFile::from_bytes(data.finish().expect("complete")).expect("a file")
    }
}

/// NVFP4 blocks of 64 elements with scales from 0.25 to 1.9.
fn nvfp4(elements: usize, seed: usize) -> Vec<u8> {
    let byte = |i: usize| (i.wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8;
    let blocks = (0..elements / 64).flat_map(|block| {
        (0..36).map(move |i| match byte(block * 36 + i) {
            scale if i < 4 => 0x28 + scale % 0x18,
            quants => quants,
        })
    });
    blocks.collect()
}

/// The file with its linear layers in NVFP4 and factors beside them, and the same in F32 with the factors multiplied in.
/// `factors` of the experts of a layer.
fn scaled(file: &GgufFile, factors: impl Fn(usize) -> Vec<f32>) -> [GgufFile; 2] {
    let [mut with_factors, mut plain] = [Tensors(Vec::new()), Tensors(Vec::new())];
    let mut layers = 0;
    for tensor in file.iter_tensors() {
        let (name, dims) = (tensor.name(), tensor.dims());
        let base = name.strip_suffix(".weight").filter(|base| base.starts_with("blk."));
        let Some(base) = base.filter(|base| dims.len() > 1 && !base.ends_with("_inp") && dims[0] % 64 == 0)
        else {
            for tensors in [&mut with_factors, &mut plain] {
                tensors.0.push((
                    name.into(),
                    tensor.dtype(),
                    dims.to_vec(),
                    tensor.data().expect("readable").to_vec(),
                ));
            }
            continue;
        };
        layers += 1;
        let elements: usize = dims.iter().product();
        let factors = factors(dims.get(2).copied().unwrap_or(1));
        let bytes = nvfp4(elements, layers);
        let mut values = vec![0.0; elements];
        dequantize(DType::NVFP4, &bytes, &mut values).expect("blocks");
        let expert = elements / factors.len();
        let values: Vec<f32> = values.iter().enumerate().map(|(i, x)| x * factors[i / expert]).collect();
        plain.push(name.into(), dims, &values);
        with_factors.0.push((name.into(), DType::NVFP4, dims.to_vec(), bytes));
        with_factors.push(format!("{base}.scale"), &[factors.len()], &factors);
        with_factors.push(format!("{base}.input_scale"), &[factors.len()], &vec![0.01; factors.len()]);
    }
    assert!(layers > 5);
    [with_factors, plain].map(|tensors| tensors.write(file))
}

fn run(file: &GgufFile) -> Vec<f32> {
    let mut engine = Stepper::load(Reference, file, &exact()).unwrap_or_else(|error| panic!("{error}"));
    logits(&mut engine, &[3, 14, 15, 92, 65], &[5])
}

#[test]
fn llama_cpp_23563_and_27736_nvfp4_weights_are_multiplied_by_their_scale() {
    for model in ["llama-gqa-tied", "qwen2-bias", "qwen3moe", "qwen35-hybrid"] {
        let file = model_file(&format!("models/{model}/model.gguf"));
        let vocabulary = file.require_tensor("token_embd.weight").expect("there").dims()[1];
        let [with_factors, plain] = scaled(&file, |experts| vec![0.0137; experts]);
        let relative = worst_relative(&run(&with_factors), &run(&plain), vocabulary);
        println!("{model}: logits within {relative:.1e} relative");
        assert!(relative < 1e-4, "{model}: {relative:e}");
        let [without, _] = scaled(&file, |experts| vec![0.02; experts]);
        let relative = worst_relative(&run(&without), &run(&plain), vocabulary);
        assert!(relative > 1e-3, "{model}: the factor matters: {relative:e}");
        // The fast backend quantises activations.
        let mut engine = load(&with_factors, &exact()).expect("a model");
        let fast = logits(&mut engine, &[3, 14, 15, 92, 65], &[5]);
        let relative = worst_relative(&fast, &run(&plain), vocabulary);
        assert!(relative < 0.1, "{model}: {relative:e}");
    }
}

#[test]
fn factors_that_cannot_be_applied_are_rejected_by_name() {
    let rejection = |model: &str, factor: fn(usize) -> f32| {
        let file = model_file(&format!("models/{model}/model.gguf"));
        let [with_factors, _] = scaled(&file, |experts| (0..experts).map(factor).collect());
        load(&with_factors, &exact()).err().expect("rejected").to_string()
    };
    let message = rejection("qwen3moe", |expert| 1.0 + expert as f32);
    assert!(message.contains("_exps.scale") && message.contains("different experts"), "{message}");
    let message = rejection("llama-gqa-tied", |_| f32::NAN);
    assert!(message.contains(".scale") && message.contains("NaN"), "{message}");
}
