//! What is said about the context size that a model was loaded with.

use verbatim_engine::{LoadOptions, Requirements};
use verbatim_gguf::GgufFile;

use crate::machine;
use crate::standard_io::{human_bytes, notify};

/// Says why the context is smaller than the trained one, though nobody asked for that; warns of one that is larger, or larger
/// than the memory that is available. `context` is the size that the model was loaded with.
pub fn explain(file: &GgufFile, options: &LoadOptions, context: usize) {
    // The same sizes, whatever the memory is by now.
    let as_loaded = LoadOptions { context: Some(context), ..*options };
    let needs = Requirements::read(file, &LoadOptions { memory: None, ..as_loaded });
    let (Ok(needs), Some(available)) = (needs, machine::available_memory()) else { return };
    let lines = match options.context {
        None => default_text(&needs, available, options.sequences).into_iter().collect(),
        Some(_) => given_text(&needs, available, options.sequences),
    };
    lines.iter().for_each(|line| notify(line));
}

/// About a context that was chosen.
fn default_text(needs: &Requirements, available: u64, sequences: usize) -> Option<String> {
    let Requirements { context, trained_context, state_bytes, .. } = *needs;
    (context < trained_context).then(|| {
        format!(
            "warning: the context is {context} tokens{} ({}), not the {trained_context} that the model was trained for: {} of memory \
             are left beside the model; --ctx-size sets another size",
            each(sequences),
            human_bytes(state_bytes),
            human_bytes(available),
        )
    })
}

/// About a context that was asked for.
fn given_text(needs: &Requirements, available: u64, sequences: usize) -> Vec<String> {
    let Requirements { context, trained_context, state_bytes, .. } = *needs;
    let mut lines = Vec::new();
    if context > trained_context {
        lines.push(format!(
            "warning: --ctx-size {context} is more than the {trained_context} tokens that the model was trained for; answers far in may be poor"
        ));
    }
    if state_bytes > available {
        lines.push(format!(
            "warning: --ctx-size {context}{} can take {}, but {} of memory are left beside the model: an answer that needs more ends \
             with an error",
            each(sequences),
            human_bytes(state_bytes),
            human_bytes(available)
        ));
    }
    lines
}

fn each(sequences: usize) -> &'static str {
    if sequences > 1 { " for each sequence" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(context: usize) -> Requirements {
        Requirements {
            context,
            trained_context: 8192,
            fitting_context: None,
            weight_bytes: 1_000_000_000,
            state_bytes: context as u64 * 20_000,
            token_bytes: 1_000_000_000,
        }
    }

    #[test]
    fn a_smaller_default_is_explained() {
        assert_eq!(default_text(&needs(8192), 0, 1), None);
        assert_eq!(
            default_text(&needs(4096), 90_000_000, 2).unwrap(),
            "warning: the context is 4096 tokens for each sequence (81.92 MB), not the 8192 that the model was trained for: 90.00 MB of \
             memory are left beside the model; --ctx-size sets another size"
        );
    }

    #[test]
    fn a_large_context_is_warned_of() {
        assert_eq!(given_text(&needs(8192), 200_000_000, 1), Vec::<String>::new());
        let lines = given_text(&needs(8193), 160_000_000, 1);
        assert!(lines[0].starts_with("warning: --ctx-size 8193 is more than the 8192 tokens"), "{lines:?}");
        assert!(
            lines[1].starts_with("warning: --ctx-size 8193 can take 163.86 MB, but 160.00 MB of memory"),
            "{lines:?}"
        );
    }
}
