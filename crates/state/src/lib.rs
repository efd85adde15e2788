//! Sequence state: which positions live in which cells of the backend's memory.
