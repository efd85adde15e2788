//! The shapes that are known by name. Each is the publisher's `config.json`, cut to what is read here.

/// No shape has this name.
#[derive(Debug, thiserror::Error)]
#[error("there is no shape `{name}`; known shapes are {known}, and any shape can be given as a config.json")]
pub struct UnknownShape {
    name: String,
    known: String,
}

const SHAPES: [(&str, &str); 7] = [
    ("qwen3-0.6b", include_str!("../../shapes/qwen3-0.6b.json")),
    ("qwen3-1.7b", include_str!("../../shapes/qwen3-1.7b.json")),
    ("qwen3-4b", include_str!("../../shapes/qwen3-4b.json")),
    ("qwen3-8b", include_str!("../../shapes/qwen3-8b.json")),
    ("qwen3.6-27b", include_str!("../../shapes/qwen3.6-27b.json")),
    ("gemma-3-270m", include_str!("../../shapes/gemma-3-270m.json")),
    ("llama-3.2-1b", include_str!("../../shapes/llama-3.2-1b.json")),
];

/// The names of the known shapes.
pub fn known_shapes() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|(name, _)| *name)
}

pub(super) fn config_of(name: &str) -> Result<&'static str, UnknownShape> {
    match SHAPES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
        Some((_, config)) => Ok(config),
        None => {
            let known = known_shapes().collect::<Vec<_>>().join(", ");
            Err(UnknownShape { name: name.into(), known })
        }
    }
}
