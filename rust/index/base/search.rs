//! Binary and galloping search.

use std::ops::Range;

/// Where `is_before` stops to hold: it holds for a beginning of `range` and for nothing after.
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

/// The same as [`partition`], in O(log of the part's length).
pub(crate) fn gallop(range: Range<usize>, is_before: impl Fn(usize) -> bool) -> usize {
    let Range { mut start, end } = range;
    let mut step = 1;
    while step <= end - start && is_before(start + step - 1) {
        start += step;
        step *= 2;
    }
    partition(start..end.min(start + step - 1), is_before)
}
