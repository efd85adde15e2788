//! The tests of the engine over real backends, in one program: what is generic over the backend is compiled once.

mod api;
mod changing_files;
mod common;
mod draft_models;
mod drafts;
mod equality;
mod examples;
mod golden;
mod grammars;
mod memory_limits;
mod model_drafts;
mod plans;
mod prefix_cache;
mod profile;
mod recurrent;
mod rewritten;
mod rows;
mod sampling;
mod saved;
mod scaled_weights;
mod sessions;
mod speculation;
mod synthetic;
mod texts;
mod transactions;
