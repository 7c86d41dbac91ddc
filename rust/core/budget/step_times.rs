//! Step cost measured from the steps of the engine.

use std::collections::BTreeMap;

use crate::budget::selection::to_f64;
use crate::budget::step_cost::StepCost;

/// Estimates of the step cost from observed steps, by batch size.
///
/// The speed of a machine drifts, and other load disturbs single steps. Sizes are therefore compared by
/// the machine speed of the steps between them, not as measured. A size is used only after two
/// observations; `probe` selects the sizes that are worth one.
#[derive(Debug, Clone, Default)]
pub struct StepTimes {
    /// The seconds of a step divided by its relative time.
    machine_speed: f64,
    /// The statistics of each size.
    sizes: BTreeMap<usize, SizeStats>,
    num_steps: usize,
    /// The time of all steps, in seconds.
    total_s: f64,
    /// The time of probes beyond that of baseline steps, in seconds.
    probes_s: f64,
    /// The seconds of a baseline step, and the maximum that counts, if the next step is a probe.
    probe_bounds: Option<(f64, f64)>,
    /// The time of the last step divided by the usual time of its size.
    last_deviation: f64,
    /// The last step, if it is a measurement.
    pending_probe: Option<PendingProbe>,
    /// The size of a baseline step.
    baseline: Option<usize>,
    /// Set if the next step is a baseline step, to be measured again.
    is_baseline_due: bool,
}

/// A measured step. It is used after the next step has shown the machine speed on its other side, because
/// other load may have started or stopped in between.
#[derive(Debug, Clone, Copy)]
struct PendingProbe {
    tokens: usize,
    seconds: f64,
}

/// Statistics of steps with similar numbers of tokens.
#[derive(Debug, Clone)]
struct SizeStats {
    /// The average number of tokens.
    tokens: f64,
    /// The seconds of a step at a machine speed of 1.
    relative: f64,
    /// The number of steps that were measured.
    num_steps: usize,
    /// The index of the last step of this size.
    last_step: usize,
}

impl Default for SizeStats {
    fn default() -> Self {
        Self { tokens: 0.0, relative: f64::INFINITY, num_steps: 0, last_step: 0 }
    }
}

impl SizeStats {
    /// Discards the measurements, so that the size is measured again.
    fn forget(&mut self) {
        (self.num_steps, self.relative) = (0, f64::INFINITY);
    }
}

/// The number of measurements after which a size is used. One step may be disturbed by other load or by
/// the first use of a kernel. The faster of two counts if they differ much, else both.
const STEPS_KNOWN: usize = 2;
/// The number of steps after which an unused size is measured again.
const STEPS_FORGOTTEN: usize = 256;
/// The baseline step is the reference for all decisions. It is measured again after `num_steps /
/// BASELINE_SHARE` steps, within [`STEPS_WITHOUT_BASELINE`].
const BASELINE_SHARE: usize = 4;
/// The minimum and maximum number of steps between two measurements of the baseline.
const STEPS_WITHOUT_BASELINE: (usize, usize) = (32, 128);
/// A step that deviates by this factor was disturbed by other load.
const MAX_DEVIATION: f64 = 1.5;
/// No size is probed while steps deviate by this factor.
const STEADY_DEVIATION: f64 = 1.3;
/// The minimum weight of a step in the time of its size.
const LEARNED: f64 = 0.01;
/// The maximum rise of the baseline in one measurement.
const MOST_RISE: f64 = 1.05;
/// The exponent with which the machine speed follows a deviation. Since the machine speed and a size
/// follow the same steps, the drift of a size without others is at most a thirtieth of this.
const MACHINE_SPEED_RATE: f64 = 0.3;
/// The time that the first probes may take, in seconds.
const FIRST_PROBES_S: f64 = 0.4;
/// The time that the first probes may take, in baseline steps.
const FIRST_PROBES: f64 = 4.0;
/// The fraction of all time that later probes may take.
const PROBES_SHARE: f64 = 0.005;

impl StepTimes {
    /// Adds an observed step. Invalid times and steps without tokens are ignored.
    pub fn add(&mut self, num_tokens: usize, seconds: f64) {
        let probe_bounds = self.probe_bounds.take();
        if !(seconds > 0.0 && seconds.is_finite() && num_tokens > 0) {
            return;
        }
        if self.num_steps == 0 {
            self.machine_speed = seconds;
        }
        self.num_steps += 1;
        self.total_s += seconds;
        if let Some((baseline_s, most_s)) = probe_bounds {
            self.probes_s += (seconds.min(most_s) - baseline_s).max(0.0);
        }
        let (place, step) = (bucket(num_tokens), PendingProbe { tokens: num_tokens, seconds });
        let is_measured =
            self.is_due(place) || self.is_baseline_due && self.baseline == Some(place);
        if let Some(pending_probe) = self.pending_probe.take() {
            let size = self.sizes.get(&place).filter(|_| !is_measured);
            let machine_speed = size.map_or(self.machine_speed, |size| seconds / size.relative);
            self.update(pending_probe, machine_speed);
        }
        if is_measured {
            if self.baseline.is_some_and(|baseline| self.is_known(baseline)) {
                self.pending_probe = Some(step);
            } else {
                self.update(step, self.machine_speed);
            }
            return;
        }
        let relative = seconds / self.machine_speed;
        let Some(size) = self.sizes.get_mut(&place) else {
            return;
        };
        size.num_steps += 1;
        size.last_step = self.num_steps;
        let share = (1.0 / to_f64(size.num_steps)).max(LEARNED);
        let off = (relative / size.relative).clamp(1.0 / MAX_DEVIATION, MAX_DEVIATION);
        self.machine_speed *= off.powf(MACHINE_SPEED_RATE);
        size.relative *= off.powf(share);
        size.tokens += share * (to_f64(num_tokens) - size.tokens);
        self.last_deviation = off;
    }

    /// Updates a size by a step between two machine speeds, using the one that is less favorable for
    /// drafts.
    fn update(&mut self, pending_probe: PendingProbe, machine_speed_after: f64) {
        let place = bucket(pending_probe.tokens);
        let is_baseline = self.baseline == Some(place) && self.is_known(place);
        let machine_speed = if is_baseline {
            self.machine_speed.max(machine_speed_after)
        } else {
            self.machine_speed.min(machine_speed_after)
        };
        let relative = pending_probe.seconds / machine_speed;
        let size = self.sizes.entry(place).or_default();
        size.last_step = self.num_steps;
        if is_baseline {
            size.relative = relative.min(size.relative * MOST_RISE);
            return;
        }
        if size.num_steps >= STEPS_KNOWN {
            size.forget();
        }
        size.num_steps += 1;
        let off = relative / size.relative;
        if (1.0 / STEADY_DEVIATION..STEADY_DEVIATION).contains(&off) {
            size.relative *= off.sqrt();
        } else {
            size.relative = size.relative.min(relative);
        }
        size.tokens = to_f64(pending_probe.tokens);
    }

    fn is_known(&self, place: usize) -> bool {
        let size = self.sizes.get(&place);
        size.is_some_and(|size| size.num_steps >= STEPS_KNOWN)
    }

    /// Returns the expected seconds of a step like the last one, or 0 before any.
    pub fn usual(&self) -> f64 {
        let latest = self.sizes.values().max_by_key(|size| size.last_step);
        latest.map_or(0.0, |size| size.relative * self.machine_speed)
    }

    /// Returns the measured cost, or `None` while the baseline step of `start` tokens is not measured.
    ///
    /// Beyond the largest measured size, a token costs the average.
    pub fn cost(&mut self, start: usize) -> Option<StepCost> {
        let (least, most) = STEPS_WITHOUT_BASELINE;
        let patience = (self.num_steps / BASELINE_SHARE).clamp(least, most);
        self.baseline = Some(bucket(start));
        let baseline = self.sizes.get(&bucket(start))?;
        if !self.is_known(bucket(start)) || self.is_waiting(start) {
            return None;
        }
        self.is_baseline_due =
            self.pending_probe.is_none() && baseline.last_step + patience < self.num_steps;
        if self.is_baseline_due {
            return None;
        }
        let baseline_relative = baseline.relative;
        let known = self.sizes.iter();
        let known = known.filter(|(_, size)| size.num_steps >= STEPS_KNOWN);
        // No draft makes a step faster than the baseline.
        let seconds = |(&place, size): (&usize, &SizeStats)| {
            let is_larger = place > bucket(start);
            let least = if is_larger { baseline_relative } else { 0.0 };
            (size.tokens, size.relative.max(least) * self.machine_speed)
        };
        Some(StepCost::measured(known.map(seconds).collect()))
    }

    /// Returns the tokens of the next step if it is a probe.
    ///
    /// `most_worth` returns the best number of tokens for a cost. A size is probed if it is worth its
    /// time at the cost of the next smaller one and exceeds the `best` measured number of nodes. The
    /// smallest comes first, so that no step is much slower than an earlier one.
    pub(crate) fn probe(
        &mut self,
        start: usize,
        best: usize,
        cost: &StepCost,
        most_worth: impl FnOnce(&dyn Fn(f64) -> f64) -> usize,
    ) -> Option<usize> {
        let baseline_s = cost.seconds(to_f64(start));
        let first_s = FIRST_PROBES_S.max(FIRST_PROBES * baseline_s);
        let is_spent = self.probes_s > first_s + PROBES_SHARE * self.total_s;
        if is_spent
            || self.pending_probe.is_some()
            || !(1.0 / STEADY_DEVIATION..STEADY_DEVIATION).contains(&self.last_deviation)
        {
            return None;
        }
        let most = most_worth(&|tokens| self.least_seconds(tokens, start, cost));
        let mut sizes = start + best + 1..=most;
        let first = sizes.find(|&tokens| self.is_due(bucket(tokens)))?;
        let same = |tokens: &usize| bucket(*tokens) == bucket(first);
        let last = (first..=most).take_while(same).last()?;
        // Time beyond that of as many baseline steps is due to other load.
        self.probe_bounds = Some((baseline_s, baseline_s * to_f64(last) / to_f64(start)));
        Some(last)
    }

    /// Returns a lower bound of the seconds of a step: those of the next smaller measured size.
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

    /// Returns true while a measurement of another size than the baseline is pending.
    fn is_waiting(&self, start: usize) -> bool {
        self.pending_probe
            .is_some_and(|pending_probe| bucket(pending_probe.tokens) != bucket(start))
    }

    fn is_due(&self, size: usize) -> bool {
        self.sizes.get(&size).is_none_or(|size| {
            size.num_steps < STEPS_KNOWN || size.last_step + STEPS_FORGOTTEN < self.num_steps
        })
    }
}

/// Returns the bucket of a size: one each up to 8 tokens, then two per power of two.
fn bucket(num_tokens: usize) -> usize {
    if num_tokens <= 8 {
        return num_tokens;
    }
    let doublings = (num_tokens - 1).ilog2() as usize;
    let is_upper = (num_tokens - 1) >> (doublings - 1) & 1;
    3 + 2 * doublings + is_upper
}
