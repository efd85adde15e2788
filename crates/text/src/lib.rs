//! Tokenizers, chat templates and incremental detokenising, built from GGUF metadata.
