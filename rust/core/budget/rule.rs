//! Rule for the number of verified nodes of each row, and for the rows that draft.

use crate::budget::reliability::{Reliability, RowReliability};
use crate::budget::selection::{Passes, Selection, to_f64};
use crate::budget::step_cost::StepCost;
use crate::budget::step_times::StepTimes;
use crate::draft::token_tree::TokenTree;

/// The weight of a new value in a moving average.
const AVERAGING: f64 = 0.1;
/// The weight of a step in the rate of its row, relative to that of the next.
const RECENT: f64 = 0.95;
/// The weight of a step without drafts in the rate of a row, relative to that of the last step.
const FIRST_WEIGHT: f64 = 0.5;
/// The weight of a draft time below the average.
const AVERAGING_DOWN: f64 = 0.5;
/// The maximum fraction of the time that unprofitable drafts take.
const LOSING_SHARE: f64 = 0.01;
/// The maximum number of steps without a draft.
const MAX_BACKOFF: f64 = 31.0;

/// The source of the cost of a step.
#[derive(Debug)]
pub enum Costs<'a> {
    /// The operator's curve.
    Known(&'a StepCost),
    /// Estimates from the steps so far.
    Measured(&'a mut StepTimes),
}

/// The state of one row.
#[derive(Debug, Clone, Default)]
pub struct RowBudget {
    /// True if the request has penalties, which make drafted tokens less likely.
    is_penalized: bool,
    /// The reliability of the probabilities of its drafts.
    reliability: RowReliability,
    /// The moving average of the net gain of a draft, in tokens.
    avg_net_gain: f64,
    /// The remaining steps without a draft.
    backoff: usize,
    /// The number of drafts in a row that lost time.
    num_losing: i32,
    /// The last draft.
    draft: TokenTree,
    /// The number of its verified nodes.
    num_verified: usize,
    /// The expected tokens of the last steps; older ones count less.
    tokens: f64,
    /// The cost of the last steps; older ones count less.
    cost: f64,
}

impl RowBudget {
    pub(crate) fn of(is_penalized: bool) -> Self {
        let reliability = RowReliability::of(is_penalized);
        Self { is_penalized, reliability, ..Self::default() }
    }

    /// Returns to the state before the first draft.
    pub(crate) fn reset(&mut self) {
        *self = Self::of(self.is_penalized);
    }

    /// Stores a draft until [`learn`](Self::learn), and returns the probability of each node by the acceptance of
    /// earlier drafts of this row alone, on which no other row depends.
    pub(crate) fn expected(&mut self, draft: &TokenTree) -> Vec<f64> {
        (self.draft, self.num_verified) = (draft.clone(), draft.len());
        Reliability::of_one_row().gains(self.reliability, draft)
    }

    /// Updates the reliability of this row alone by the tokens that it emitted after its last draft.
    pub(crate) fn learn(&mut self, emitted: &[u32]) {
        let draft = std::mem::take(&mut self.draft);
        let outcome = (&mut self.reliability, draft, self.num_verified, emitted);
        Reliability::of_one_row().learn(std::iter::once(outcome));
    }

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
        self.num_losing = if self.avg_net_gain <= 0.0 { self.num_losing + 1 } else { 0 };
        // A first draft shows little, so the backoff doubles from one step on.
        let most = MAX_BACKOFF.min(2.0_f64.powi(self.num_losing) - 1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 31")]
        let steps = backoff.clamp(0.0, most) as usize;
        self.backoff = steps;
    }
}

/// Statistics of a drafter over all rows.
#[derive(Debug, Clone, Default)]
pub struct DraftStats {
    /// The reliability of the probabilities of the drafter.
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
    ///
    /// `least_gain` is that of a right probability.
    pub fn min_prob<'a>(&self, rows: impl Iterator<Item = &'a RowBudget>, least_gain: f64) -> f64 {
        (least_gain / self.reliability.max_factor(rows.map(|row| row.reliability))).min(1.0)
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
        // In passes that cost their longest row, the tokens of a row on average.
        let is_whole = matches!(passes, Passes::Packed | Passes::Uniform(_));
        let share = if is_whole { 1.0 } else { 1.0 / to_f64(num_rows) };
        let rate = |baseline: f64| rate(rows, baseline / to_f64(num_rows)) * share;
        let (num_nodes, cost, unit_s) = match costs {
            Costs::Known(cost) => {
                let seconds = |tokens| cost.seconds(tokens);
                let baseline = seconds(selection.start());
                let best = selection.best(&selection.values(rate(baseline), &seconds));
                let with_drafts = seconds(selection.tokens(best));
                (best, Some((baseline, with_drafts)), 1.0)
            }
            Costs::Measured(times) if times.is_known() => {
                let (number, baseline, with_drafts) = times.choose(&selection, &rate);
                // A probe shows nothing of what drafts are worth.
                (number, (!times.is_probe()).then_some((baseline, with_drafts)), times.unit_s())
            }
            Costs::Measured(_) => (0, None, 1.0),
        };
        let sizes = selection.sizes(num_nodes, &gains);
        for ((row, draft), &size) in rows.iter_mut().zip(drafts).zip(&sizes) {
            row.draft = (*draft).clone();
            row.num_verified = size;
        }
        if let Some((baseline, with_drafts)) = cost
            && !rows.is_empty()
        {
            let draft = self.usual_draft(draft_s / to_f64(rows.len())) / unit_s;
            let price = (with_drafts - baseline) / to_f64(sizes.iter().sum::<usize>().max(1));
            let backoff = draft * to_f64(rows.len()) / (LOSING_SHARE * baseline);
            for ((row, gains), &size) in rows.iter_mut().zip(&gains).zip(&sizes) {
                let gain: f64 = gains[..size].iter().sum();
                let loss = (price * to_f64(size) + draft) / baseline * to_f64(num_rows);
                row.update(gain - loss, backoff);
                row.tokens = RECENT * row.tokens + 1.0 + gain;
                row.cost = RECENT * row.cost + with_drafts / to_f64(num_rows);
            }
        }
        sizes
    }

    /// Returns to the initial reliability; the time of drafts stays.
    pub fn reset_reliability(&mut self) {
        self.reliability = Reliability::default();
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

/// Returns the expected tokens of rows per unit of cost, at least those of steps without drafts.
fn rate(rows: &[&mut RowBudget], baseline: f64) -> f64 {
    let (mut tokens, mut cost) = (FIRST_WEIGHT, FIRST_WEIGHT * baseline);
    for row in rows {
        tokens += row.tokens;
        cost += row.cost;
    }
    (tokens / cost).max(1.0 / baseline)
}
