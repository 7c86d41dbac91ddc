//! Product of the states of a few tokens and the weights of a linear layer, on several threads.

use crate::linear::layer_weights::{LayerWeights, RowBlock};
#[cfg(target_arch = "x86_64")]
use crate::linear::x86::{is_available, multiply};
use specds_index::{Error, Result};

/// The minimum number of weights per thread: fewer take less time than starting one.
const MIN_BLOCK: usize = 1 << 17;

/// Returns true if this processor has the instructions that [`product`] needs.
pub fn is_fast() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_available();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Writes the product of each row of the weights and the states of each token.
///
/// `states` and `outputs` hold one token after the other. A row of the weights has `size` numbers, like
/// the states of a token. The order of summation does not depend on the number of tokens.
///
/// # Errors
///
/// An error if the sizes do not match, `size` is not a multiple of 16, or [`is_fast`] is false.
pub fn product(
    weights: LayerWeights<'_>,
    states: &[f32],
    size: usize,
    num_threads: usize,
    outputs: &mut [f32],
) -> Result<()> {
    if !is_fast() {
        let reason = "need vector instructions that this processor lacks";
        return Err(Error::invalid("weights", reason));
    }
    if size == 0 || !size.is_multiple_of(16) || !weights.len().is_multiple_of(size) {
        let reason = "must be rows of a multiple of 16 numbers";
        return Err(Error::invalid("weights", reason));
    }
    if states.is_empty() || !states.len().is_multiple_of(size) {
        let reason = "must be as long as a row of the weights, for each token";
        return Err(Error::invalid("states", reason));
    }
    let num_tokens = states.len() / size;
    if outputs.len() != weights.len() / size * num_tokens {
        let reason = "must be one for each row of the weights and token";
        return Err(Error::invalid("outputs", reason));
    }
    let states: Vec<_> = states.chunks_exact(size).collect();
    let outputs = outputs.chunks_exact_mut((outputs.len() / num_tokens).max(1)).collect();
    let number = num_threads.min(weights.len() / MIN_BLOCK).max(1);
    let mut parts = parts(weights, size, outputs, number).into_iter();
    let first = parts.next();
    rayon::in_place_scope(|scope| {
        for part in parts {
            scope.spawn(|_| multiply(part, &states));
        }
        if let Some(part) = first {
            multiply(part, &states);
        }
    });
    Ok(())
}

/// Splits the rows evenly into blocks.
fn parts<'a>(
    mut weights: LayerWeights<'a>,
    size: usize,
    mut outputs: Vec<&'a mut [f32]>,
    number: usize,
) -> Vec<RowBlock<'a>> {
    let mut parts = Vec::with_capacity(number);
    for left in (1..=number).rev() {
        let num_rows = (weights.len() / size).div_ceil(left);
        let (of_part, rest) = weights.split_at(num_rows * size);
        let outputs_of_both = outputs.into_iter().map(|of_token| of_token.split_at_mut(num_rows));
        let (outputs_of_part, rest_of_outputs) = outputs_of_both.unzip();
        (weights, outputs) = (rest, rest_of_outputs);
        parts.push(RowBlock { weights: of_part, outputs: outputs_of_part });
    }
    parts
}

#[cfg(not(target_arch = "x86_64"))]
fn multiply(_: RowBlock<'_>, _: &[&[f32]]) {}
