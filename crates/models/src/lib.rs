//! Architecture files: from GGUF metadata to weights and a graph builder.
