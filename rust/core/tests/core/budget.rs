//! Budget by measured step times, in simulations whose optimum is known. The clock is simulated.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    reason = "small numbers"
)]

use specds_core::budget::{Costs, DraftSizes, DraftStats, Passes, RowBudget, StepCost, StepTimes};
use specds_core::draft::TokenTree;

use crate::random::Random;

/// Numbers of tokens, and the relative seconds of a step of each: straight lines between them.
type Curve = (&'static [f64], &'static [f64]);

fn relative((sizes, seconds): Curve, tokens: f64) -> f64 {
    let place = sizes.partition_point(|&size| size < tokens);
    let place = place.clamp(1, sizes.len() - 1);
    let slope = (seconds[place] - seconds[place - 1]) / (sizes[place] - sizes[place - 1]);
    seconds[place - 1] + (tokens - sizes[place - 1]) * slope
}

const MEASURED: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 17.0];

/// Measurements in llama.cpp with two models on one and two threads, then curves of a GPU and of tiles.
const CURVES: [(&str, Curve); 6] = [
    ("SmolLM2, one thread", (MEASURED, &[1.0, 1.93, 2.66, 3.16, 4.55, 8.12, 14.04])),
    ("SmolLM2, two threads", (MEASURED, &[1.0, 1.56, 2.07, 2.3, 2.75, 3.94, 6.93])),
    ("Gemma, one thread", (MEASURED, &[1.0, 2.08, 3.49, 3.02, 4.34, 6.53, 10.13])),
    ("GPU", (&[1.0, 17.0], &[1.0, 1.48])),
    ("a dear first token", (&[1.0, 2.0, 17.0], &[1.0, 2.3, 2.6])),
    ("tiles", (&[1.0, 8.0, 9.0, 17.0], &[1.0, 1.02, 2.0, 2.1])),
];

/// The acceptance rate of the next token of a draft, and the rate that the drafter claims.
#[derive(Clone, Copy)]
struct RequestKind {
    rate: f64,
    claim: f64,
}

const fn claiming(rate: f64, claim: f64) -> RequestKind {
    RequestKind { rate, claim }
}

const fn honest(rate: f64) -> RequestKind {
    claiming(rate, rate)
}

const UNPREDICTABLE: RequestKind = honest(0.02);
const CHAT: RequestKind = honest(0.3);
const EDIT: RequestKind = honest(0.93);
const OVERCONFIDENT: RequestKind = claiming(0.1, 0.9);
const UNDERCONFIDENT: RequestKind = claiming(0.9, 0.55);

type LoadNoise = fn(&mut Random, f64) -> f64;

struct Simulation {
    curve: Curve,
    step_s: f64,
    draft_s: f64,
    /// The factor that other load adds to the time of a step, at a time of the clock.
    noise: LoadNoise,
    random: Random,
    now: f64,
}

fn uniform(random: &mut Random) -> f64 {
    f64::from(random.below(1 << 30)) / f64::from(1 << 30)
}

fn quiet(random: &mut Random, _: f64) -> f64 {
    0.97 + 0.06 * uniform(random)
}

/// One step in fifteen also reads a prompt, and every other two seconds the machine has other load.
fn busy(random: &mut Random, now: f64) -> f64 {
    let reads = if random.below(15) == 0 { 6.0 } else { 1.0 };
    let load = if now % 4.0 > 2.0 { 1.8 } else { 1.0 };
    reads * load * (0.9 + 0.2 * uniform(random))
}

fn chain(probs: &[f32]) -> TokenTree {
    let length = u32::try_from(probs.len()).unwrap();
    let parents = (-1..).take(probs.len()).collect();
    TokenTree::new((0..length).collect(), parents, probs.to_vec()).unwrap()
}

fn promised(kind: RequestKind) -> TokenTree {
    let probs: Vec<f32> = (1..=16).map(|depth| kind.claim.powi(depth) as f32).collect();
    chain(&probs)
}

/// Totals of a run after its first second.
#[derive(Default)]
struct SimulatedRun {
    seconds: f64,
    /// The time of the same tokens without drafts.
    baseline_s: f64,
    nodes: f64,
    steps: f64,
}

impl SimulatedRun {
    fn gain(&self) -> f64 {
        self.baseline_s / self.seconds
    }
}

impl Simulation {
    fn new(curve: Curve, noise: LoadNoise) -> Self {
        Self { curve, step_s: 0.020, draft_s: 0.000_1, noise, random: Random(7), now: 0.0 }
    }

    /// Returns the emitted tokens of a row: the correct nodes of its draft, and the target's own token.
    fn emitted(&mut self, kind: RequestKind, size: usize) -> Vec<u32> {
        let is_right = |_: &u32| uniform(&mut self.random) < kind.rate;
        let mut tokens: Vec<u32> = (0..16).take_while(is_right).collect();
        let own = if tokens.len() > size { size as u32 } else { 99 };
        tokens.truncate(size);
        tokens.push(own);
        tokens
    }

    /// Runs requests of 60 tokens, of these kinds in turn in each row.
    fn run(&mut self, kinds: &[RequestKind], num_rows: usize, seconds: f64) -> SimulatedRun {
        let (mut draft_stats, mut times) = (DraftStats::default(), StepTimes::default());
        let mut rows = vec![(RowBudget::default(), 0); num_rows];
        let mut requests: Vec<usize> = (0..num_rows).collect();
        let mut run = SimulatedRun::default();
        while self.now < seconds {
            let kind_of = |row: usize| kinds[requests[row] % kinds.len()];
            let (mut due, mut places, mut drafts) = (Vec::new(), Vec::new(), Vec::new());
            for (row, (budget, _)) in rows.iter_mut().enumerate() {
                if budget.drafts() {
                    drafts.push(promised(kind_of(row)));
                    places.push(row);
                    due.push(budget);
                } else {
                    budget.pause();
                }
            }
            let draft_s = self.draft_s * drafts.len() as f64;
            let drafted: Vec<_> = drafts.iter().collect();
            let (costs, passes) = (Costs::Measured(&mut times), Passes::Packed);
            let chosen = draft_stats.choose(&mut due, &drafted, num_rows, costs, passes, draft_s);
            let mut sizes = vec![0; num_rows];
            for (&row, &size) in places.iter().zip(&chosen) {
                sizes[row] = size;
            }
            let num_tokens = num_rows + chosen.iter().sum::<usize>();
            let scale = self.step_s * (self.noise)(&mut self.random, self.now);
            let step_s = scale * relative(self.curve, num_tokens as f64);
            times.add(num_tokens, step_s);
            self.now += step_s + draft_s;
            let emitted: Vec<_> =
                (0..num_rows).map(|row| self.emitted(kind_of(row), sizes[row])).collect();
            let budgets = rows.iter_mut().map(|(budget, _)| budget);
            draft_stats.learn(budgets.zip(emitted.iter().map(Vec::as_slice)));
            if self.now > 1.0 {
                let baseline_s = scale * relative(self.curve, num_rows as f64) / num_rows as f64;
                run.seconds += step_s + draft_s;
                run.baseline_s += baseline_s * emitted.iter().map(Vec::len).sum::<usize>() as f64;
                run.nodes += (num_tokens - num_rows) as f64;
                run.steps += 1.0;
            }
            for (row, emitted) in emitted.iter().enumerate() {
                rows[row].1 += emitted.len();
                if rows[row].1 >= 60 {
                    rows[row] = (RowBudget::default(), 0);
                    requests[row] += 1;
                }
            }
        }
        run
    }
}

/// Returns the speedup of the best fixed number of nodes where requests of these kinds alternate.
fn best_fixed(curve: Curve, kinds: &[RequestKind]) -> f64 {
    let gain = |size: usize| {
        let time = relative(curve, 1.0 + size as f64);
        let steps = |kind: &RequestKind| {
            1.0 / (0..=size as i32).map(|depth| kind.rate.powi(depth)).sum::<f64>()
        };
        let steps = kinds.iter().map(steps).sum::<f64>() / kinds.len() as f64;
        1.0 / (steps * time)
    };
    (0..=16).map(gain).fold(0.0, f64::max)
}

const KINDS: [(&str, &[RequestKind]); 6] = [
    ("unpredictable", &[UNPREDICTABLE]),
    ("chat", &[CHAT]),
    ("edit", &[EDIT]),
    ("overconfident", &[OVERCONFIDENT]),
    ("underconfident", &[UNDERCONFIDENT]),
    ("all in turn", &[UNPREDICTABLE, EDIT, CHAT, OVERCONFIDENT, UNDERCONFIDENT]),
];

#[test]
fn requests_after_one_second_are_not_slower_than_without_drafts() {
    let mut slower = Vec::new();
    for (curve_name, curve) in CURVES {
        for (kind, kinds) in KINDS {
            for num_rows in [1, 4] {
                let noises = [("quiet", quiet as LoadNoise, 0.97), ("busy", busy, 0.95)];
                for (noise_name, noise, least) in noises {
                    let run = Simulation::new(curve, noise).run(kinds, num_rows, 30.0);
                    let case = format!("{curve_name}, {kind}, {num_rows} rows, {noise_name}");
                    if run.gain() < least {
                        slower.push(format!("{case}: {:.3}", run.gain()));
                    }
                }
            }
        }
    }
    assert!(slower.is_empty(), "{slower:#?}");
}

#[test]
fn profitable_drafts_reach_the_speedup_of_the_best_fixed_size() {
    let mut shorter = Vec::new();
    for (curve_name, curve) in CURVES {
        for (kind, kinds) in KINDS {
            // Wrong promises cost throughput.
            let is_miscalibrated = kind.ends_with("confident");
            let share = if is_miscalibrated { 0.6 } else { 0.85 };
            let best = best_fixed(curve, kinds);
            let gain = Simulation::new(curve, quiet).run(kinds, 1, 30.0).gain();
            if gain < share * best {
                shorter.push(format!("{curve_name}, {kind}: {gain:.3} of {best:.3}"));
            }
        }
    }
    assert!(shorter.is_empty(), "{shorter:#?}");
}

#[test]
fn unprofitable_drafts_stop_within_one_second() {
    for (_, curve) in CURVES.into_iter().take(3) {
        let run = Simulation::new(curve, quiet).run(&[CHAT], 1, 6.0);
        let nodes = run.nodes / run.steps;
        assert!(nodes < 0.1, "{nodes}");
    }
}

#[test]
fn invalid_times_are_ignored() {
    let mut times = StepTimes::default();
    assert!(times.usual() < 1e-9);
    times.add(17, 0.02);
    // The step may have been slowed by other load.
    let usual = times.usual();
    assert!((0.01..0.02).contains(&usual), "{usual}");
    for (num_tokens, seconds) in [(1, 0.0), (1, -1.0), (1, f64::NAN), (1, f64::INFINITY), (0, 1.0)]
    {
        times.add(num_tokens, seconds);
    }
    assert!((times.usual() - usual).abs() < 1e-9);
}

#[test]
fn expected_token_cost_counts_after_one_step_and_is_corrected() {
    let size = |times: &mut StepTimes| {
        let (mut row, draft) = (RowBudget::default(), promised(honest(0.8)));
        let (mut stats, costs) = (DraftStats::with_reliability(1.0), Costs::Measured(times));
        stats.choose(&mut [&mut row], &[&draft], 1, costs, Passes::Padded, 0.0)[0]
    };
    let after_one_step = |mut times: StepTimes| {
        times.add(1, 0.02);
        size(&mut times)
    };
    assert_eq!(after_one_step(StepTimes::default()), 0);
    let sizes = [0.1, 0.3, 0.9].map(|cost| after_one_step(StepTimes::with_token_cost(cost)));
    assert!(sizes[0] > sizes[1] && sizes[1] > sizes[2] && sizes[2] < 2, "{sizes:?}");
    for token_cost in [0.3, 0.01] {
        let mut times = StepTimes::with_token_cost(0.1);
        let mut run = || {
            let tokens = 1 + size(&mut times);
            times.add(tokens, 0.02 * (1.0 + token_cost * (tokens - 1) as f64));
            tokens - 1
        };
        let mut last: Vec<_> = (0..60).map(|_| run()).skip(39).collect();
        last.sort_unstable();
        let usual = last[last.len() / 2]; // some steps measure the one without drafts
        assert!(
            if token_cost > 0.1 { (1..8).contains(&usual) } else { usual > sizes[0] },
            "{last:?}"
        );
    }
}

/// Passes were measured before the first step, which shows the time of the host. A draft has the best size at once.
#[test]
fn measured_passes_count_with_the_time_that_the_first_step_takes_beyond_its_own() {
    let size = |token_s: f64, host_s: f64| {
        let pass = |tokens: usize| 0.010 + token_s * (tokens - 1) as f64;
        let mut times = StepTimes::with_token_cost(0.08);
        times.set_passes(&[(8, pass(8)), (1, pass(1)), (64, pass(64)), (2, 0.0), (3, f64::NAN)]);
        times.add(2, host_s + pass(2));
        let seconds = |tokens: f64| host_s + 0.010 + token_s * (tokens - 1.0);
        let known = StepCost::new(vec![(1.0, seconds(1.0)), (64.0, seconds(64.0))]);
        let of = |costs: Costs<'_>| {
            let (mut row, draft) = (RowBudget::default(), promised(honest(0.8)));
            let mut stats = DraftStats::with_reliability(1.0);
            stats.choose(&mut [&mut row], &[&draft], 1, costs, Passes::Padded, 0.0)[0]
        };
        (of(Costs::Measured(&mut times)), of(Costs::Known(&known.unwrap())))
    };
    let sizes =
        [(0.0001, 0.0), (0.001, 0.0), (0.002, 0.0), (0.002, 0.03), (0.02, 0.03), (0.02, 0.0)];
    let sizes = sizes.map(|(token_s, host_s)| size(token_s, host_s));
    for (measured, known) in sizes {
        assert!(measured.abs_diff(known) <= 1 + known / 4, "{sizes:?}");
    }
    assert!(sizes[3].0 > sizes[2].0, "{sizes:?}");
}

/// Drafts fill the graph that the first of their tokens needs, and make no step larger than the largest one.
#[test]
fn sizes_follow_captured_graphs() {
    let draft = promised(honest(0.8));
    let sizes = |graphs: &[usize], num_rows: usize, passes: Passes| {
        let mut times = StepTimes::with_token_cost(0.2);
        times.set_graph_sizes(graphs.to_vec());
        let mut stats = DraftStats::with_reliability(1.0);
        let mut rows = vec![RowBudget::default(); num_rows];
        let drafts = vec![&draft; num_rows];
        for num_tokens in [num_rows, graphs[0], graphs[0]] {
            times.add(num_tokens, 0.02 * (1.0 + 0.2 * graphs[0] as f64));
        }
        let mut rows: Vec<_> = rows.iter_mut().collect();
        stats.choose(&mut rows, &drafts, num_rows, Costs::Measured(&mut times), passes, 0.0)
    };
    let total = |graphs: &[usize], num_rows| {
        num_rows + sizes(graphs, num_rows, Passes::Packed).iter().sum::<usize>()
    };
    for num_rows in [1, 3, 8] {
        let (start, most) = (draft.len().min(8) * num_rows, (draft.len() + 1) * num_rows);
        assert_eq!(total(&[start], num_rows), start.min(most), "{num_rows} rows");
    }
    for (allowed, num_rows) in [(&[2, 4, 8][..], 3), (&[3], 2), (&[], 4)] {
        let sizes = sizes(&[64], num_rows, Passes::Uniform(DraftSizes::new(allowed)));
        assert!(
            sizes.iter().all(|size| size == &sizes[0] && (*size == 0 || allowed.contains(size)))
        );
        assert_eq!(sizes[0] > 0, !allowed.is_empty());
    }
    // No graph has more tokens.
    assert_eq!(sizes(&[6], 3, Passes::Uniform(DraftSizes::new(&[2, 4]))), [0; 3]);
}

#[test]
fn drafts_of_one_size_equal_brute_force() {
    let mut random = Random(5);
    for _ in 0..300 {
        let num_rows = 1 + random.below(5) as usize;
        // A probability above 0.75 counts as 0.75 at first.
        let rates = || honest(0.2 + 0.5 * uniform(&mut random));
        let drafts: Vec<_> = std::iter::repeat_with(rates).take(num_rows).map(promised).collect();
        let last = 1.0 + 40.0 * uniform(&mut random);
        let cost = StepCost::new(vec![(1.0, 1.0), (64.0, last)]).unwrap();
        let allowed = [0, 2, 4, 8];
        let mut stats = DraftStats::with_reliability(1.0);
        let mut rows = vec![RowBudget::default(); num_rows];
        let mut rows: Vec<_> = rows.iter_mut().collect();
        let passes = Passes::Uniform(DraftSizes::new(&allowed));
        let trees: Vec<_> = drafts.iter().collect();
        let sizes = stats.choose(&mut rows, &trees, num_rows, Costs::Known(&cost), passes, 0.0);
        let tokens = |size: usize| {
            let probs = drafts.iter().flat_map(|draft| draft.probs().iter().take(size));
            num_rows as f64 + probs.map(|&prob| f64::from(prob)).sum::<f64>()
        };
        let rate = num_rows as f64 / cost.seconds(num_rows as f64);
        let value =
            |size: usize| tokens(size) - rate * cost.seconds((num_rows * (size + 1)) as f64);
        let best = allowed.into_iter().map(value).fold(f64::MIN, f64::max);
        let chosen = allowed.into_iter().find(|&size| size >= sizes[0]).unwrap();
        let margin = 0.03 * num_rows as f64 + 1e-6;
        assert!(value(chosen) >= best - margin, "{sizes:?}");
    }
}

#[test]
fn least_gain_is_the_least_known_cost_of_a_further_token() {
    assert!(StepTimes::with_token_cost(0.5).least_gain(1) < 1e-9);
    for token_cost in [0.02, 0.1, 0.4] {
        let mut times = StepTimes::with_token_cost(0.13);
        for tokens in (1..=64).rev().cycle().take(640) {
            times.add(tokens, 0.02 * (1.0 + token_cost * (tokens - 1) as f64));
        }
        let least = times.least_gain(1);
        assert!((0.6..1.1).contains(&(least / token_cost)), "{least} of {token_cost}");
    }
}

#[test]
fn packed_sizes_equal_brute_force() {
    let mut random = Random(3);
    for _ in 0..300 {
        let num_rows = 1 + random.below(3) as usize;
        let probs = |random: &mut Random| {
            let ratio = 0.2 + 0.79 * uniform(random);
            let length = i32::try_from(random.below(5)).unwrap();
            (1..=length).map(|depth| ratio.powi(depth) as f32).collect()
        };
        // The first two of eight sure nodes count as rejected, and those above a node as accepted.
        let believed = |probs: &Vec<f32>| {
            let (ratio, mut gain, mut num_sure) = (probs.first().copied().unwrap_or(0.0), 1.0, 0.0);
            let mut next = || {
                let most = 1.0 - 2.0 / (8.0 + num_sure);
                num_sure += f64::from(u8::from(f64::from(ratio) > most));
                gain *= f64::from(ratio).min(most);
                gain
            };
            probs.iter().map(|_| next()).collect::<Vec<_>>()
        };
        let probs: Vec<Vec<f32>> = (0..num_rows).map(|_| probs(&mut random)).collect();
        let gains: Vec<_> = probs.iter().map(believed).collect();
        let mut points = vec![(1.0, 1.0)];
        for tokens in 2..16 {
            let step = 0.3 * uniform(&mut random).powi(3);
            points.push((f64::from(tokens), points.last().unwrap().1 + step));
        }
        let cost = StepCost::new(points).unwrap();
        let value = |sizes: &[usize]| {
            let rows = gains.iter().zip(sizes);
            let tokens = rows.flat_map(|(row, &size)| &row[..size]).sum::<f64>() + num_rows as f64;
            let seconds = cost.seconds((num_rows + sizes.iter().sum::<usize>()) as f64);
            // Before any draft, time is worth the tokens of steps without drafts.
            tokens - num_rows as f64 * seconds / cost.seconds(num_rows as f64)
        };
        let mut all = vec![vec![]];
        for row in &probs {
            let longer = |sizes: &Vec<usize>| {
                let sizes = sizes.clone();
                (0..=row.len()).map(move |size| [sizes.clone(), vec![size]].concat())
            };
            all = all.iter().flat_map(longer).collect();
        }
        let best = all.iter().map(|sizes| value(sizes)).fold(0.0, f64::max);
        let trees: Vec<_> = probs.iter().map(|probs| chain(probs)).collect();
        let trees: Vec<_> = trees.iter().collect();
        let mut rows = vec![RowBudget::default(); num_rows];
        let mut rows: Vec<_> = rows.iter_mut().collect();
        let (costs, passes) = (Costs::Known(&cost), Passes::Packed);
        let mut draft_stats = DraftStats::with_reliability(1.0);
        let sizes = draft_stats.choose(&mut rows, &trees, num_rows, costs, passes, 0.0);
        let expected = if best <= 0.03 * num_rows as f64 { 0.0 } else { best };
        assert!((value(&sizes) - expected).abs() < 1e-9, "{probs:?} {sizes:?}");
    }
}

/// A curve of this kind: a line, steps, a line with odd sizes that are slower, almost flat.
fn random_curve(random: &mut Random, kind: usize) -> Vec<f64> {
    let [slope, width, odd] = [(); 3].map(|()| uniform(random));
    let cost = |more: usize| match kind {
        0 => 1.0 + (0.02 + 0.5 * slope * slope) * more as f64,
        1 => 1.0 + (0.1 + 0.9 * slope) * (more / (2 + (7.0 * width) as usize)) as f64,
        2 => (1.0 + (0.15 + 0.3 * slope) * more as f64) * (1.0 + 0.25 * odd * (more % 2) as f64),
        _ => 1.0 + 0.02 * slope * more as f64,
    };
    (0..=16).map(cost).collect()
}

type StepNoise = (&'static str, fn(&mut Random, usize) -> f64);

const NOISES: [StepNoise; 4] = [
    ("none", |_, _| 1.0),
    ("some", |random, _| if random.below(10) < 3 { 2.0 + 2.0 * uniform(random) } else { 1.0 }),
    ("all", |random, _| 1.0 + 3.0 * uniform(random)),
    ("drift", |random, step| {
        (1.0 + 0.8 * (step as f64 / 60.0).sin()) * (0.95 + 0.1 * uniform(random))
    }),
];

/// Returns the speedup of the first 200 steps and of 400 more, with known costs or with measured ones.
fn speedups(cost: &[f64], is_known: bool, kind: usize, noise: usize, seed: u64) -> [f64; 2] {
    let (mut random, mut noises) = (Random(seed), Random(seed + 99));
    let points = (1..).map(f64::from).zip(cost.iter().copied()).collect();
    let (known, mut times) = (StepCost::new(points).unwrap(), StepTimes::default());
    let (mut draft_stats, mut row) = (DraftStats::default(), RowBudget::default());
    let kinds: [&[RequestKind]; 4] = [&[EDIT], &[EDIT, CHAT], &[CHAT], &[OVERCONFIDENT]];
    let mut totals = [[0.0; 2]; 2];
    for step in 0..600 {
        let kind = kinds[kind][step / 20 % kinds[kind].len()];
        let mut size = 0;
        let draft_s = if row.drafts() { 0.000_1 } else { 0.0 };
        if row.drafts() {
            let costs = if is_known { Costs::Known(&known) } else { Costs::Measured(&mut times) };
            // Known costs are in steps of 20 ms.
            let draft = if is_known { draft_s / 0.02 } else { draft_s };
            let (drafts, passes) = (promised(kind), Passes::Packed);
            size = draft_stats.choose(&mut [&mut row], &[&drafts], 1, costs, passes, draft)[0];
        } else {
            row.pause();
        }
        times.add(1 + size, 0.02 * cost[size] * NOISES[noise].1(&mut noises, step));
        let tokens = (0..16).take_while(|_| uniform(&mut random) < kind.rate).collect::<Vec<u32>>();
        let right = tokens.len().min(size);
        let emitted =
            [&tokens[..right], &[if tokens.len() > size { size as u32 } else { 99 }]].concat();
        draft_stats.learn([(&mut row, &emitted[..])].into_iter());
        let total = &mut totals[usize::from(step >= 200)];
        total[0] += 0.02 * emitted.len() as f64;
        total[1] += 0.02 * cost[size] + draft_s;
    }
    totals.map(|[baseline_s, seconds]| baseline_s / seconds)
}

/// Prints the share of the speedup with known costs under each noise: `cargo test --release -p specds-core --test core
/// noise -- --nocapture`.
#[test]
#[expect(clippy::print_stdout, reason = "the table")]
fn noise_costs_a_tenth_of_the_speedup_with_known_costs_at_most() {
    for (noise, (name, _)) in NOISES.iter().enumerate() {
        let (mut shares, mut least) = (Vec::new(), f64::INFINITY);
        for (curve, kind) in (0..4).flat_map(|curve| (0..4).map(move |kind| (curve, kind))) {
            let mut mean = [0.0; 3];
            for seed in 0..10 {
                let curve = random_curve(&mut Random(seed + 1), curve);
                let [first, later] = speedups(&curve, false, kind, noise, seed);
                let [_, known] = speedups(&curve, true, kind, noise, seed);
                for (mean, value) in mean.iter_mut().zip([first, later, known]) {
                    *mean += value / 10.0;
                }
            }
            shares.push([mean[0] / mean[2], mean[1] / mean[2]]);
            least = least.min(mean[0]);
        }
        let [first, later] =
            [0, 1].map(|part| shares.iter().map(|of| of[part]).sum::<f64>() / 16.0);
        println!("{name}: {first:.3} in 200 steps, {later:.3} later; least speedup {least:.3}");
        assert!(first > 0.93 && later > 0.96 && least > 0.98, "{name}: {shares:?}");
    }
}
