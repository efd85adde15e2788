//! Small models with random weights for architectures that have no golden data: each is described once, written as a
//! GGUF file from its description, and computed from it in f64, in the most straightforward way, as a reference.

use std::collections::BTreeMap;
use verbatim_gguf::{GgufFile, GgufWriter};
use verbatim_graph::random::Random;
use verbatim_quant::DType;

/// A model: what its file says and how its reference computes. The numbers are the reference's own reading of the
/// architecture, not the engine's.
#[derive(Clone)]
pub struct Synthetic {
    pub name: &'static str,
    architecture: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn: usize,
    interleaved: bool,
    uses_rope: fn(usize) -> bool,
    rotary_dim: usize,
    base: f64,
    /// Positions are divided by this where a layer sees everything.
    rope_factor: f64,
    local_base: f64,
    window: Option<usize>,
    is_windowed: fn(usize) -> bool,
    norms_before: bool,
    norms_after: bool,
    qk_norms: QkNorms,
    gelu: bool,
    fused: bool,
    biases: bool,
    embedding_scale: f64,
    attention_scale: f64,
    attention_softcap: Option<f64>,
    residual_scale: f64,
    logit_divisor: f64,
    logit_softcap: Option<f64>,
    long_rope: Option<LongRope>,
    yarn: Option<Yarn>,
    sinks: bool,
    experts: Option<Experts>,
    /// The tensor that norms what the feed-forward network reads.
    ffn_norm: &'static str,
    tied: bool,
    /// Metadata beside the sizes.
    keys: Vec<(&'static str, Key)>,
}

#[derive(Clone, Copy, PartialEq)]
enum QkNorms {
    None,
    Heads,
    Rows,
}

#[derive(Clone, Copy)]
struct LongRope {
    /// Whether sequences may outgrow the original context.
    long: bool,
    attention_factor: f64,
}

/// YaRN without rounding.
#[derive(Clone, Copy)]
struct Yarn {
    factor: f64,
    original_context: f64,
    beta_fast: f64,
    beta_slow: f64,
}

/// A mixture of experts as gpt-oss has it.
#[derive(Clone, Copy)]
struct Experts {
    all: usize,
    used: usize,
}

/// A value of a metadata key.
#[derive(Clone, Copy)]
pub enum Key {
    Count(u32),
    Real(f32),
    Bool(bool),
    Text(&'static str),
    Bools(&'static [bool]),
}

pub const VOCABULARY: usize = 320;

/// All of them.
pub fn all() -> Vec<Synthetic> {
    let llama = Synthetic {
        name: "llama",
        architecture: "llama",
        layers: 3,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 96,
        interleaved: true,
        uses_rope: |_| true,
        rotary_dim: 16,
        base: 10_000.0,
        rope_factor: 1.0,
        local_base: 10_000.0,
        window: None,
        is_windowed: |_| false,
        norms_before: true,
        norms_after: false,
        qk_norms: QkNorms::None,
        gelu: false,
        fused: false,
        biases: true,
        embedding_scale: 1.0,
        attention_scale: 0.25,
        attention_softcap: None,
        residual_scale: 1.0,
        logit_divisor: 1.0,
        logit_softcap: None,
        long_rope: None,
        yarn: None,
        sinks: false,
        experts: None,
        ffn_norm: "ffn_norm",
        tied: false,
        keys: vec![],
    };
    let gemma2 = Synthetic {
        name: "gemma2",
        architecture: "gemma2",
        layers: 4,
        head_dim: 24,
        rotary_dim: 24,
        interleaved: false,
        window: Some(20),
        is_windowed: |layer| layer % 2 == 0,
        norms_after: true,
        gelu: true,
        biases: false,
        embedding_scale: 8.0,
        attention_scale: 24f64.sqrt().recip(),
        attention_softcap: Some(1.5),
        logit_softcap: Some(2.0),
        tied: true,
        keys: vec![
            ("attention.key_length", Key::Count(24)),
            ("attention.value_length", Key::Count(24)),
            ("attention.sliding_window", Key::Count(20)),
            ("attn_logit_softcapping", Key::Real(1.5)),
            ("final_logit_softcapping", Key::Real(2.0)),
        ],
        ..llama.clone()
    };
    let gemma3 = Synthetic {
        name: "gemma3-rope-factor",
        architecture: "gemma3",
        layers: 7,
        base: 1_000_000.0,
        rope_factor: 8.0,
        window: Some(70),
        is_windowed: |layer| layer % 3 != 2,
        qk_norms: QkNorms::Heads,
        attention_softcap: None,
        logit_softcap: None,
        keys: vec![
            ("attention.key_length", Key::Count(24)),
            ("attention.sliding_window", Key::Count(70)),
            ("attention.sliding_window_pattern", Key::Count(3)),
            ("rope.freq_base", Key::Real(1_000_000.0)),
            ("rope.scaling.type", Key::Text("linear")),
            ("rope.scaling.factor", Key::Real(8.0)),
        ],
        ..gemma2.clone()
    };
    let phi3 = Synthetic {
        name: "phi3-short",
        architecture: "phi3",
        interleaved: false,
        rotary_dim: 12,
        window: Some(90),
        is_windowed: |_| true,
        fused: true,
        biases: false,
        long_rope: Some(LongRope { long: false, attention_factor: 1.2 }),
        keys: vec![
            ("rope.dimension_count", Key::Count(12)),
            ("attention.sliding_window", Key::Count(90)),
            ("rope.scaling.attn_factor", Key::Real(1.2)),
            ("rope.scaling.original_context_length", Key::Count(512)),
        ],
        ..llama.clone()
    };
    let phi3_long = Synthetic {
        name: "phi3-long",
        window: None,
        is_windowed: |_| false,
        // The context is 512: √(1 + ln 4 / ln 128).
        long_rope: Some(LongRope { long: true, attention_factor: (1.0 + 4f64.ln() / 128f64.ln()).sqrt() }),
        keys: vec![
            ("rope.dimension_count", Key::Count(12)),
            ("rope.scaling.type", Key::Text("longrope")),
            ("rope.scaling.original_context_length", Key::Count(128)),
        ],
        ..phi3.clone()
    };
    let granite = Synthetic {
        name: "granite",
        architecture: "granite",
        biases: false,
        embedding_scale: 3.0,
        attention_scale: 0.4,
        residual_scale: 0.22,
        logit_divisor: 4.0,
        keys: vec![
            ("embedding_scale", Key::Real(3.0)),
            ("attention.scale", Key::Real(0.4)),
            ("residual_scale", Key::Real(0.22)),
            ("logit_scale", Key::Real(4.0)),
        ],
        ..llama.clone()
    };
    let olmo2 = Synthetic {
        name: "olmo2",
        architecture: "olmo2",
        interleaved: false,
        norms_before: false,
        norms_after: true,
        qk_norms: QkNorms::Rows,
        biases: false,
        ..llama.clone()
    };
    let gpt_oss = Synthetic {
        name: "gpt-oss",
        architecture: "gpt-oss",
        layers: 4,
        interleaved: false,
        head_dim: 32,
        rotary_dim: 32,
        base: 150_000.0,
        local_base: 150_000.0,
        attention_scale: 32f64.sqrt().recip(),
        window: Some(40),
        is_windowed: |layer| layer % 2 == 0,
        yarn: Some(Yarn { factor: 32.0, original_context: 64.0, beta_fast: 8.0, beta_slow: 1.0 }),
        sinks: true,
        experts: Some(Experts { all: 6, used: 3 }),
        ffn_norm: "post_attention_norm",
        keys: vec![
            ("attention.key_length", Key::Count(32)),
            ("attention.value_length", Key::Count(32)),
            ("attention.sliding_window", Key::Count(40)),
            ("expert_count", Key::Count(6)),
            ("expert_used_count", Key::Count(3)),
            ("expert_feed_forward_length", Key::Count(96)),
            ("rope.freq_base", Key::Real(150_000.0)),
            ("rope.scaling.type", Key::Text("yarn")),
            ("rope.scaling.factor", Key::Real(32.0)),
            ("rope.scaling.original_context_length", Key::Count(64)),
            ("rope.scaling.yarn_beta_fast", Key::Real(8.0)),
        ],
        ..llama.clone()
    };
    let smollm3 = Synthetic {
        name: "smollm3",
        architecture: "smollm3",
        layers: 5,
        uses_rope: |layer| layer % 4 != 3,
        biases: false,
        tied: true,
        ..llama.clone()
    };
    vec![llama, gemma2, gemma3, phi3, phi3_long, granite, olmo2, gpt_oss, smollm3]
}

/// One of them.
pub fn named(name: &str) -> Synthetic {
    all().into_iter().find(|model| model.name == name).unwrap_or_else(|| panic!("no model {name}"))
}

/// A tensor: extents in the file's order, fastest first, and the values.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

impl Synthetic {
    /// The same weights in a file with another value of a key.
    pub fn with(mut self, name: &'static str, key: Key) -> Synthetic {
        self.keys.retain(|(other, _)| *other != name);
        self.keys.push((name, key));
        self
    }

    pub fn file(&self) -> GgufFile {
        let mut writer = GgufWriter::new();
        writer.put("general.architecture", self.architecture).expect("a fresh key");
        let sizes = [
            ("block_count", self.layers),
            ("context_length", 512),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
        ];
        let mut put = |name: &str, key: Key| {
            let name = format!("{}.{name}", self.architecture);
            match key {
                Key::Count(count) => writer.put(&name, count),
                Key::Real(real) => writer.put(&name, real),
                Key::Bool(value) => writer.put(&name, value),
                Key::Text(text) => writer.put(&name, text),
                Key::Bools(values) => writer.put_array(&name, values),
            }
            .expect("a fresh key");
        };
        sizes.into_iter().for_each(|(name, size)| put(name, Key::Count(size as u32)));
        put("attention.layer_norm_rms_epsilon", Key::Real(1e-5));
        self.keys.iter().for_each(|(name, key)| put(name, *key));
        let tensors = self.tensors();
        for (name, (dims, _)) in &tensors {
            writer.declare(name, DType::F32, dims).expect("a fresh tensor");
        }
        let mut data = writer.begin(Vec::new()).expect("written to memory");
        for (name, (_, values)) in &tensors {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            data.append(name, &bytes).expect("its turn");
        }
        GgufFile::from_bytes(data.finish().expect("complete")).expect("a valid file")
    }

    fn tensors(&self) -> Tensors {
        let mut random = Random(self.name.bytes().map(u64::from).sum());
        let mut tensors = Tensors::new();
        let mut add = |name: &str, dims: &[usize], about: f32, spread: f32| {
            let values = (0..dims.iter().product()).map(|_| about + spread * random.unit()).collect();
            tensors.insert(name.to_owned(), (dims.to_vec(), values));
        };
        let spread = |k: usize| (3.0 / k as f32).sqrt();
        add("token_embd.weight", &[self.hidden, VOCABULARY], 0.0, if self.tied { 0.3 } else { 1.0 });
        add("output_norm.weight", &[self.hidden], 1.0, 0.5);
        if !self.tied {
            add("output.weight", &[self.hidden, VOCABULARY], 0.0, spread(self.hidden));
        }
        if self.long_rope.is_some() {
            add("rope_factors_short.weight", &[self.rotary_dim / 2], 1.5, 0.5);
            add("rope_factors_long.weight", &[self.rotary_dim / 2], 8.0, 5.0);
        }
        let (q_width, kv_width) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        for layer in 0..self.layers {
            let mut linear = |part: &str, k: usize, n: usize| {
                add(&format!("blk.{layer}.{part}.weight"), &[k, n], 0.0, spread(k));
                if self.biases {
                    add(&format!("blk.{layer}.{part}.bias"), &[n], 0.0, 0.5);
                }
            };
            if self.fused {
                linear("attn_qkv", self.hidden, q_width + 2 * kv_width);
            } else {
                linear("attn_q", self.hidden, q_width);
                linear("attn_k", self.hidden, kv_width);
                linear("attn_v", self.hidden, kv_width);
            }
            linear("attn_output", q_width, self.hidden);
            if let Some(experts) = self.experts {
                linear("ffn_gate_inp", self.hidden, experts.all);
                let (hidden, ffn) = (self.hidden, self.ffn);
                for (part, k, n) in [("gate", hidden, ffn), ("up", hidden, ffn), ("down", ffn, hidden)] {
                    let name = format!("blk.{layer}.ffn_{part}_exps");
                    // Large enough that the clamps bite.
                    add(&format!("{name}.weight"), &[k, n, experts.all], 0.0, 4.0 * spread(k));
                    add(&format!("{name}.bias"), &[n, experts.all], 0.0, 0.5);
                }
            } else {
                linear("ffn_down", self.ffn, self.hidden);
                linear("ffn_up", self.hidden, if self.fused { 2 * self.ffn } else { self.ffn });
                if !self.fused {
                    linear("ffn_gate", self.hidden, self.ffn);
                }
            }
            if self.sinks {
                add(&format!("blk.{layer}.attn_sinks.weight"), &[self.heads], 1.0, 1.0);
            }
            let mut norm = |part: &str, n: usize| add(&format!("blk.{layer}.{part}.weight"), &[n], 1.0, 0.5);
            if self.norms_before {
                norm("attn_norm", self.hidden);
                norm(self.ffn_norm, self.hidden);
            }
            if self.norms_after {
                norm("post_attention_norm", self.hidden);
                norm("post_ffw_norm", self.hidden);
            }
            match self.qk_norms {
                QkNorms::None => {}
                QkNorms::Heads => {
                    ["attn_q_norm", "attn_k_norm"].iter().for_each(|part| norm(part, self.head_dim))
                }
                QkNorms::Rows => {
                    norm("attn_q_norm", q_width);
                    norm("attn_k_norm", kv_width);
                }
            }
        }
        tensors
    }

    /// Logits after every token, in f64.
    pub fn logits(&self, tokens: &[u32]) -> Vec<f32> {
        let reference = Reference { model: self, tensors: self.tensors() };
        let mut x: Vec<Vec<f64>> = tokens.iter().map(|&token| reference.embed(token)).collect();
        for layer in 0..self.layers {
            reference
                .half(&mut x, layer, ["attn_norm", "post_attention_norm"], |x| reference.attend(x, layer));
            reference.half(&mut x, layer, [self.ffn_norm, "post_ffw_norm"], |x| {
                x.iter().map(|x| reference.feed_forward(x, layer)).collect()
            });
        }
        x.iter().flat_map(|x| reference.head(x)).map(|x| x as f32).collect()
    }
}

struct Reference<'a> {
    model: &'a Synthetic,
    tensors: Tensors,
}

impl Reference<'_> {
    fn values(&self, name: &str) -> &[f32] {
        &self.tensors.get(name).unwrap_or_else(|| panic!("no tensor {name}")).1
    }

    fn embed(&self, token: u32) -> Vec<f64> {
        let row =
            &self.values("token_embd.weight")[token as usize * self.model.hidden..][..self.model.hidden];
        row.iter().map(|x| f64::from(*x) * self.model.embedding_scale).collect()
    }

    /// Norm, `f`, norm, scale, add.
    fn half(
        &self,
        x: &mut [Vec<f64>],
        layer: usize,
        [before, after]: [&str; 2],
        f: impl Fn(&[Vec<f64>]) -> Vec<Vec<f64>>,
    ) {
        let norm = |x: &[f64], part: &str| self.norm(x, &format!("blk.{layer}.{part}.weight"));
        let read = x.iter().map(|x| if self.model.norms_before { norm(x, before) } else { x.clone() });
        let made = f(&read.collect::<Vec<_>>());
        for (x, made) in x.iter_mut().zip(made) {
            let made = if self.model.norms_after { norm(&made, after) } else { made };
            x.iter_mut().zip(made).for_each(|(x, made)| *x += made * self.model.residual_scale);
        }
    }

    fn norm(&self, x: &[f64], weight: &str) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let weight = self.values(weight);
        assert_eq!(weight.len(), x.len());
        x.iter().zip(weight).map(|(x, w)| x / (mean + f64::from(1e-5f32)).sqrt() * f64::from(*w)).collect()
    }

    fn linear(&self, x: &[f64], name: &str) -> Vec<f64> {
        let rows = self.values(&format!("{name}.weight")).chunks_exact(x.len());
        let bias = self.tensors.get(&format!("{name}.bias")).map(|(_, bias)| bias);
        rows.enumerate()
            .map(|(i, row)| {
                let product = row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
                product + bias.map_or(0.0, |bias| f64::from(bias[i]))
            })
            .collect()
    }

    fn attend(&self, x: &[Vec<f64>], layer: usize) -> Vec<Vec<f64>> {
        let Synthetic { heads, kv_heads, head_dim, .. } = *self.model;
        let windowed = (self.model.is_windowed)(layer);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (mut qs, mut ks, mut vs) = (vec![], vec![], vec![]);
        for (position, x) in x.iter().enumerate() {
            let [q, k, v] = if self.model.fused {
                let all = self.linear(x, &name("attn_qkv"));
                let (q, kv) = all.split_at(heads * head_dim);
                let (k, v) = kv.split_at(kv_heads * head_dim);
                [q.to_vec(), k.to_vec(), v.to_vec()]
            } else {
                ["attn_q", "attn_k", "attn_v"].map(|part| self.linear(x, &name(part)))
            };
            let [q, k] = [(q, "attn_q_norm.weight"), (k, "attn_k_norm.weight")].map(|(x, norm)| {
                let x = self.qk_norm(&x, &name(norm));
                if (self.model.uses_rope)(layer) { self.rope(&x, position, windowed) } else { x }
            });
            qs.push(q);
            ks.push(k);
            vs.push(v);
        }
        let window = self.model.window.filter(|_| windowed).unwrap_or(usize::MAX);
        let row = |position: usize| -> Vec<f64> {
            let seen = (position + 1).saturating_sub(window)..position + 1;
            let head = |head: usize| {
                let part = |row: &[f64]| row[head / (heads / kv_heads) * head_dim..][..head_dim].to_vec();
                let q = &qs[position][head * head_dim..][..head_dim];
                let weight = |i: usize| self.score(q, &part(&ks[i])).exp();
                let sink = if self.model.sinks {
                    self.values(&name("attn_sinks.weight"))[head]
                } else {
                    f32::NEG_INFINITY
                };
                let total: f64 = seen.clone().map(weight).sum::<f64>() + f64::from(sink).exp();
                let mut out = vec![0.0; head_dim];
                for i in seen.clone() {
                    out.iter_mut().zip(part(&vs[i])).for_each(|(out, v)| *out += weight(i) / total * v);
                }
                out
            };
            self.linear(&(0..heads).flat_map(head).collect::<Vec<_>>(), &name("attn_output"))
        };
        (0..x.len()).map(row).collect()
    }

    fn score(&self, q: &[f64], k: &[f64]) -> f64 {
        let score = q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * self.model.attention_scale;
        self.model.attention_softcap.map_or(score, |cap| cap * (score / cap).tanh())
    }

    fn qk_norm(&self, x: &[f64], weight: &str) -> Vec<f64> {
        match self.model.qk_norms {
            QkNorms::None => x.to_vec(),
            QkNorms::Heads => {
                x.chunks(self.model.head_dim).flat_map(|head| self.norm(head, weight)).collect()
            }
            QkNorms::Rows => self.norm(x, weight),
        }
    }

    fn rope(&self, x: &[f64], position: usize, windowed: bool) -> Vec<f64> {
        let Synthetic { rotary_dim, head_dim, long_rope, .. } = *self.model;
        let (base, rope_factor) = match windowed {
            true => (self.model.local_base, 1.0),
            false => (self.model.base, self.model.rope_factor),
        };
        let freq_factors = long_rope.map(|rope| {
            self.values(if rope.long { "rope_factors_long.weight" } else { "rope_factors_short.weight" })
        });
        let mscale = match (long_rope, self.model.yarn) {
            (Some(rope), _) => rope.attention_factor,
            (_, Some(yarn)) => 1.0 + 0.1 * yarn.factor.ln(),
            _ => 1.0,
        };
        let mut x = x.to_vec();
        for head in x.chunks_exact_mut(head_dim) {
            for pair in 0..rotary_dim / 2 {
                let frequency = base.powf(-2.0 * pair as f64 / rotary_dim as f64) / rope_factor;
                let frequency =
                    frequency / freq_factors.map_or(1.0, |freq_factors| f64::from(freq_factors[pair]));
                let frequency = self.model.yarn.map_or(frequency, |yarn| {
                    // The turns that this pair makes over the original context decide how much it is interpolated.
                    let pair_of = |turns: f64| {
                        let ratio = yarn.original_context / (turns * 2.0 * std::f64::consts::PI);
                        rotary_dim as f64 / 2.0 * ratio.ln() / base.ln()
                    };
                    let (low, high) = (pair_of(yarn.beta_fast).max(0.0), pair_of(yarn.beta_slow));
                    let ramp = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    frequency * (1.0 - ramp) + frequency / yarn.factor * ramp
                });
                let (sine, cosine) = (position as f64 * frequency).sin_cos();
                let [a, b] = if self.model.interleaved {
                    [2 * pair, 2 * pair + 1]
                } else {
                    [pair, pair + rotary_dim / 2]
                };
                (head[a], head[b]) = (
                    mscale * (head[a] * cosine - head[b] * sine),
                    mscale * (head[a] * sine + head[b] * cosine),
                );
            }
        }
        x
    }

    /// The softmax over the largest router logits weighs the experts.
    fn mixture(&self, x: &[f64], layer: usize, experts: Experts) -> Vec<f64> {
        let logits = self.linear(x, &format!("blk.{layer}.ffn_gate_inp"));
        let mut order: Vec<usize> = (0..experts.all).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let chosen = &order[..experts.used];
        let total: f64 = chosen.iter().map(|&expert| logits[expert].exp()).sum();
        let mut out = vec![0.0; x.len()];
        for &expert in chosen {
            let project = |x: &[f64], part: &str, n: usize| -> Vec<f64> {
                let name = format!("blk.{layer}.ffn_{part}_exps");
                let weight = &self.values(&format!("{name}.weight"))[expert * n * x.len()..][..n * x.len()];
                let bias = &self.values(&format!("{name}.bias"))[expert * n..][..n];
                let rows = weight.chunks_exact(x.len()).zip(bias);
                rows.map(|(row, bias)| {
                    row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() + f64::from(*bias)
                })
                .collect()
            };
            let (gate, up) = (project(x, "gate", self.model.ffn), project(x, "up", self.model.ffn));
            let unit = |(gate, up): (f64, f64)| {
                let gate = gate.min(7.0);
                gate / (1.0 + (-1.702 * gate).exp()) * (up.clamp(-7.0, 7.0) + 1.0)
            };
            let inner: Vec<f64> = gate.into_iter().zip(up).map(unit).collect();
            let weight = logits[expert].exp() / total;
            let result = project(&inner, "down", x.len());
            out.iter_mut().zip(result).for_each(|(out, x)| *out += weight * x);
        }
        out
    }

    fn feed_forward(&self, x: &[f64], layer: usize) -> Vec<f64> {
        if let Some(experts) = self.model.experts {
            return self.mixture(x, layer, experts);
        }
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (gate, up) = if self.model.fused {
            let both = self.linear(x, &name("ffn_up"));
            (both[..self.model.ffn].to_vec(), both[self.model.ffn..].to_vec())
        } else {
            (self.linear(x, &name("ffn_gate")), self.linear(x, &name("ffn_up")))
        };
        let activation = |x: f64| match self.model.gelu {
            true => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
            false => x / (1.0 + (-x).exp()),
        };
        let inner: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| activation(*gate) * up).collect();
        self.linear(&inner, &name("ffn_down"))
    }

    fn head(&self, x: &[f64]) -> Vec<f64> {
        let normed = self.norm(x, "output_norm.weight");
        let logits = self.linear(&normed, if self.model.tied { "token_embd" } else { "output" });
        let capped = |x: f64| self.model.logit_softcap.map_or(x, |cap| cap * (x / cap).tanh());
        logits.into_iter().map(|x| capped(x / self.model.logit_divisor)).collect()
    }
}
