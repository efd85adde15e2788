//! The CPU backend: packed weights, kernels, the thread team and the executor.
