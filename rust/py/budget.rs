//! `specds._core.Budget`: how many nodes of the drafts of a request's rows are verified.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use specds::budget::{self, Costs, Passes, RowBudget, StepCost};

use crate::arrays::{from_zero, width};
use crate::error::{Result, lock};
use crate::token_tree::TokenTree;

/// Acceptance statistics of a drafter over all its requests, with the reliability of its probabilities before any.
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

/// How many nodes of each row's draft are verified, and which rows draft.
///
/// Rows are padded to the longest one, so all may have the same number. There are at most 4096.
#[pyclass(module = "specds")]
pub(crate) struct Budget {
    draft_stats: Arc<Mutex<budget::DraftStats>>,
    rows: Vec<RowBudget>,
    costs: Option<StepCost>,
}

#[pymethods]
impl Budget {
    #[new]
    fn new(draft_stats: &Bound<'_, DraftStats>, num_rows: usize) -> PyResult<Self> {
        Ok(Self {
            draft_stats: Arc::clone(&draft_stats.get().0),
            rows: vec![RowBudget::default(); width(num_rows, "num_rows")?],
            costs: None,
        })
    }

    /// Takes the seconds of a step by the number of nodes of each row, from 0 on; they may not fall.
    fn set_costs(&mut self, seconds: Vec<f64>) -> Result<()> {
        let points = (1..).map(f64::from).zip(seconds).collect();
        self.costs = Some(StepCost::new(points)?);
        Ok(())
    }

    /// Whether each row drafts in the next step.
    #[getter]
    fn drafts(&self) -> Vec<bool> {
        self.rows.iter().map(RowBudget::drafts).collect()
    }

    /// The least probability of a node that could pay.
    #[getter]
    fn min_prob(&self) -> f64 {
        let least = |cost| lock(&self.draft_stats).least_gain(self.rows.iter(), cost, 1);
        self.costs.as_ref().map_or(0.0, least)
    }

    /// The nodes to verify of each row's draft; None stands for a row that does not draft in this step.
    ///
    /// `seconds` is what all drafts took, and what was learned for them.
    fn choose(
        &mut self,
        drafts: Vec<Option<Bound<'_, TokenTree>>>,
        seconds: f64,
    ) -> PyResult<Vec<usize>> {
        let seconds = from_zero(seconds, "seconds")?;
        let (num_rows, passes) = (drafts.len(), Passes::Padded);
        let Some(costs) = self.costs.as_ref().map(Costs::Known) else {
            self.rows.iter_mut().for_each(RowBudget::pause);
            return Ok(vec![0; num_rows]);
        };
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
        let chosen = draft_stats.choose(&mut rows, &trees, num_rows, costs, passes, seconds);
        let mut chosen = chosen.into_iter();
        let size = |draft: &Option<_>| draft.as_ref().and_then(|_| chosen.next()).unwrap_or(0);
        Ok(drafts.iter().map(size).collect())
    }

    /// Learns from the tokens that each row emitted after its draft; None stands for a row that ended.
    fn learn(&mut self, emitted: Vec<Option<Vec<u32>>>) {
        let rows = self.rows.iter_mut().zip(&emitted);
        let outcomes = rows.filter_map(|(row, tokens)| Some((row, tokens.as_deref()?)));
        lock(&self.draft_stats).learn(outcomes);
    }

    /// Ends a row; the last one takes its number.
    fn leave(&mut self, row: usize) {
        if row < self.rows.len() {
            self.rows.swap_remove(row);
        }
    }
}
