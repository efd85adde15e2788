//! Sampling: position-keyed noise and the choice of the next token.
