use std::time::Instant;
use verbatim_engine::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let t = Instant::now();
    let file = verbatim_gguf::GgufFile::open(&args[1]).unwrap();
    let threads = args.get(2).map_or(2, |x| x.parse().unwrap());
    let mut engine = Engine::load(&file, &LoadOptions { threads, ..Default::default() }).unwrap();
    println!(
        "load {:?} weights {} MB file {} MB",
        t.elapsed(),
        engine.weight_bytes() >> 20,
        file.bytes_total() >> 20
    );
    let greedy = Sampler::new(0.0, 0).unwrap();
    for _ in 0..3 {
        let s = engine.begin().unwrap();
        let prompt: Vec<u32> = (0..512).map(|i| 1000 + i * 7).collect();
        let t = Instant::now();
        let mut token = engine.advance(s, &prompt, &greedy, || true).unwrap().unwrap();
        let p = t.elapsed();
        engine.truncate(s, 8).unwrap();
        let t = Instant::now();
        for _ in 0..128 {
            token = engine.advance(s, &[token], &greedy, || true).unwrap().unwrap();
        }
        let d = t.elapsed();
        let t = Instant::now();
        let mut w = vec![];
        for width in [1, 2, 4, 8, 16] {
            let t = Instant::now();
            for _ in 0..20 {
                let start = engine.append(s, width).unwrap();
                let rows: Vec<Row> = (0..width)
                    .map(|i| Row {
                        sequence: s,
                        position: start + i,
                        token: 5 + i as u32,
                        wants_logits: true,
                    })
                    .collect();
                engine.step(&rows, vec![]).unwrap();
                engine.rollback(s).unwrap();
            }
            w.push((width, t.elapsed().as_secs_f64() / 20.0 * 1e3));
        }
        let _ = t;
        println!(
            "pp512 {:.1} tok/s, tg128 {:.1} tok/s, widths {:.2?}",
            512.0 / p.as_secs_f64(),
            128.0 / d.as_secs_f64(),
            w
        );
        engine.end(s).unwrap();
    }
    println!("{:?}", engine.statistics());
}
