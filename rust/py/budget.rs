//! `specds._core.Budget`: how many nodes of the drafts of a request's rows are verified.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use specds::budget::{self, Costs, Passes, RowBudget, StepCost};

use crate::arrays::{from_zero, width};
use crate::error::{Result, lock};
use crate::token_tree::TokenTree;

/// What a drafter has been worth, in all its requests; at first, which share of what it promises is trusted.
#[pyclass(frozen, module = "specds")]
pub(crate) struct Experience(Arc<Mutex<budget::Experience>>);

#[pymethods]
impl Experience {
    #[new]
    #[pyo3(signature = (trust = None))]
    fn new(trust: Option<f64>) -> PyResult<Self> {
        let experience = match trust {
            Some(trust) => budget::Experience::trusting(from_zero(trust, "trust")?),
            None => budget::Experience::default(),
        };
        Ok(Self(Arc::new(Mutex::new(experience))))
    }
}

/// How many nodes of each row's draft are verified, and which rows draft.
///
/// Rows are padded to the longest one, so all may have the same number. There are at most 4096.
#[pyclass(module = "specds")]
pub(crate) struct Budget {
    experience: Arc<Mutex<budget::Experience>>,
    rows: Vec<RowBudget>,
    costs: Option<StepCost>,
}

#[pymethods]
impl Budget {
    #[new]
    fn new(experience: &Bound<'_, Experience>, num_rows: usize) -> PyResult<Self> {
        Ok(Self {
            experience: Arc::clone(&experience.get().0),
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
        let least = |cost| lock(&self.experience).least_gain(self.rows.iter(), cost, 1);
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
        let mut experience = lock(&self.experience);
        let chosen = experience.choose(&mut rows, &trees, num_rows, costs, passes, seconds);
        let mut chosen = chosen.into_iter();
        let size = |draft: &Option<_>| draft.as_ref().and_then(|_| chosen.next()).unwrap_or(0);
        Ok(drafts.iter().map(size).collect())
    }

    /// Learns from the tokens that each row emitted after its draft; None stands for a row that ended.
    fn learn(&mut self, emitted: Vec<Option<Vec<u32>>>) {
        let rows = self.rows.iter_mut().zip(&emitted);
        let outcomes = rows.filter_map(|(row, tokens)| Some((row, tokens.as_deref()?)));
        lock(&self.experience).learn(outcomes);
    }

    /// Ends a row; the last one takes its number.
    fn leave(&mut self, row: usize) {
        if row < self.rows.len() {
            self.rows.swap_remove(row);
        }
    }
}
