//! How many nodes of the drafts of a batch pay.
//!
//! A step verifies the nodes with which most tokens are expected a second: [`StepCost`] tells the
//! seconds, as an operator knows them or as [`StepTimes`] saw them, and [`DraftStats`] expects tokens by what
//! came of earlier drafts. The loop of transformers and the engines follow this one rule.

pub(crate) mod reliability;
pub(crate) mod rule;
pub(crate) mod selection;
pub(crate) mod step_cost;
pub(crate) mod step_times;

pub use rule::{Costs, DraftStats, RowBudget};
pub use selection::Passes;
pub use step_cost::StepCost;
pub use step_times::StepTimes;
