//! `specds._core.NodeBudget`, `DraftStats` and `StepTimes`.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use specds_core::budget::{self, Costs, Passes, RowBudget, StepCost};

use crate::arrays::{from_zero, width};
use crate::error::{Failure, lock};
use crate::token_tree::TokenTree;

/// Acceptance statistics of a drafter over all its requests.
///
/// Args:
///     reliability: The initial factor that corrects the drafter's probabilities, at least 0.
#[pyclass(frozen, module = "specds")]
pub(crate) struct DraftStats(Arc<Mutex<budget::DraftStats>>);

#[pymethods]
impl DraftStats {
    #[new]
    #[pyo3(signature = (reliability = None))]
    fn new(reliability: Option<f64>) -> PyResult<Self> {
        let draft_stats = match reliability {
            Some(reliability) => {
                budget::DraftStats::with_reliability(from_zero(reliability, "reliability")?)
            }
            None => budget::DraftStats::default(),
        };
        Ok(Self(Arc::new(Mutex::new(draft_stats))))
    }
}

/// Measured times of a model's steps by the number of rows.
#[pyclass(frozen, module = "specds")]
pub(crate) struct StepTimes(Mutex<budget::RowStepTimes>);

#[pymethods]
impl StepTimes {
    /// Args:
    ///     token_cost: The cost of a further token that is usual for the backend, over a step of one token.
    ///     passes: The tokens and the seconds of passes that were measured before the first step.
    #[new]
    #[pyo3(signature = (token_cost = None, passes = Vec::new()))]
    fn new(token_cost: Option<f64>, passes: Vec<(usize, f64)>) -> PyResult<Self> {
        let token_cost = token_cost.map(|cost| from_zero(cost, "token_cost")).transpose()?;
        Ok(Self(Mutex::new(budget::RowStepTimes::new(token_cost, passes))))
    }
}

/// Costs of a step by the number of tokens of each row.
#[derive(FromPyObject)]
enum StepCosts {
    Measured(Py<StepTimes>),
    Seconds(Vec<f64>),
}

enum KnownCosts {
    Measured(Py<StepTimes>),
    Known(StepCost),
}

/// The choice of how many nodes of each row's draft are verified, and of the rows that draft.
///
/// Rows are padded to the longest one. There are at most 4096.
#[pyclass(module = "specds")]
pub(crate) struct NodeBudget {
    draft_stats: Arc<Mutex<budget::DraftStats>>,
    costs: KnownCosts,
    rows: Vec<RowBudget>,
    num_step_tokens: usize,
}

#[pymethods]
impl NodeBudget {
    /// Args:
    ///     draft_stats: The statistics of the drafter.
    ///     costs: Measured times of steps, or the seconds of a step by the number of nodes of each row, 0 first.
    ///     num_rows: Rows of the first step.
    #[new]
    fn new(
        draft_stats: &Bound<'_, DraftStats>,
        costs: StepCosts,
        num_rows: usize,
    ) -> PyResult<Self> {
        let costs = match costs {
            StepCosts::Measured(times) => KnownCosts::Measured(times),
            StepCosts::Seconds(seconds) => {
                let points = (1..).map(f64::from).zip(seconds).collect();
                KnownCosts::Known(StepCost::new(points).map_err(Failure::from)?)
            }
        };
        Ok(Self {
            draft_stats: Arc::clone(&draft_stats.get().0),
            costs,
            rows: vec![RowBudget::default(); width(num_rows, "num_rows")?],
            num_step_tokens: 1,
        })
    }

    /// One bool per row: whether it drafts in the next step.
    #[getter]
    fn drafts(&self) -> Vec<bool> {
        self.rows.iter().map(RowBudget::drafts).collect()
    }

    /// Minimum probability at which a node could improve throughput; 0 while costs are not known.
    #[getter]
    fn min_prob(&self) -> f64 {
        let least_gain = match &self.costs {
            KnownCosts::Known(cost) => cost.least_gain(1),
            KnownCosts::Measured(times) => lock(&times.get().0).of(self.rows.len()).least_gain(1),
        };
        lock(&self.draft_stats).min_prob(self.rows.iter(), least_gain)
    }

    /// Seconds of a step like the last one, or of one without drafts if costs were given; 0 before any step.
    #[getter]
    fn step_s(&self) -> f64 {
        match &self.costs {
            KnownCosts::Known(cost) => cost.seconds(1.0),
            KnownCosts::Measured(times) => lock(&times.get().0).of(self.rows.len()).usual(),
        }
    }

    /// Return the number of nodes to verify of each row's draft.
    ///
    /// Args:
    ///     drafts: The draft of each row, or None for a row that does not draft in this step.
    ///     seconds: The time of drafting and of observing, at least 0.
    ///     waiting: Number of tokens to feed before the drafts, if these are chains whose accepted tokens are
    ///         fed again after a rejection.
    #[pyo3(signature = (drafts, seconds, waiting = None))]
    fn choose(
        &mut self,
        drafts: Vec<Option<Bound<'_, TokenTree>>>,
        seconds: f64,
        waiting: Option<usize>,
    ) -> PyResult<Vec<usize>> {
        let seconds = from_zero(seconds, "seconds")?;
        let num_rows = drafts.len();
        let (mut rows, mut trees) = (Vec::new(), Vec::new());
        for (row, draft) in self.rows.iter_mut().zip(&drafts) {
            if let Some(draft) = draft {
                rows.push(row);
                trees.push(&draft.get().0);
            } else {
                row.pause();
            }
        }
        let mut draft_stats = lock(&self.draft_stats);
        let passes = waiting.map_or(Passes::Padded, |waiting| Passes::Chains { waiting });
        let mut choose = |costs: Costs<'_>| {
            draft_stats.choose(&mut rows, &trees, num_rows, costs, passes, seconds)
        };
        let chosen = match &self.costs {
            KnownCosts::Known(cost) => choose(Costs::Known(cost)),
            KnownCosts::Measured(times) => {
                choose(Costs::Measured(lock(&times.get().0).of(num_rows)))
            }
        };
        self.num_step_tokens = 1 + waiting.unwrap_or(0) + chosen.iter().max().unwrap_or(&0);
        let mut chosen = chosen.into_iter();
        let size = |draft: &Option<_>| draft.as_ref().and_then(|_| chosen.next()).unwrap_or(0);
        Ok(drafts.iter().map(size).collect())
    }

    /// Update the statistics with the outcome of a step.
    ///
    /// Args:
    ///     emitted: The tokens that each row emitted, or None for a row that ended.
    ///     step_s: The seconds of the step without drafting.
    fn learn(&mut self, emitted: Vec<Option<Vec<u32>>>, step_s: f64) {
        if let KnownCosts::Measured(times) = &self.costs {
            lock(&times.get().0).of(emitted.len()).add(self.num_step_tokens, step_s);
        }
        let rows = self.rows.iter_mut().zip(&emitted);
        let outcomes = rows.filter_map(|(row, tokens)| Some((row, tokens.as_deref()?)));
        lock(&self.draft_stats).learn(outcomes);
    }

    /// Add a row, which takes the last index and drafts in the next step.
    fn join(&mut self) -> PyResult<()> {
        width(self.rows.len() + 1, "num_rows")?;
        self.rows.push(RowBudget::default());
        Ok(())
    }

    /// End a row. The last row takes its index.
    fn leave(&mut self, row: usize) {
        if row < self.rows.len() {
            self.rows.swap_remove(row);
        }
    }
}
