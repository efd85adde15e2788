//! Logits, layers and greedy text of tiny models against those of other engines.

use crate::common::*;
use verbatim_engine::{Backend, HiddenOutput, LoadOptions, Sampler};
use verbatim_reference::Reference;

#[test]
fn logits_of_every_position_agree() {
    logits_agree(|| cpu(2));
}

#[test]
fn logits_of_every_position_agree_on_the_reference() {
    logits_agree(|| Reference);
}

#[test]
fn the_residual_stream_after_every_layer_agrees() {
    layers_agree(|| cpu(2));
}

#[test]
fn the_residual_stream_after_every_layer_agrees_on_the_reference() {
    layers_agree(|| Reference);
}

#[test]
fn greedy_text_is_equal() {
    greedy_text_agrees(|| cpu(2));
}

#[test]
fn greedy_text_is_equal_on_the_reference() {
    greedy_text_agrees(|| Reference);
}

fn logits_agree<B: Backend>(backend: impl Fn() -> B) {
    let references = GOLDEN_MODELS.map(|model| (model, "logits_hf"));
    for (model, name) in references.into_iter().chain([(PEER_MODEL, "logits_llamacpp")]) {
        let golden = Golden::open(&format!("models/{model}/golden.safetensors"));
        let (shape, reference) = golden.f32(name);
        let mut engine = engine_on(backend(), &format!("models/{model}/model.gguf"), exact());
        let given = logits(&mut engine, &golden.ids("token_ids"), &[512]);
        let (relative, deviations) =
            (worst_relative(&given, &reference, shape[1]), worst(&given, &reference));
        println!("{model}: logits within {relative:.1e} relative, {deviations:.1e} standard deviations");
        assert!(relative < 1e-4 && deviations < 1e-3, "{model}: {relative:e} {deviations:e}");
    }
}

fn layers_agree<B: Backend>(backend: impl Fn() -> B) {
    for model in GOLDEN_MODELS {
        let golden = Golden::open(&format!("models/{model}/golden.safetensors"));
        let mut engine = engine_on(backend(), &format!("models/{model}/model.gguf"), exact());
        let layers = engine.hyperparameters().layers;
        let mut outputs = vec![(HiddenOutput::Embedding, "hidden.embed".to_owned())];
        outputs.extend(
            (0..layers).map(|layer| (HiddenOutput::Layer(layer as u32), format!("hidden.layer{layer}"))),
        );
        outputs.push((HiddenOutput::FinalNorm, "hidden.final_norm".to_owned()));
        let points: Vec<HiddenOutput> = outputs.iter().map(|(output, _)| *output).collect();
        let given = hidden_rows(&mut engine, &golden.ids("token_ids")[..8], &points);
        let mut most = 0f64;
        for ((_, name), given) in outputs.iter().zip(&given) {
            let (shape, reference) = golden.f32(name);
            let relative = worst_relative(given, &reference, shape[1]);
            assert!(relative < 1e-4, "{model} {name}: {relative:e}");
            most = most.max(relative);
        }
        println!("{model}: {layers} layers within {most:.1e} relative");
    }
}

fn greedy_text_agrees<B: Backend>(backend: impl Fn() -> B) {
    for model in GOLDEN_MODELS.into_iter().chain([PEER_MODEL]) {
        let golden = Golden::open(&format!("models/{model}/golden.safetensors"));
        let wanted = golden.ids("greedy_ids");
        for options in [exact(), LoadOptions::default()] {
            let mut engine = engine_on(backend(), &format!("models/{model}/model.gguf"), options);
            let greedy = Sampler::greedy();
            let sequence = engine.begin().expect("free");
            let mut tokens = golden.ids("token_ids");
            let mut drawn = Vec::new();
            while drawn.len() < wanted.len() {
                let token = engine
                    .advance(sequence, &tokens, &greedy, || true)
                    .expect("fits")
                    .expect("not stopped")
                    .token;
                drawn.push(token);
                tokens = vec![token];
            }
            assert_eq!(drawn, wanted, "{model}");
        }
    }
}

/// What llama.cpp computes from the same quantised file is the yardstick: it, too, rounds activations to 8 bits.
#[test]
fn quantised_models_are_no_further_from_exact_arithmetic_than_llama_cpp() {
    let golden = Golden::open("quants/model/golden.safetensors");
    let tokens = golden.ids("token_ids");
    println!("| kind | ours: mean KL | llama.cpp: mean KL | ours: rms relative | llama.cpp: rms relative |");
    for kind in ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS"] {
        let (shape, reference) = golden.f32(&format!("{kind}.logits_hf_dequantised"));
        let (_, peer) = golden.f32(&format!("{kind}.logits_llamacpp"));
        let mut engine = engine(&format!("quants/model/qwen3-256.{kind}.gguf"), exact());
        let given = logits(&mut engine, &tokens, &[512]);
        let [ours, theirs] = [&given, &peer].map(|logits| mean_divergence(logits, &reference, shape[1]));
        let norm = root_mean_square(reference.iter().copied());
        let [our_rms, their_rms] = [&given, &peer]
            .map(|logits| root_mean_square(logits.iter().zip(&reference).map(|(a, b)| a - b)) / norm);
        println!("| {kind} | {ours:.2e} | {theirs:.2e} | {our_rms:.2e} | {their_rms:.2e} |");
        assert!(
            ours <= theirs && our_rms <= their_rms,
            "{kind}: {ours:e} {theirs:e}, {our_rms:e} {their_rms:e}"
        );
    }
}
