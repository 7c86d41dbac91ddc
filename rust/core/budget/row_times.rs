//! Times of steps by their number of rows.

use std::collections::BTreeMap;

use crate::budget::selection::to_f64;
use crate::budget::step_times::StepTimes;

/// The times of a model's steps by the number of rows, which is rounded up to a power of two.
#[derive(Debug)]
pub struct RowStepTimes {
    /// The times of each number of rows, a power of two.
    of_rows: BTreeMap<usize, StepTimes>,
    /// The usual cost of a further token, over a step of one token of one row.
    token_cost: Option<f64>,
    /// The tokens and the seconds of passes that were measured before the first step.
    passes: Vec<(usize, f64)>,
}

impl RowStepTimes {
    /// Times of a backend with a usual cost of a further token, over a step of one token, and measured passes: the
    /// number of tokens and the seconds of each.
    #[must_use]
    pub fn new(token_cost: Option<f64>, passes: Vec<(usize, f64)>) -> Self {
        Self { of_rows: BTreeMap::new(), token_cost, passes }
    }

    /// Returns the times of steps of about `num_rows` rows.
    pub fn of(&mut self, num_rows: usize) -> &mut StepTimes {
        let num_rows = num_rows.next_power_of_two();
        let Self { of_rows, token_cost, passes } = self;
        of_rows.entry(num_rows).or_insert_with(|| {
            // A further token of each row, over a step of one token each.
            let rows = to_f64(num_rows);
            let of_row = |cost| rows * cost / (1.0 + (rows - 1.0) * cost);
            let usual = |cost| StepTimes::with_token_cost(of_row(cost));
            let mut times = token_cost.map_or_else(StepTimes::default, usual);
            for &(num_tokens, seconds) in passes.iter() {
                if num_tokens.is_multiple_of(num_rows) {
                    times.add(num_tokens / num_rows, seconds);
                }
            }
            times
        })
    }
}
