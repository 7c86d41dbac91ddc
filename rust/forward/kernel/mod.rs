//! Products of interleaved weights and the states of some tokens.

#![warn(clippy::missing_docs_in_private_items)]
#![allow(clippy::needless_range_loop)] // iterators bring closures, which kernels have none of

/// A loop, or its body written out for each number: then shifts are constants and all sums stay in registers.
macro_rules! unroll {
    ($vectors:ident, $index:ident in $range:expr, $($number:literal)* => $body:block) => {
        let range = $range;
        if $vectors::IS_UNROLLED {
            $({
                let $index: usize = $number;
                if range.contains(&$index) $body
            })*
        } else {
            for $index in range $body
        }
    };
}

pub(crate) mod interleave;
pub(crate) mod packed;
mod planes;
pub(crate) mod rows;
pub(crate) mod states;
pub(crate) mod tile;
