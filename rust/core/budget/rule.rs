//! The rule that says how many nodes of each row's draft are verified, and which rows draft at all.

use crate::budget::selection::{Passes, Selection, to_f64};
use crate::budget::step_cost::StepCost;
use crate::budget::step_times::StepTimes;
use crate::budget::trust::{RowTrust, Trust};
use crate::draft::token_tree::TokenTree;

/// The weight of a new value in an average.
const AVERAGING: f64 = 0.1;
/// The weight of a draft that took less time than usual.
const AVERAGING_DOWN: f64 = 0.5;
/// While drafts lose, they take at most this share of the time.
const LOSING_SHARE: f64 = 0.01;
const LONGEST_WAIT: f64 = 31.0;

/// What a step costs.
#[derive(Debug)]
pub enum Costs<'a> {
    Known(&'a StepCost),
    Measured(&'a mut StepTimes),
}

/// What a budget knows of one row.
#[derive(Debug, Clone, Default)]
pub struct RowBudget {
    trust: RowTrust,
    /// What drafts gained lately, less their own time, in tokens.
    worth: f64,
    wait: usize,
    draft: TokenTree,
    num_verified: usize,
}

impl RowBudget {
    /// Whether the row drafts in the next step.
    pub fn drafts(&self) -> bool {
        self.wait == 0
    }

    /// Lets a step pass without a draft.
    pub fn pause(&mut self) {
        self.draft = TokenTree::default();
        self.wait = self.wait.saturating_sub(1);
    }

    /// Takes what a draft gained, less what it cost, in tokens; while drafts lose on average, they wait.
    fn judge(&mut self, profit: f64, wait: f64) {
        self.worth += AVERAGING * (profit - self.worth);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 31")]
        let wait = wait.clamp(0.0, LONGEST_WAIT) as usize;
        self.wait = if self.worth <= 0.0 { wait } else { 0 };
    }
}

/// What a drafter has been worth in all rows.
#[derive(Debug, Clone, Default)]
pub struct Experience {
    trust: Trust,
    /// The usual time of a row's draft.
    draft_s: Option<f64>,
}

impl Experience {
    /// With this trust in a drafter that is not known yet.
    pub fn trusting(trust: f64) -> Self {
        Self { trust: trust.into(), draft_s: None }
    }

    /// The least probability of a node that could pay in a step of so many rows.
    pub fn least_gain<'a>(
        &self,
        rows: impl Iterator<Item = &'a RowBudget>,
        cost: &StepCost,
        start: usize,
    ) -> f64 {
        (cost.least_gain(start) / self.trust.most(rows.map(|row| row.trust))).min(1.0)
    }

    /// How many nodes of the draft of each of these rows are verified.
    ///
    /// Rows that drafted nothing for want of a session or of worth may be left out; `num_rows` is all
    /// rows of the step. `draft_s` is the time of all drafts and of what is learned for them, 0 where it must
    /// not count. The drafts are kept until [`learn`](Self::learn).
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
        let gains = trusted.map(|(row, draft)| self.trust.gains(row.trust, draft));
        let gains: Vec<_> = gains.collect();
        let selection = Selection::new(&gains, num_rows, passes);
        let (num_nodes, cost) = decide(&selection, costs, num_rows);
        let sizes = selection.sizes(num_nodes, &gains);
        for ((row, draft), &size) in rows.iter_mut().zip(drafts).zip(&sizes) {
            row.draft = (*draft).clone();
            row.num_verified = size;
        }
        if let Some(cost) = cost
            && !rows.is_empty()
        {
            let draft_s = self.usual_draft(draft_s / to_f64(rows.len()));
            let plain = cost.seconds(selection.start());
            let extra = cost.seconds(selection.start() + to_f64(num_nodes)) - plain;
            let price = extra / to_f64(sizes.iter().sum::<usize>().max(1));
            let wait = draft_s * to_f64(rows.len()) / (LOSING_SHARE * plain);
            for ((row, gains), &size) in rows.iter_mut().zip(&gains).zip(&sizes) {
                let gain: f64 = gains[..size].iter().sum();
                let loss = (price * to_f64(size) + draft_s) / plain * to_f64(num_rows);
                row.judge(gain - loss, wait);
            }
        }
        sizes
    }

    /// Learns from the tokens that rows emitted after their last drafts.
    pub fn learn<'a>(&mut self, rows: impl Iterator<Item = (&'a mut RowBudget, &'a [u32])>) {
        let emitting = rows.filter(|(_, emitted)| !emitted.is_empty());
        let mut drafts = emitting.map(|(row, emitted)| {
            let draft = std::mem::take(&mut row.draft);
            (&mut row.trust, draft, row.num_verified, emitted)
        });
        self.trust.learn(&mut drafts);
    }

    fn usual_draft(&mut self, seconds: f64) -> f64 {
        let usual = self.draft_s.unwrap_or(seconds);
        // Interrupted drafts, and the first ones, whose data is in no cache, say little of the next.
        let rate = if seconds > usual { AVERAGING } else { AVERAGING_DOWN };
        let usual = usual + rate * (seconds.min(3.0 * usual) - usual);
        self.draft_s = Some(usual);
        usual
    }
}

/// The nodes to verify, and the cost by which they were chosen, where it is known.
fn decide(selection: &Selection, costs: Costs<'_>, num_rows: usize) -> (usize, Option<StepCost>) {
    match costs {
        Costs::Known(cost) => {
            let best = selection.best(&|tokens| cost.seconds(tokens));
            (best, Some(cost.clone()))
        }
        Costs::Measured(times) => {
            let Some(cost) = times.cost(num_rows) else {
                return (0, None);
            };
            let best = selection.best(&|tokens| cost.seconds(tokens));
            let worth = |seconds: &dyn Fn(f64) -> f64| num_rows + selection.best(seconds);
            let trial = times.trial(num_rows, best, &cost, worth);
            (trial.map_or(best, |tokens| tokens - num_rows), Some(cost))
        }
    }
}
