//! The GGUF container: reading and writing, safe on hostile files.
