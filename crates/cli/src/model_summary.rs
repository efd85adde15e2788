//! What people ask of a model file first: what it is, whether it loads here, with which context, and how fast it may be.

use std::fmt::Write;

use serde_json::{Value as Json, json};
use verbatim_engine::{Requirements, read_hyperparameters};
use verbatim_gguf::GgufFile;

use crate::machine;
use crate::model_file::weights_format;
use crate::standard_io::{escape, human_bytes};

/// The answers.
#[derive(Debug)]
pub struct ModelSummary {
    /// `general.name`.
    pub name: Option<String>,
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Name of the weights' format.
    pub quant: &'static str,
    /// Size of the file.
    pub file_bytes: u64,
    /// Positions that the model was trained for, if the architecture is supported.
    pub trained_context: Option<usize>,
    /// Whether it has a chat template.
    pub has_template: bool,
    /// What it needs, if it can be loaded.
    pub needs: Option<Requirements>,
    /// Memory that is available, in bytes.
    pub available_bytes: Option<u64>,
    /// Bytes per second that this machine reads.
    pub bandwidth: Option<f64>,
}

impl ModelSummary {
    /// Reads the metadata, and measures this machine if the model can be loaded, that is, if what it `needs` is known.
    pub fn read(file: &GgufFile, needs: Option<Requirements>) -> Self {
        let metadata = file.metadata();
        let text = |key| metadata.get_str(key).ok().flatten().map(str::to_owned);
        let trained_context = read_hyperparameters(file).ok().map(|parameters| parameters.context);
        let available_bytes = machine::available_memory();
        Self {
            name: text("general.name"),
            architecture: text("general.architecture"),
            parameters: file.tensors().iter().map(|tensor| tensor.element_count() as u64).sum(),
            quant: weights_format(file),
            file_bytes: file.bytes_total() as u64,
            trained_context,
            has_template: metadata.contains("tokenizer.chat_template"),
            needs,
            available_bytes,
            bandwidth: needs.and_then(|_| machine::read_bandwidth(available_bytes)),
        }
    }

    /// Tokens per second at which memory delivers the weights: more is impossible, unless they fit the caches.
    pub fn tokens_per_second_max(&self) -> Option<f64> {
        let needs = self.needs.filter(|needs| needs.token_bytes > 0)?;
        self.bandwidth.map(|bandwidth| bandwidth / needs.token_bytes as f64)
    }

    /// Lines for people. `problem` is why the model cannot be loaded.
    pub fn text(&self, problem: Option<&str>) -> String {
        let mut text = String::new();
        let (name, architecture) = (self.name.as_deref(), self.architecture.as_deref());
        let names: Vec<String> = [name, architecture].into_iter().flatten().map(escape).collect();
        let _ = writeln!(
            text,
            "model     {}",
            if names.is_empty() { "unnamed".to_owned() } else { names.join(", ") }
        );
        let _ = writeln!(
            text,
            "weights   {} parameters, {}, {}",
            count_text(self.parameters),
            self.quant,
            human_bytes(self.file_bytes)
        );
        if let Some(context) = self.trained_context {
            let _ = writeln!(text, "context   {context} tokens");
        }
        let template = if self.has_template { "yes" } else { "no: a prompt is continued as it is" };
        let _ = writeln!(text, "template  {template}");
        match (&self.needs, problem) {
            (_, Some(problem)) => {
                let _ = writeln!(text, "loads     no: {}", escape(problem));
            }
            (None, None) => {
                let _ = writeln!(text, "loads     yes");
            }
            (Some(needs), None) => self.write_needs(needs, &mut text),
        }
        text
    }

    fn write_needs(&self, needs: &Requirements, text: &mut String) {
        let (total, state) = (human_bytes(needs.total_bytes()), human_bytes(needs.state_bytes));
        let _ = writeln!(
            text,
            "loads     yes: it needs {total} with a context of {} tokens, of which {state} are for the context",
            needs.context
        );
        if let Some(available) = self.available_bytes {
            let fits = match needs.fitting_context {
                Some(context) if context >= needs.trained_context => "enough for the full context".to_owned(),
                Some(context) => format!("enough for a context of {context} tokens (--ctx)"),
                None => "too little for this model".to_owned(),
            };
            let _ = writeln!(text, "memory    {} are available: {fits}", human_bytes(available));
        }
        if let (Some(rate), Some(bandwidth)) = (self.tokens_per_second_max(), self.bandwidth) {
            let _ = writeln!(
                text,
                "speed     at most about {} tokens/s: each token reads {}, and memory delivers {}/s at the moment (an estimate: \
                 `verbatim bench` measures)",
                rate_text(rate),
                human_bytes(needs.token_bytes),
                human_bytes(bandwidth as u64)
            );
        }
    }

    /// The same for programs.
    pub fn json(&self) -> Json {
        json!({
            "name": self.name,
            "architecture": self.architecture,
            "parameters": self.parameters,
            "context": self.trained_context,
            "chat_template": self.has_template,
            "needs": self.needs.map(|needs| json!({
                "context": needs.context,
                "weight_bytes": needs.weight_bytes,
                "state_bytes": needs.state_bytes,
                "token_bytes": needs.token_bytes,
            })),
            "available_bytes": self.available_bytes,
            "fitting_context": self.needs.and_then(|needs| needs.fitting_context),
            "read_bytes_per_second": self.bandwidth,
            "tokens_per_second_max": self.tokens_per_second_max(),
        })
    }
}

/// `8.03 B`, `135 M`.
fn count_text(count: u64) -> String {
    match count {
        0..1_000_000 => count.to_string(),
        1_000_000..1_000_000_000 => format!("{:.0} M", count as f64 / 1e6),
        _ => format!("{:.2} B", count as f64 / 1e9),
    }
}

fn rate_text(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> ModelSummary {
        ModelSummary {
            name: Some("Toy".into()),
            architecture: Some("llama".into()),
            parameters: 134_515_008,
            quant: "Q4_1",
            file_bytes: 98_362_432,
            trained_context: Some(8192),
            has_template: true,
            needs: Some(Requirements {
                context: 8192,
                trained_context: 8192,
                fitting_context: Some(8192),
                weight_bytes: 90_000_000,
                state_bytes: 188_743_680,
                token_bytes: 90_000_000,
            }),
            available_bytes: Some(8_000_000_000),
            bandwidth: Some(18e9),
        }
    }

    #[test]
    fn the_answers_are_lines() {
        let expected = "model     Toy, llama\n\
            weights   135 M parameters, Q4_1, 98.36 MB\n\
            context   8192 tokens\n\
            template  yes\n\
            loads     yes: it needs 278.74 MB with a context of 8192 tokens, of which 188.74 MB are for the context\n\
            memory    8.00 GB are available: enough for the full context\n\
            speed     at most about 200 tokens/s: each token reads 90.00 MB, and memory delivers 18.00 GB/s at the moment (an estimate: \
            `verbatim bench` measures)\n";
        assert_eq!(summary().text(None), expected);
        let with = |fitting_context| summary().needs.map(|needs| Requirements { fitting_context, ..needs });
        let part = ModelSummary { needs: with(Some(4096)), ..summary() }.text(None);
        assert!(part.contains("available: enough for a context of 4096 tokens (--ctx)\n"), "{part}");
        let small = ModelSummary {
            needs: with(None),
            available_bytes: Some(1000),
            bandwidth: Some(9e8),
            ..summary()
        };
        let text = small.text(None);
        assert!(text.contains("memory    1.00 kB are available: too little for this model\n"), "{text}");
        assert!(text.contains("speed     at most about 10 tokens/s"), "{text}");
        let text = summary().text(Some("no\u{1b}"));
        assert!(text.ends_with("loads     no: no\\u{1b}\n"), "{text}");
    }

    #[test]
    fn counts_are_short() {
        assert_eq!(count_text(8_030_261_248), "8.03 B");
        assert_eq!(count_text(134_515_008), "135 M");
        assert_eq!(count_text(512), "512");
        assert_eq!((rate_text(9.96), rate_text(123.4)), ("10.0".into(), "123".into()));
    }
}
