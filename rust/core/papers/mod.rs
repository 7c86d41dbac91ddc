//! Reproductions of published drafters.
//!
//! Each file is one drafter or a part of one: REST ([`rest`]), N-Grammys ([`n_grammys`]), prompt lookup
//! ([`prompt_lookup`]), ADED ([`aded`]).

pub mod aded;
pub mod n_grammys;
pub mod prompt_lookup;
pub mod rest;
