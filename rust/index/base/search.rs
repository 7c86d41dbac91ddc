//! Binary and galloping search.

use std::ops::Range;

/// Returns the first index of `range` for which `is_before` is false; it must be true up to there and false after.
pub(crate) fn partition(range: Range<usize>, is_before: impl Fn(usize) -> bool) -> usize {
    let Range { mut start, mut end } = range;
    while start < end {
        let middle = start + (end - start) / 2;
        if is_before(middle) {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    start
}

/// Returns what [`partition`] does, in O(log of the distance from the start of `range`).
pub(crate) fn gallop(range: Range<usize>, is_before: impl Fn(usize) -> bool) -> usize {
    let Range { mut start, end } = range;
    let mut step = 1;
    while step <= end - start && is_before(start + step - 1) {
        start += step;
        step *= 2;
    }
    partition(start..end.min(start + step - 1), is_before)
}
