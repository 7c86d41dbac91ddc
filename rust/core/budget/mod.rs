//! Number of verified nodes of each draft in a batch.
//!
//! A step verifies the nodes with the highest expected tokens per second. [`StepCost`] predicts the
//! seconds, from the operator or from [`StepTimes`]. [`DraftStats`] predicts the tokens from the outcomes
//! of earlier drafts. Both `generate` and the engines follow this rule.

pub(crate) mod reliability;
pub(crate) mod row_times;
pub(crate) mod rule;
pub(crate) mod selection;
pub(crate) mod step_cost;
pub(crate) mod step_times;

pub use row_times::RowStepTimes;
pub use rule::{Costs, DraftStats, RowBudget};
pub use selection::{DraftSizes, Passes};
pub use step_cost::StepCost;
pub use step_times::StepTimes;
