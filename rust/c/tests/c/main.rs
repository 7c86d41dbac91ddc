//! Tests of the C interface.

mod calls;
mod header;
#[path = "../../../core/tests/core/random.rs"]
mod random;
