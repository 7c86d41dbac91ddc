//! The C library as its callers see it.

mod calls;
mod header;
#[path = "../../../core/tests/core/random.rs"]
mod random;
