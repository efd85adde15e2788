//! Measurements of a model of the golden data.

use verbatim_cpu::Cpu;
use verbatim_engine::{LoadOptions, Stepper};
use verbatim_gguf::GgufFile;
use verbatim_lab::bench::{Peaks, Test, TestMatrix, Work, measure, profile};
use verbatim_simd::Isa;

fn engine(model: &str, context: usize) -> Stepper<Cpu> {
    let path = format!("{}/../../tests/data/models/{model}/model.gguf", env!("CARGO_MANIFEST_DIR"));
    let options = LoadOptions { context: Some(context), ..LoadOptions::default() };
    Stepper::load(Cpu::new(2).unwrap(), &GgufFile::open(path).unwrap(), &options).unwrap()
}

#[test]
fn every_test_is_repeated_and_leaves_the_engine_unchanged() {
    let selection = TestMatrix {
        prompts: vec![40, 600],
        generations: vec![3],
        verify_batches: vec![1, 5],
        depths: vec![0, 70],
    };
    let (tests, context) = selection.tests().unwrap();
    assert_eq!((tests.len(), context), (10, 670));
    // A recurrent model cannot go back to a depth.
    for model in ["qwen3", "qwen35-hybrid"] {
        // One sequence only: a test that kept it would leave none to the next.
        let mut engine = engine(model, context);
        for &test in &tests {
            let times = measure(&mut engine, test, 3, &mut || true).unwrap().unwrap();
            assert_eq!(times.len(), 3, "{model} {test}");
            assert!(times.iter().all(|time| time.as_nanos() > 0), "{model} {test}");
        }
    }
}

#[test]
fn a_caller_can_stop_between_steps() {
    let mut engine = engine("qwen3", 64);
    let mut steps = 0;
    let test = Test { work: Work::Generate(10), depth: 8 };
    let times = measure(&mut engine, test, 2, &mut || {
        steps += 1;
        steps < 6
    });
    assert_eq!(times.unwrap(), None);
    assert_eq!(steps, 6);
    let test = Test { work: Work::Generate(1), depth: 0 };
    assert_eq!(measure(&mut engine, test, 1, &mut || true).unwrap().unwrap().len(), 1);
}

#[test]
fn a_test_that_does_not_fit_is_an_error_and_frees_the_sequence() {
    let mut engine = engine("qwen3", 64);
    let long = Test { work: Work::Prefill(1000), depth: 0 };
    let error = measure(&mut engine, long, 1, &mut || true).unwrap_err();
    assert!(!error.to_string().is_empty());
    let short = Test { work: Work::Prefill(10), depth: 0 };
    assert!(measure(&mut engine, short, 0, &mut || true).is_err());
    assert!(measure(&mut engine, short, 1, &mut || true).unwrap().is_some());
}

#[test]
fn peaks_are_plausible() {
    for isa in Isa::supported() {
        let peaks = Peaks::measure(2, &mut Cpu::with_isa(2, isa).unwrap()).unwrap();
        assert!((0.1..10_000.0).contains(&peaks.read_gb_per_s), "{peaks:?}");
        assert!((0.1..1e6).contains(&peaks.f32_gops) && peaks.int8_gops > 0.1, "{peaks:?}");
    }
}

#[test]
fn a_profile_divides_the_time_into_parts() {
    let mut engine = engine("qwen3", 128);
    let peaks = Peaks { read_gb_per_s: 10.0, int8_gops: 200.0, f32_gops: 50.0 };
    for (work, steps) in [(Work::Prefill(40), 1), (Work::Generate(5), 5), (Work::VerifyBatch(3), 8)] {
        let test = Test { work, depth: 7 };
        let breakdown = profile(&mut engine, test, &peaks, &mut || true).unwrap().unwrap();
        assert_eq!((breakdown.test.clone(), breakdown.steps), (test.to_string(), steps));
        let shares: f64 = breakdown.parts.iter().map(|part| part.share).sum();
        let us: f64 = breakdown.parts.iter().map(|part| part.us).sum();
        assert!((shares - 1.0).abs() < 1e-6 && (us / breakdown.total_us - 1.0).abs() < 1e-6, "{breakdown:?}");
        let product = breakdown.parts.iter().find(|part| part.name == "Linear F32").unwrap();
        let rate = product.rate.unwrap();
        assert!(rate.gb_per_s > 0.0 && (rate.of_read_peak - rate.gb_per_s / 10.0).abs() < 1e-9, "{rate:?}");
        assert!(rate.gops > 0.0 && (rate.of_gops_peak - rate.gops / 50.0).abs() < 1e-9, "{rate:?}");
        let table = breakdown.table();
        let columns: Vec<usize> = table.lines().skip(3).map(|line| line.matches('|').count()).collect();
        assert!(
            columns.len() == breakdown.parts.len() + 2 && columns.iter().all(|&count| count == 9),
            "{table}"
        );
    }
    assert_eq!(
        profile(&mut engine, Test { work: Work::Prefill(4), depth: 0 }, &peaks, &mut || false).unwrap(),
        None
    );
}

#[test]
fn cache_operations_of_every_kind_of_model_are_timed() {
    use verbatim_lab::bench::cache_ops::{cache_ops, cache_ops_capacity, csv, table};
    for (model, removes) in [("qwen3", true), ("gemma3-iswa", true), ("qwen35-hybrid", false)] {
        let (sequences, context) = cache_ops_capacity(150).unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/models");
        let file = GgufFile::open(format!("{path}/{model}/model.gguf")).unwrap();
        let options = LoadOptions {
            sequences,
            context: Some(context),
            cache_bytes: 64 << 20,
            ..LoadOptions::default()
        };
        let mut engine = Stepper::load(Cpu::new(2).unwrap(), &file, &options).unwrap();
        let rows = cache_ops(&mut engine, 150, 3, &mut || true).unwrap().unwrap();
        assert!(rows.iter().all(|row| row.min_us <= row.us && row.us <= row.max_us && row.steps > 0.0));
        assert_eq!(rows.iter().any(|row| row.operation == "context shift by half"), removes);
        assert!(rows.iter().any(|row| row.operation == "reject 8"));
        assert_eq!(table(&rows).lines().count(), rows.len() + 2);
        assert_eq!(csv(&rows).lines().count(), rows.len() + 1);
        assert_eq!(cache_ops(&mut engine, 150, 1, &mut || false).unwrap(), None);
        assert!(cache_ops(&mut engine, 0, 1, &mut || true).is_err());
        engine.integrity().unwrap();
    }
}
