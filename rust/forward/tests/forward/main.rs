//! Tests of the crate `specds-forward` that need no model: weights and files. Models are tested from Python.

mod files;
mod fuzz;
mod heap;
mod packing;
mod weights;
