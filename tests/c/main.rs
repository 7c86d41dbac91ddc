//! The C library as its callers see it.

mod calls;
mod header;
#[path = "../core/random.rs"]
mod random;
