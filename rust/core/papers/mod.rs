//! The drafters of the papers, each as its paper says.
//!
//! Every file is one drafter or a part of one: REST ([`rest`]), N-Grammys ([`n_grammys`]), prompt
//! lookup ([`prompt_lookup`]), ADED ([`aded`]). It imports all but `fused`.

pub mod aded;
pub mod n_grammys;
pub mod prompt_lookup;
pub mod rest;
