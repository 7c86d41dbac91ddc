//! The seconds that steps take by their tokens, learned from the steps that ran.

use std::collections::BTreeMap;

use crate::budget::selection::to_f64;
use crate::budget::step_cost::StepCost;

/// The times of the steps that ran, by size.
///
/// A machine is faster or slower by the minute, and other work falls into some steps. So the times of sizes
/// are compared by way of the pace of the steps between them, not by the clock. What a size costs is
/// believed only after steps of that size: `trial` names the sizes that deserve one.
#[derive(Debug, Clone, Default)]
pub struct StepTimes {
    /// Seconds of a step over its relative time.
    pace: f64,
    sizes: BTreeMap<usize, Size>,
    num_steps: usize,
    total_s: f64,
    /// What trials took beyond steps without drafts.
    trials_s: f64,
    /// If the next step is a trial, the seconds of one without a draft, and the most that count.
    trial: Option<(f64, f64)>,
    /// The time of the last step over what its size usually takes.
    last_off: f64,
    /// The last step, if it is to tell what its size costs.
    tried: Option<Tried>,
    /// The size of a step without drafts.
    plain: Option<usize>,
    /// Whether the next step is without drafts, to be measured anew.
    is_plain_due: bool,
}

/// A step that tells what its size costs once the next one has told the pace behind it: between the two, other
/// work may have begun or ended.
#[derive(Debug, Clone, Copy)]
struct Tried {
    tokens: usize,
    seconds: f64,
}

/// Steps of similar numbers of tokens.
#[derive(Debug, Clone)]
struct Size {
    tokens: f64,
    /// Seconds of a step at a pace of 1.
    relative: f64,
    num_steps: usize,
    last_step: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self { tokens: 0.0, relative: f64::INFINITY, num_steps: 0, last_step: 0 }
    }
}

impl Size {
    /// Forgets the steps that ran, so that the size is measured anew.
    fn forget(&mut self) {
        (self.num_steps, self.relative) = (0, f64::INFINITY);
    }
}

/// One step may have met other work of the machine, or the first use of a kernel; of two that differ much the
/// faster one tells, otherwise both.
const STEPS_KNOWN: usize = 2;
/// A size without a step for so long is measured anew.
const STEPS_FORGOTTEN: usize = 256;
/// Everything hangs on the step without drafts: it is measured anew after a share of all steps, at least and at
/// most so many.
const PLAIN_SHARE: usize = 4;
const STEPS_WITHOUT_PLAIN: (usize, usize) = (32, 128);
/// Steps that are off by this factor met other work, or its end.
const MOST_OFF: f64 = 1.5;
/// No size is tried while steps are off by this one.
const STEADY: f64 = 1.3;
/// A step counts at least this much in the time of its size.
const LEARNED: f64 = 0.01;
/// A step without drafts that is measured anew has become slower by at most this factor.
const MOST_RISE: f64 = 1.05;
/// How much of a step's deviation the pace follows at once. As the pace and a size follow the same steps, a
/// size that is
/// alone drifts by no more than a thirtieth of what the pace does.
const PACE: f64 = 0.3;
/// Trials may lose so many seconds at first, or so many steps, and such a share of all time later.
const FIRST_TRIALS_S: f64 = 0.4;
const FIRST_TRIALS: f64 = 4.0;
const TRIALS_SHARE: f64 = 0.005;

impl StepTimes {
    /// Takes a step that ran. Times that are none, and steps without tokens, are ignored.
    pub fn add(&mut self, num_tokens: usize, seconds: f64) {
        let trial = self.trial.take();
        if !(seconds > 0.0 && seconds.is_finite() && num_tokens > 0) {
            return;
        }
        if self.num_steps == 0 {
            self.pace = seconds;
        }
        self.num_steps += 1;
        self.total_s += seconds;
        if let Some((plain_s, most_s)) = trial {
            self.trials_s += (seconds.min(most_s) - plain_s).max(0.0);
        }
        let (place, step) = (bucket(num_tokens), Tried { tokens: num_tokens, seconds });
        let is_measured = self.is_due(place) || self.is_plain_due && self.plain == Some(place);
        if let Some(tried) = self.tried.take() {
            let size = self.sizes.get(&place).filter(|_| !is_measured);
            let pace = size.map_or(self.pace, |size| seconds / size.relative);
            self.judge(tried, pace);
        }
        if is_measured {
            if self.plain.is_some_and(|plain| self.is_known(plain)) {
                self.tried = Some(step);
            } else {
                self.judge(step, self.pace);
            }
            return;
        }
        let relative = seconds / self.pace;
        let Some(size) = self.sizes.get_mut(&place) else {
            return;
        };
        size.num_steps += 1;
        size.last_step = self.num_steps;
        let share = (1.0 / to_f64(size.num_steps)).max(LEARNED);
        let off = (relative / size.relative).clamp(1.0 / MOST_OFF, MOST_OFF);
        self.pace *= off.powf(PACE);
        size.relative *= off.powf(share);
        size.tokens += share * (to_f64(num_tokens) - size.tokens);
        self.last_off = off;
    }

    /// Learns from a step between two paces, by the one that is worse for drafts.
    fn judge(&mut self, tried: Tried, pace_after: f64) {
        let place = bucket(tried.tokens);
        let is_plain = self.plain == Some(place) && self.is_known(place);
        let pace = if is_plain { self.pace.max(pace_after) } else { self.pace.min(pace_after) };
        let relative = tried.seconds / pace;
        let size = self.sizes.entry(place).or_default();
        size.last_step = self.num_steps;
        if is_plain {
            size.relative = relative.min(size.relative * MOST_RISE);
            return;
        }
        if size.num_steps >= STEPS_KNOWN {
            size.forget();
        }
        size.num_steps += 1;
        let off = relative / size.relative;
        if (1.0 / STEADY..STEADY).contains(&off) {
            size.relative *= off.sqrt();
        } else {
            size.relative = size.relative.min(relative);
        }
        size.tokens = to_f64(tried.tokens);
    }

    fn is_known(&self, place: usize) -> bool {
        let size = self.sizes.get(&place);
        size.is_some_and(|size| size.num_steps >= STEPS_KNOWN)
    }

    /// The seconds of a step like the last one; 0 where none ran.
    pub fn usual(&self) -> f64 {
        let latest = self.sizes.values().max_by_key(|size| size.last_step);
        latest.map_or(0.0, |size| size.relative * self.pace)
    }

    /// What is known by steps that ran; `None` while a step of `start` tokens, that of no draft, is not.
    ///
    /// Beyond the largest size that is known, a token is taken to cost what it costs on average.
    pub fn cost(&mut self, start: usize) -> Option<StepCost> {
        let (least, most) = STEPS_WITHOUT_PLAIN;
        let patience = (self.num_steps / PLAIN_SHARE).clamp(least, most);
        self.plain = Some(bucket(start));
        let plain = self.sizes.get(&bucket(start))?;
        if !self.is_known(bucket(start)) || self.is_waiting(start) {
            return None;
        }
        self.is_plain_due = self.tried.is_none() && plain.last_step + patience < self.num_steps;
        if self.is_plain_due {
            return None;
        }
        let least_of_larger = plain.relative;
        let known = self.sizes.iter();
        let known = known.filter(|(_, size)| size.num_steps >= STEPS_KNOWN);
        // No draft makes a step faster.
        let seconds = |(&place, size): (&usize, &Size)| {
            let is_larger = place > bucket(start);
            let least = if is_larger { least_of_larger } else { 0.0 };
            (size.tokens, size.relative.max(least) * self.pace)
        };
        Some(StepCost::measured(known.map(seconds).collect()))
    }

    /// The tokens that the next step should have, to learn what they cost.
    ///
    /// `most_worth` is how many would be worth their time by a cost. A size is tried if it would pay at the
    /// cost of the next smaller one, and has more than the `best` number of nodes that is known. The smallest
    /// comes first, so that no step is much slower than one that ran.
    pub(crate) fn trial(
        &mut self,
        start: usize,
        best: usize,
        cost: &StepCost,
        most_worth: impl FnOnce(&dyn Fn(f64) -> f64) -> usize,
    ) -> Option<usize> {
        let plain_s = cost.seconds(to_f64(start));
        let first_s = FIRST_TRIALS_S.max(FIRST_TRIALS * plain_s);
        let is_spent = self.trials_s > first_s + TRIALS_SHARE * self.total_s;
        if is_spent || self.tried.is_some() || !(1.0 / STEADY..STEADY).contains(&self.last_off) {
            return None;
        }
        let most = most_worth(&|tokens| self.least_seconds(tokens, start, cost));
        let mut sizes = start + best + 1..=most;
        let first = sizes.find(|&tokens| self.is_due(bucket(tokens)))?;
        let same = |tokens: &usize| bucket(*tokens) == bucket(first);
        let last = (first..=most).take_while(same).last()?;
        // What a step takes beyond as many plain ones is other work's.
        self.trial = Some((plain_s, plain_s * to_f64(last) / to_f64(start)));
        Some(last)
    }

    /// What a step takes at least: as long as one of the next smaller size that is known.
    fn least_seconds(&self, tokens: f64, start: usize, cost: &StepCost) -> f64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of tokens"
        )]
        let size = bucket(tokens as usize);
        if !self.is_due(size) {
            return cost.seconds(tokens);
        }
        let smaller = self.sizes.range(bucket(start)..size).rev();
        let known = smaller.map(|(&size, known)| (size, known.tokens));
        let mut known = known.filter(|&(size, _)| !self.is_due(size));
        cost.seconds(known.next().map_or(to_f64(start), |(_, tokens)| tokens))
    }

    /// Whether a size has not been tried often enough, or not lately.
    fn is_waiting(&self, start: usize) -> bool {
        self.tried.is_some_and(|tried| bucket(tried.tokens) != bucket(start))
    }

    fn is_due(&self, size: usize) -> bool {
        self.sizes.get(&size).is_none_or(|size| {
            size.num_steps < STEPS_KNOWN || size.last_step + STEPS_FORGOTTEN < self.num_steps
        })
    }
}

/// Up to 8 tokens a size of its own each, then two for each doubling.
fn bucket(num_tokens: usize) -> usize {
    if num_tokens <= 8 {
        return num_tokens;
    }
    let doublings = (num_tokens - 1).ilog2() as usize;
    let is_upper = (num_tokens - 1) >> (doublings - 1) & 1;
    3 + 2 * doublings + is_upper
}
