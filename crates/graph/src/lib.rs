//! The graph IR: values, ops, shapes, lifetimes and the digest of their full identity.
