//! Checks of arguments.

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::base::error::{Error, Result};

/// Checks that all tokens are in the vocabulary; the error names the first that is not.
pub fn check_tokens<'a>(tokens: impl IntoIterator<Item = &'a u32>, vocab_size: u32) -> Result<()> {
    let mut tokens = tokens.into_iter();
    match tokens.find(|&&token| token >= vocab_size) {
        Some(&token) => Err(Error::TokenOutOfRange { token, vocab_size }),
        None => Ok(()),
    }
}

pub fn check_within<T: PartialOrd + Display + Copy>(
    name: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    let (min, max) = (range.start(), range.end());
    let reason = format!("must lie in {min}..={max}, not {value}");
    Err(Error::invalid(name, reason))
}

pub fn check_match_lengths(max_match: usize, min_match: usize) -> Result<()> {
    if min_match == 0 {
        return Err(Error::invalid("min_match", "must be at least 1"));
    }
    if min_match > max_match {
        let reason = format!("must be at least `min_match`: {min_match}, not {max_match}");
        return Err(Error::invalid("max_match", reason));
    }
    Ok(())
}
