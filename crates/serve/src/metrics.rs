//! Counters for monitoring, in Prometheus' text format: by llama.cpp's names, and by vLLM's, which routers and autoscalers read.

use crate::options::ServedModel;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use verbatim_engine::{EngineStatus, FinishReason, GenerationStats};

type Seconds = Counter<f64, AtomicU64>;
type Level = Gauge<f64, AtomicU64>;
type ByReason = Family<[(&'static str, &'static str); 1], Counter>;

/// Bounds of histograms, in seconds: vLLM's.
const TTFT: [f64; 17] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0, 160.0];
const BETWEEN: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5];
const WHOLE: [f64; 13] = [0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0];

/// The metrics of a server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    counters: Counters,
    levels: Levels,
    first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
    finished: ByReason,
}

#[derive(Debug, Default)]
struct Counters {
    prompt_tokens: Counter,
    computed_tokens: Counter,
    prompt_seconds: Seconds,
    generated_tokens: Counter,
    generation_seconds: Seconds,
    cache_hits: Counter,
    drafted: Counter,
    accepted: Counter,
    rejected: Counter,
    failed: Counter,
}

/// What is so at the moment.
#[derive(Debug, Default)]
struct Levels {
    running: Level,
    waiting: Level,
    cache_usage: Level,
    cached_bytes: Level,
    plans_built: Level,
    plan_hits: Level,
    prompt_rate: Level,
    generation_rate: Level,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Metrics {
            registry: Mutex::default(),
            counters: Counters::default(),
            levels: Levels::default(),
            first_token: Histogram::new(TTFT),
            between_tokens: Histogram::new(BETWEEN),
            whole: Histogram::new(WHOLE),
            finished: Family::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&self) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        self.register_llama(&mut registry);
        self.register_vllm(&mut registry);
        let Metrics { counters, levels, .. } = self;
        let mut add =
            |name: &str, help: &str, metric: &dyn CloneMetric| metric.register(&mut registry, name, help);
        add("verbatim:requests_rejected", "Requests rejected because the queue was full", &counters.rejected);
        add("verbatim:requests_failed", "Requests that failed", &counters.failed);
        add(
            "verbatim:prefix_cache_bytes",
            "Bytes in the prefix cache that no slot uses",
            &levels.cached_bytes,
        );
        add("verbatim:plans_built", "Programs that were planned and compiled", &levels.plans_built);
        add("verbatim:plan_cache_hits", "Steps that used a compiled program", &levels.plan_hits);
    }

    fn register_llama(&self, registry: &mut Registry) {
        let Metrics { counters, levels, .. } = self;
        let mut add = |name: &str, help: &str, metric: &dyn CloneMetric| {
            metric.register(registry, &format!("llamacpp:{name}"), help);
        };
        add("prompt_tokens", "Prompt tokens processed", &counters.computed_tokens);
        add("prompt_seconds", "Prompt process time", &counters.prompt_seconds);
        add("tokens_predicted", "Generated tokens processed", &counters.generated_tokens);
        add("tokens_predicted_seconds", "Predict process time", &counters.generation_seconds);
        add("prompt_tokens_seconds", "Average prompt throughput in tokens/s", &levels.prompt_rate);
        add("predicted_tokens_seconds", "Average generation throughput in tokens/s", &levels.generation_rate);
        add("kv_cache_usage_ratio", "Share of the KV cache in use, 1 is full", &levels.cache_usage);
        add("requests_processing", "Requests that run", &levels.running);
        add("requests_deferred", "Requests that wait for a slot", &levels.waiting);
    }

    fn register_vllm(&self, registry: &mut Registry) {
        let Metrics { counters, levels, .. } = self;
        let mut add = |name: &str, help: &str, metric: &dyn CloneMetric| {
            metric.register(registry, &format!("vllm:{name}"), help);
        };
        add("num_requests_running", "Requests that run", &levels.running);
        add("num_requests_waiting", "Requests that wait for a slot", &levels.waiting);
        add("kv_cache_usage_perc", "Share of the KV cache in use, 1 is full", &levels.cache_usage);
        add("prompt_tokens", "Tokens of prompts", &counters.prompt_tokens);
        add("generation_tokens", "Tokens generated", &counters.generated_tokens);
        add("prefix_cache_queries", "Tokens looked up in the prefix cache", &counters.prompt_tokens);
        add("prefix_cache_hits", "Tokens found in the prefix cache", &counters.cache_hits);
        add("spec_decode_num_draft_tokens", "Draft tokens that were verified", &counters.drafted);
        add("spec_decode_num_accepted_tokens", "Draft tokens that were accepted", &counters.accepted);
        add("request_success", "Requests that ended, by reason", &self.finished);
        add("time_to_first_token_seconds", "From a request to its first text", &self.first_token);
        add("inter_token_latency_seconds", "Time of each further token", &self.between_tokens);
        add("e2e_request_latency_seconds", "From a request to its end", &self.whole);
    }

    /// Adds what is known of the model.
    pub(crate) fn set_model(&self, model: &ServedModel) {
        let pages = model.slots * model.engine.context().div_ceil(verbatim_engine::PAGE_CELLS);
        let labels = vec![
            ("block_size", verbatim_engine::PAGE_CELLS.to_string()),
            ("num_gpu_blocks", pages.to_string()),
            ("model_name", model.info.name().to_owned()),
        ];
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register("vllm:cache_config", "The KV cache", Info::new(labels));
    }

    pub(crate) fn rejected(&self) {
        self.counters.rejected.inc();
    }

    pub(crate) fn failed(&self) {
        self.counters.failed.inc();
        self.count("error");
    }

    pub(crate) fn cancelled(&self) {
        self.count("abort");
    }

    fn count(&self, reason: &'static str) {
        self.finished.get_or_create(&[("finished_reason", reason)]).inc();
    }

    pub(crate) fn first_token(&self, time: Duration) {
        self.first_token.observe(time.as_secs_f64());
    }

    /// Records tokens that came together after this time.
    pub(crate) fn next_tokens(&self, time: Duration, count: usize) {
        let count = count.max(1);
        for _ in 0..count {
            self.between_tokens.observe(time.as_secs_f64() / count as f64);
        }
    }

    pub(crate) fn finished(&self, reason: &FinishReason, stats: &GenerationStats, time: Duration) {
        self.count(match reason {
            FinishReason::EndOfText | FinishReason::StopString(_) => "stop",
            FinishReason::MaxTokens | FinishReason::ContextFull => "length",
            FinishReason::Cancelled => "abort",
        });
        let counters = &self.counters;
        counters.prompt_tokens.inc_by(stats.prompt_tokens as u64);
        counters.computed_tokens.inc_by((stats.prompt_tokens - stats.cached_tokens) as u64);
        counters.cache_hits.inc_by(stats.cached_tokens as u64);
        counters.prompt_seconds.inc_by(stats.time_to_first_token.as_secs_f64());
        counters.generated_tokens.inc_by(stats.generated_tokens as u64);
        counters.generation_seconds.inc_by(stats.generation_time.as_secs_f64());
        counters.drafted.inc_by(stats.drafts.drafted as u64);
        counters.accepted.inc_by(stats.drafts.accepted as u64);
        self.whole.observe(time.as_secs_f64());
    }

    /// How long an answer has taken on average, if there has been one.
    pub(crate) fn mean_answer_time(&self) -> Option<Duration> {
        let Counters { prompt_seconds, generation_seconds, .. } = &self.counters;
        let answers: u64 = ["stop", "length"]
            .map(|reason| self.finished.get_or_create(&[("finished_reason", reason)]).get())
            .iter()
            .sum();
        let seconds = prompt_seconds.get() + generation_seconds.get();
        (answers > 0).then(|| Duration::from_secs_f64(seconds / answers as f64))
    }

    /// All metrics as text; `status` is what the engine does at the moment, and `context` the positions of a slot.
    pub(crate) fn encode(&self, status: &EngineStatus, context: usize) -> Result<String, std::fmt::Error> {
        let Metrics { counters, levels, .. } = self;
        levels.running.set(status.running as f64);
        levels.waiting.set(status.waiting as f64);
        let positions = status.sequences * context;
        levels.cache_usage.set(status.used_positions as f64 / positions.max(1) as f64);
        levels.cached_bytes.set(status.cached_bytes as f64);
        levels.plans_built.set(status.programs.built as f64);
        levels.plan_hits.set(status.programs.hits as f64);
        let rate = |count: &Counter, time: &Seconds| {
            if time.get() > 0.0 { count.get() as f64 / time.get() } else { 0.0 }
        };
        levels.prompt_rate.set(rate(&counters.computed_tokens, &counters.prompt_seconds));
        levels.generation_rate.set(rate(&counters.generated_tokens, &counters.generation_seconds));
        let mut text = String::new();
        encode(&mut text, &self.registry.lock().unwrap_or_else(PoisonError::into_inner))?;
        Ok(text)
    }
}

/// A metric that a registry can have a handle to.
trait CloneMetric {
    fn register(&self, registry: &mut Registry, name: &str, help: &str);
}

impl<M: Metric + Clone> CloneMetric for M {
    fn register(&self, registry: &mut Registry, name: &str, help: &str) {
        registry.register(name, help, self.clone());
    }
}
