//! Where in a range does a condition stop to hold?

use std::ops::Range;

/// The end of the part of `range`, its beginning, where `is_before` holds.
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
