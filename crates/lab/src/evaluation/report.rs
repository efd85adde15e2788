//! The report of an evaluation, and its formats.

use serde::Serialize;

use super::{Chunks, Evaluation};

/// The result, with its setup.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The model's name.
    pub model: String,
    /// Format of the weights, such as `Q4_K_M`.
    pub weights: String,
    /// The text's name.
    pub text: String,
    /// Type of K in the KV cache.
    pub ctk: String,
    /// Type of V in the KV cache.
    pub ctv: String,
    /// Tokens of a chunk.
    pub ctx: usize,
    /// Completed chunks.
    pub chunks: usize,
    /// Chunks of the text, or the requested number. More than `chunks` if the caller stopped.
    pub chunks_asked: usize,
    /// Scored tokens.
    pub tokens: usize,
    /// Mean negative log-likelihood, in nats.
    pub nll: f64,
    /// Its standard error.
    pub nll_error: f64,
    /// e to the mean negative log-likelihood.
    pub perplexity: f64,
    /// Its standard error.
    pub perplexity_error: f64,
    /// Divergence from the baseline, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub divergence: Option<Divergence>,
}

/// The mean of KL(baseline ‖ model) over the scored tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// Format of the baseline's keys.
    pub ctk: String,
    /// Format of the baseline's values.
    pub ctv: String,
    /// The mean, in nats.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
}

/// Output format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Plain text.
    Text,
    /// A table with one row.
    Markdown,
    /// An object.
    Json,
}

/// The setup of an evaluation: model, weight format, text, and the KV types of the model and of the baseline, if any.
pub struct EvaluationSetup {
    /// The model.
    pub model: String,
    /// Format of the weights.
    pub weights: String,
    /// The text.
    pub text: String,
    /// Formats of keys and values.
    pub cache: [String; 2],
    /// Those of the baseline.
    pub baseline: Option<[String; 2]>,
}

impl Report {
    /// The report of an evaluation.
    pub fn new(setup: EvaluationSetup, chunks: &Chunks<'_>, evaluation: &Evaluation) -> Report {
        let EvaluationSetup { model, weights, text, cache: [ctk, ctv], baseline } = setup;
        Report {
            model,
            weights,
            text,
            ctk,
            ctv,
            ctx: chunks.size(),
            chunks: evaluation.chunks,
            chunks_asked: chunks.count(),
            tokens: evaluation.nll.count(),
            nll: evaluation.nll.mean(),
            nll_error: evaluation.nll.standard_error(),
            perplexity: evaluation.perplexity(),
            perplexity_error: evaluation.perplexity_error(),
            divergence: baseline.map(|[ctk, ctv]| Divergence {
                ctk,
                ctv,
                mean: evaluation.divergence.mean(),
                error: evaluation.divergence.standard_error(),
            }),
        }
    }
}

impl Format {
    /// The report as text.
    pub fn write(self, report: &Report) -> String {
        match self {
            Format::Text => text(report),
            Format::Markdown => markdown(report),
            // Numbers and strings can always be written.
            Format::Json => serde_json::to_string_pretty(report).unwrap_or_default() + "\n",
        }
    }
}

fn text(report: &Report) -> String {
    let Report { model, weights, text, ctk, ctv, ctx, chunks, chunks_asked, tokens, .. } = report;
    let Report { nll, nll_error, perplexity, perplexity_error, divergence, .. } = report;
    let mut lines = format!(
        "{model}: {weights}; K {ctk}, V {ctv}; {text}\n{tokens} tokens of {chunks} of {chunks_asked} chunks of {ctx}\n\
         negative log-likelihood {nll:.5} ± {nll_error:.5} nats\n\
         perplexity              {perplexity:.4} ± {perplexity_error:.4}\n"
    );
    if let Some(Divergence { ctk, ctv, mean, error }) = divergence {
        lines += &format!("KL from K {ctk}, V {ctv}     {mean:.3e} ± {error:.1e} nats\n");
    }
    lines
}

fn markdown(report: &Report) -> String {
    let Report { model, weights, text, ctk, ctv, ctx, chunks, tokens, .. } = report;
    let Report { nll, nll_error, perplexity, perplexity_error, divergence, .. } = report;
    let cell = |text: &str| text.replace('|', "\\|");
    let (mut names, mut rule) = (
        "| model | weights | text | K | V | ctx | chunks | tokens | nll | perplexity |".to_owned(),
        "| :-- | :-- | :-- | :-- | :-- | --: | --: | --: | --: | --: |".to_owned(),
    );
    let mut row = format!(
        "| {} | {} | {} | {ctk} | {ctv} | {ctx} | {chunks} | {tokens} | {nll:.5} ± {nll_error:.5} | \
         {perplexity:.4} ± {perplexity_error:.4} |",
        cell(model),
        cell(weights),
        cell(text)
    );
    if let Some(Divergence { ctk, ctv, mean, error }) = divergence {
        names += &format!(" KL from {ctk}, {ctv} |");
        rule += " --: |";
        row += &format!(" {mean:.3e} ± {error:.1e} |");
    }
    format!("{names}\n{rule}\n{row}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(baseline: Option<[String; 2]>) -> Report {
        let tokens = [0; 20];
        let chunks = Chunks::new(&tokens, 8, None, None).unwrap();
        let mut evaluation = Evaluation { chunks: 1, ..Evaluation::default() };
        [1.0, 3.0].into_iter().for_each(|nll| evaluation.nll.add(nll));
        evaluation.divergence.add(0.001);
        let setup = EvaluationSetup {
            model: "a|b".into(),
            weights: "Q4_0".into(),
            text: "t.txt".into(),
            cache: ["f16".into(), "q8_0".into()],
            baseline,
        };
        Report::new(setup, &chunks, &evaluation)
    }

    #[test]
    fn json_has_every_number() {
        let json: serde_json::Value = serde_json::from_str(&Format::Json.write(&report(None))).unwrap();
        let number = |key: &str| json[key].as_f64().unwrap();
        assert_eq!((number("chunks"), number("chunks_asked"), number("tokens")), (1.0, 2.0, 2.0));
        assert_eq!((number("nll"), number("nll_error")), (2.0, 1.0));
        assert!((number("perplexity") - 2f64.exp()).abs() < 1e-12);
        assert_eq!(number("perplexity_error"), number("perplexity"));
        assert!(json.get("divergence").is_none());
        let against = Format::Json.write(&report(Some(["f32".into(), "f32".into()])));
        let json: serde_json::Value = serde_json::from_str(&against).unwrap();
        assert_eq!((&json["divergence"]["ctk"], &json["divergence"]["mean"]), (&"f32".into(), &0.001.into()));
    }

    #[test]
    fn a_table_has_as_many_cells_as_names() {
        for baseline in [None, Some(["f32".into(), "f32".into()])] {
            let table = Format::Markdown.write(&report(baseline)).replace("\\|", "");
            let cells: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
            assert!(cells.len() == 3 && cells.iter().all(|&count| count == cells[0]), "{table}");
        }
        assert!(Format::Text.write(&report(None)).contains("perplexity              7.3891 ± 7.3891"));
    }
}
