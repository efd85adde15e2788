//! Logits of small random models, of the architectures without golden data, against a plain reference in f64; and what
//! such files must not say.

mod common;

use common::synthetic::VOCABULARY;
use common::*;
use verbatim_engine::Tap;

/// Longer than every window, and than two blocks of the attention's order.
fn tokens() -> Vec<u32> {
    (0..150).map(|i| (i * i * 31 + i * 7 + 3) % VOCABULARY as u32).collect()
}

#[test]
fn logits_agree_with_the_reference() {
    for model in synthetic::all() {
        let reference = model.logits(&tokens());
        let mut engine = engine(&format!("synthetic/{}", model.name), exact());
        let given = logits(&mut engine, &tokens(), &[512]);
        let (relative, deviations) = (worst_relative(&given, &reference, VOCABULARY), worst(&given, &reference));
        println!("{}: logits within {relative:.1e} relative, {deviations:.1e} deviations", model.name);
        assert!(relative < 1e-4 && deviations < 1e-3, "{}: {relative:e} {deviations:e}", model.name);
    }
}

#[test]
fn every_point_can_be_tapped() {
    for model in synthetic::all() {
        let mut engine = engine(&format!("synthetic/{}", model.name), exact());
        let layers = engine.hyperparameters().layers as u32;
        let mut taps = vec![Tap::Embedding, Tap::FinalNorm];
        taps.extend((0..layers).map(Tap::Layer));
        let hidden = engine.hyperparameters().hidden;
        let values = tap_rows(&mut engine, &tokens()[..3], &taps);
        for (tap, values) in taps.iter().zip(values) {
            assert_eq!(values.len(), 3 * hidden, "{} {tap:?}", model.name);
            assert!(values.iter().all(|x| x.is_finite()) && values.iter().any(|x| *x != 0.0));
        }
    }
}
