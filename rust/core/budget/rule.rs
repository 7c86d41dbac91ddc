//! Rule for the number of verified nodes of each row, and for the rows that draft.

use crate::budget::reliability::{Reliability, RowReliability};
use crate::budget::selection::{Passes, Selection, to_f64};
use crate::budget::step_cost::StepCost;
use crate::budget::step_times::StepTimes;
use crate::draft::token_tree::TokenTree;

/// The weight of a new value in a moving average.
const AVERAGING: f64 = 0.1;
/// The weight of a draft time below the average.
const AVERAGING_DOWN: f64 = 0.5;
/// The maximum fraction of the time that unprofitable drafts take.
const LOSING_SHARE: f64 = 0.01;
/// The maximum number of steps without a draft.
const MAX_BACKOFF: f64 = 31.0;

/// The source of the cost of a step.
#[derive(Debug)]
pub enum Costs<'a> {
    Known(&'a StepCost),
    Measured(&'a mut StepTimes),
}

/// The state of one row.
#[derive(Debug, Clone, Default)]
pub struct RowBudget {
    reliability: RowReliability,
    /// The moving average of the net gain of a draft, in tokens.
    avg_net_gain: f64,
    /// The remaining steps without a draft.
    backoff: usize,
    /// The last draft.
    draft: TokenTree,
    /// The number of its verified nodes.
    num_verified: usize,
}

impl RowBudget {
    /// Returns true if the row drafts in the next step.
    pub fn drafts(&self) -> bool {
        self.backoff == 0
    }

    /// Counts a step without a draft.
    pub fn pause(&mut self) {
        self.draft = TokenTree::default();
        self.backoff = self.backoff.saturating_sub(1);
    }

    /// Drops the nodes after the first of the draft: their outcome is not known.
    pub(crate) fn cut(&mut self, num_verified: usize) {
        self.draft.truncate(num_verified);
        self.num_verified = num_verified;
    }

    /// Updates the average net gain. While it is not positive, the row backs off.
    fn update(&mut self, profit: f64, backoff: f64) {
        self.avg_net_gain += AVERAGING * (profit - self.avg_net_gain);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 31")]
        let backoff = backoff.clamp(0.0, MAX_BACKOFF) as usize;
        self.backoff = if self.avg_net_gain <= 0.0 { backoff } else { 0 };
    }
}

/// Statistics of a drafter over all rows.
#[derive(Debug, Clone, Default)]
pub struct DraftStats {
    reliability: Reliability,
    /// The moving average of the draft time of a row, in seconds.
    draft_s: Option<f64>,
}

impl DraftStats {
    /// Returns statistics with this initial reliability.
    pub fn with_reliability(reliability: f64) -> Self {
        Self { reliability: reliability.into(), draft_s: None }
    }

    /// Returns the minimum probability of a node that can improve throughput in a step of these rows.
    pub fn least_gain<'a>(
        &self,
        rows: impl Iterator<Item = &'a RowBudget>,
        cost: &StepCost,
        start: usize,
    ) -> f64 {
        (cost.least_gain(start) / self.reliability.most(rows.map(|row| row.reliability))).min(1.0)
    }

    /// Returns the number of verified nodes of each draft.
    ///
    /// Rows without a draft may be omitted; `num_rows` counts all rows of the step. `draft_s` is the time
    /// of all drafts and updates, or 0 to ignore it. Drafts are stored until [`learn`](Self::learn).
    pub fn choose(
        &mut self,
        rows: &mut [&mut RowBudget],
        drafts: &[&TokenTree],
        num_rows: usize,
        costs: Costs<'_>,
        passes: Passes,
        draft_s: f64,
    ) -> Vec<usize> {
        let trusted = rows.iter().zip(drafts);
        let gains = trusted.map(|(row, draft)| self.reliability.gains(row.reliability, draft));
        let gains: Vec<_> = gains.collect();
        let selection = Selection::new(&gains, num_rows, passes);
        let (start, waiting) = match passes {
            Passes::Packed => (num_rows, 0),
            Passes::Padded => (1, 0),
            Passes::Chains { waiting } => (1, waiting),
        };
        let (num_nodes, cost) = choose_size(&selection, costs, start, waiting);
        let sizes = selection.sizes(num_nodes, &gains);
        for ((row, draft), &size) in rows.iter_mut().zip(drafts).zip(&sizes) {
            row.draft = (*draft).clone();
            row.num_verified = size;
        }
        if let Some(cost) = cost
            && !rows.is_empty()
        {
            let draft_s = self.usual_draft(draft_s / to_f64(rows.len()));
            let baseline_s = cost.seconds(selection.start());
            let extra = cost.seconds(selection.start() + to_f64(num_nodes)) - baseline_s;
            let price = extra / to_f64(sizes.iter().sum::<usize>().max(1));
            let backoff = draft_s * to_f64(rows.len()) / (LOSING_SHARE * baseline_s);
            for ((row, gains), &size) in rows.iter_mut().zip(&gains).zip(&sizes) {
                let gain: f64 = gains[..size].iter().sum();
                let loss = (price * to_f64(size) + draft_s) / baseline_s * to_f64(num_rows);
                row.update(gain - loss, backoff);
            }
        }
        sizes
    }

    /// Updates the statistics by the tokens that rows emitted after their last drafts.
    pub fn learn<'a>(&mut self, rows: impl Iterator<Item = (&'a mut RowBudget, &'a [u32])>) {
        let emitting = rows.filter(|(_, emitted)| !emitted.is_empty());
        let mut drafts = emitting.map(|(row, emitted)| {
            let draft = std::mem::take(&mut row.draft);
            (&mut row.reliability, draft, row.num_verified, emitted)
        });
        self.reliability.learn(&mut drafts);
    }

    fn usual_draft(&mut self, seconds: f64) -> f64 {
        let usual = self.draft_s.unwrap_or(seconds);
        // Interrupted drafts, and first ones with cold caches, say little about the next.
        let rate = if seconds > usual { AVERAGING } else { AVERAGING_DOWN };
        let usual = usual + rate * (seconds.min(3.0 * usual) - usual);
        self.draft_s = Some(usual);
        usual
    }
}

/// Returns the number of nodes to verify, and the cost behind the choice if it is known.
fn choose_size(
    selection: &Selection,
    costs: Costs<'_>,
    start: usize,
    waiting: usize,
) -> (usize, Option<StepCost>) {
    match costs {
        Costs::Known(cost) => {
            let best = selection.best(&|tokens| cost.seconds(tokens));
            (best, Some(cost.clone()))
        }
        Costs::Measured(times) => {
            let Some(cost) = times.cost(start) else {
                return (0, None);
            };
            let best = selection.best(&|tokens| cost.seconds(tokens));
            let worth = |seconds: &dyn Fn(f64) -> f64| start + waiting + selection.best(seconds);
            let probe = times.probe(start, best + waiting, &cost, worth);
            (probe.map_or(best, |tokens| tokens.saturating_sub(start + waiting)), Some(cost))
        }
    }
}
