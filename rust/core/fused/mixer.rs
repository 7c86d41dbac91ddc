//! Mixture of the experts of a node, and the updates of its weights.
//!
//! A prediction has two stages. The first mixes the counts of the experts by weights that depend on their
//! matches:
//!
//! ```text
//! p(t) = sum over e of w(e) c(e, t) / N(e)      w = softmax of the sums of e's weights, and of 0 for none
//! ```
//!
//! The second corrects the likeliest tokens by features of the token, and by the log-likelihood ratio of
//! each expert, scaled by its reliability:
//!
//! ```text
//! P(t) ~ p(t) exp(use(t) + token(t) + recent(t) + pair(t) + sum over e of reliability(e, t) x(e, t))
//! x(e, t) = ln of (c(e, t) + s p(t)) / ((N(e) + s) p(t)), within -3..=3       s = 0.3 D(e), e's tokens
//! ```
//!
//! The reliability of an expert has one term for the expert and, for tokens that it proposes, one for the
//! token. Every weight follows the gradient of the log-likelihood of the emitted token.
//!
//! Each weight was trained on few tokens, so sums of weights are too extreme. Scores are shrunk by 0.8 to
//! 0.85 for prediction, but not for learning.

use std::cmp::Reverse;
use std::hint::select_unpredictable;

use crate::fused::arena::{
    Candidate, DraftArena, END, Expert, MAX_SCORED, NodePrediction, ScoredToken,
};
use crate::memory::token_counts::TokenCounts;
use crate::portable_math::{
    exp, greater, hash, hash_of_two, ln, log2, min_finite, rank_of, saturating_u32,
};
use crate::weights::adaptation::AdaptationKeys;
use crate::weights::adaptation::{TenantAdaptation, TenantWeights};
use crate::weights::initial::{
    AGREEMENT, LAST_TOKEN, MAX_ORDER, NUM_FREQUENCIES, NUM_LEVELS, NUM_RANKS, NUM_RECENCIES,
    NUM_RELIABILITY_RANKS, NUM_RELIABILITY_SIZES, NUM_SIZES, NUM_SUPPORT_BUCKETS, ORDER, PAIR,
    PAIR_BITS, RECENT, RELIABILITY, TOKEN, TOKEN_BITS, TOKEN_RELIABILITY, TOP_TOKEN, USE,
};
use crate::weights::kind::ExpertKind;

/// The learning rate of the weight that an expert selects by its match.
const ORDER_RATE: f32 = 0.3;
/// The learning rate of all other weights of an expert.
const EXPERT_RATE: f32 = 0.12;
/// The learning rate of a candidate's weights that no token selects.
const CANDIDATE_RATE: f32 = 0.03;
/// The learning rate of a candidate's weights that a token selects.
const TOKEN_RATE: f32 = 0.06;
/// The learning rate of the reliability of an expert.
const RELIABILITY_RATE: f32 = 0.006;
/// The learning rate of the reliability of a kind of expert for a token.
const TOKEN_RELIABILITY_RATE: f32 = 0.009;

/// The factor of an expert's score in a prediction.
const EXPERT_SHRINKAGE: f32 = 0.85;
/// The factor of a candidate's score in a prediction.
const CANDIDATE_SHRINKAGE: f32 = 0.8;

/// Probability assigned to tokens that no expert proposes.
const UNPROPOSED_PROB: f32 = 1e-3;
/// The bound of a score.
const MAX_SCORE: f32 = 20.0;
/// The bound of a log-likelihood ratio.
const MAX_RATIO: f32 = 3.0;

/// Features of the request that are not experts.
pub(crate) struct MixerInputs<'a> {
    /// The last tokens before the predicted one.
    pub(crate) tail: &'a [u32],
    /// The number of uses of each token in the request.
    pub(crate) uses: &'a TokenCounts,
    /// The number of uses of each token in the group of the request.
    pub(crate) uses_of_group: Option<&'a TokenCounts>,
    /// Half the log2 frequency of each token in the corpus.
    pub(crate) frequencies: &'a [u8],
    /// Tokens with a smaller probability are not candidates.
    pub(crate) min_child_prob: f32,
    /// The maximum number of candidates, at least 1.
    pub(crate) max_candidates: usize,
}

/// Predicts the token after the node whose experts were added last.
pub(crate) fn predict(
    weights: TenantWeights<'_>,
    arena: &mut DraftArena,
    inputs: &MixerInputs<'_>,
) -> NodePrediction {
    let mut node = arena.node();
    set_expert_keys(arena, &node, inputs);
    weigh(weights, arena, &mut node);
    choose(arena, &mut node, inputs);
    correct(weights, arena, &node);
    node
}

fn set_expert_keys(arena: &mut DraftArena, node: &NodePrediction, inputs: &MixerInputs<'_>) {
    let last = inputs.tail.last().copied().unwrap_or(0);
    let scored = &arena.scored[node.scored.clone()];
    let experts = &mut arena.experts[node.experts.clone()];
    let mut top_slots = [None; ExpertKind::COUNT];
    for expert in experts.iter().rev() {
        top_slots[expert.matched.kind.index()] = Some(expert.top_slot);
    }
    for expert in experts {
        let matched = expert.matched;
        let kind = matched.kind.index();
        let size = log2(matched.num_matches.max(1.0));
        let order = order_level(matched.order);
        let order_index = (kind * MAX_ORDER + order - 1) * NUM_SIZES + level(size / 2.0, NUM_SIZES);
        let others = match matched.kind {
            ExpertKind::DATASTORE => [ExpertKind::CONTEXT, ExpertKind::MEMORY],
            ExpertKind::CONTEXT => [ExpertKind::DATASTORE, ExpertKind::MEMORY],
            _ => [ExpertKind::DATASTORE, ExpertKind::CONTEXT],
        };
        let [first, second] = others.map(|other| match top_slots[other.index()] {
            None => 0,
            Some(top) if top == expert.top_slot => 1,
            Some(_) => 2,
        });
        let is_alone = usize::from(top_slots[kind] != Some(expert.top_slot));
        let rank = kind * NUM_RANKS + matched.rank.min(NUM_RANKS - 1);
        let agreement = ((rank * 3 + first) * 3 + second) * 2 + is_alone;
        let support_bucket = support_bucket(expert);
        let top_token =
            scored[expert.top_slot].token.wrapping_mul(4) + saturating_u32(support_bucket);
        expert.keys = AdaptationKeys {
            shapes: [
                ORDER.key(order_index * NUM_SUPPORT_BUCKETS + support_bucket),
                AGREEMENT.key(agreement),
            ],
            tokens: [
                LAST_TOKEN.key_of(matched.kind, last),
                TOP_TOKEN.key_of(matched.kind, top_token),
            ],
        };
        let rank = kind * NUM_RELIABILITY_RANKS + matched.rank.min(NUM_RELIABILITY_RANKS - 1);
        let reliability_size = level(size / 1.5, NUM_RELIABILITY_SIZES);
        expert.reliability_key = RELIABILITY
            .key((rank * (MAX_ORDER + 1) + order) * NUM_RELIABILITY_SIZES + reliability_size);
    }
}

/// Returns the bucket of a match length. Long matches share buckets.
fn order_level(order: usize) -> usize {
    match order {
        0 => 1,
        1..=4 => order,
        5..=6 => 5,
        7..=9 => 6,
        10..=15 => 7,
        _ => MAX_ORDER,
    }
}

/// Returns the support size bucket: 0 for a single continuation, 1 for few distinct ones relative to the
/// matches, else 2.
fn support_bucket(expert: &Expert) -> usize {
    match expert.counts.len() {
        1 => 0,
        number if (number as f32) < 0.3 * expert.matched.num_matches => 1,
        _ => 2,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it saturates, and is limited"
)]
fn level(number: f32, num_levels: usize) -> usize {
    (number as u32 as usize).min(num_levels - 1)
}

fn weigh(weights: TenantWeights<'_>, arena: &mut DraftArena, node: &mut NodePrediction) {
    let experts = &mut arena.experts[node.experts.clone()];
    let scored = &mut arena.scored[node.scored.clone()];
    let mut sum = 1.0;
    for expert in experts.iter_mut() {
        let score = weights.sum(&expert.keys);
        expert.score = score.clamp(-MAX_SCORE, MAX_SCORE);
        expert.weight = exp(EXPERT_SHRINKAGE * expert.score);
        sum += expert.weight;
    }
    for expert in experts {
        expert.weight /= sum;
        let scale = expert.weight / expert.total;
        for count in &arena.counts[expert.counts.clone()] {
            let scored = &mut scored[count.slot as usize];
            let prob = scale * count.count;
            scored.prob += prob;
            let is_largest = prob > scored.largest_prob;
            scored.largest_prob = greater(prob, scored.largest_prob);
            scored.kind = select_unpredictable(is_largest, expert.matched.kind, scored.kind);
        }
    }
}

fn choose(arena: &mut DraftArena, node: &mut NodePrediction, inputs: &MixerInputs<'_>) {
    let first = arena.candidates.len();
    let scored = &arena.scored[node.scored.clone()];
    let ranked = &mut arena.ranked;
    ranked.clear();
    let likely = scored.iter().zip(0..);
    let likely = likely.filter(|(scored, _)| scored.prob >= inputs.min_child_prob);
    ranked.extend(likely.map(|(scored, slot)| (rank_of(scored.prob, scored.token), slot)));
    let most = inputs.max_candidates;
    if ranked.len() > most {
        ranked.select_nth_unstable_by_key(most - 1, |&(rank, _)| Reverse(rank));
        ranked.truncate(most);
    }
    let highest = ranked.iter().map(|&(rank, _)| rank).max();
    let recent = Recent::of(inputs.tail);
    arena.candidates.extend(ranked.iter().map(|&(rank, slot)| {
        let slot = slot as usize;
        let is_top = highest == Some(rank);
        let ScoredToken { token, prob, kind, .. } = scored[slot];
        Candidate {
            token,
            slot,
            keys: candidate_keys(token, prob, is_top, &recent, inputs),
            score: 0.0,
            prob,
            source: kind.source(),
        }
    }));
    node.candidates = first..arena.candidates.len();
}

/// The last tokens, the latest first.
struct Recent([u32; NUM_RECENCIES - 1]);

impl Recent {
    fn of(tail: &[u32]) -> Self {
        let mut recent = Self([END; NUM_RECENCIES - 1]);
        for (slot, &token) in recent.0.iter_mut().zip(tail.iter().rev()) {
            *slot = token;
        }
        recent
    }

    /// Returns the distance to the latest use of a token, or 0 if it is not among the last ones.
    fn recency_of(&self, token: u32) -> usize {
        // Compared without branches, because most tokens occur nowhere.
        let mut places = 0_u32;
        for (slot, &other) in self.0.iter().enumerate() {
            places |= u32::from(other == token) << slot;
        }
        if places == 0 { 0 } else { places.trailing_zeros() as usize + 1 }
    }
}

fn candidate_keys(
    token: u32,
    prob: f32,
    is_top: bool,
    recent: &Recent,
    inputs: &MixerInputs<'_>,
) -> AdaptationKeys {
    let unlikeliness = level(-1.5 * log2(prob), NUM_LEVELS);
    let frequency = inputs.frequencies.get(token as usize).copied().unwrap_or(0);
    let frequency = usize::from(frequency).min(NUM_FREQUENCIES - 1);
    let of_group = inputs.uses_of_group.map_or(0, |uses| uses.times(token));
    let times = inputs.uses.times(token).saturating_add(of_group);
    let used = use_level(times) * NUM_FREQUENCIES + frequency;
    let used = (used * (NUM_LEVELS / 4) + unlikeliness / 4) * 2 + usize::from(is_top);
    let last_token = inputs.tail.last().copied().unwrap_or(0);
    AdaptationKeys {
        shapes: [USE.key(used), RECENT.key(recent.recency_of(token) * NUM_LEVELS + unlikeliness)],
        tokens: [
            TOKEN.key(hash::<TOKEN_BITS>(token)),
            PAIR.key(hash_of_two::<PAIR_BITS>(last_token, token)),
        ],
    }
}

fn use_level(times: u8) -> usize {
    match times {
        0 => 0,
        1..=2 => 1,
        3..=6 => 2,
        7..=15 => 3,
        _ => 4,
    }
}

fn correct(weights: TenantWeights<'_>, arena: &mut DraftArena, node: &NodePrediction) {
    let scored = &mut arena.scored[node.scored.clone()];
    let candidates = &mut arena.candidates[node.candidates.clone()];
    let least = candidates.iter().map(|candidate| candidate.prob).fold(1.0, min_finite);
    let mut all = 0.0;
    for expert in &arena.experts[node.experts.clone()] {
        let reliability = weights.get(expert.reliability_key);
        let log_ratios = LogRatios::of(expert);
        let absent = reliability * log_ratios.unproposed;
        all += absent;
        for count in &arena.counts[expert.counts.clone()] {
            let scored = &mut scored[count.slot as usize];
            if scored.prob >= least {
                let reliability = reliability
                    + weights.of_token(TOKEN_RELIABILITY.key_of(expert.matched.kind, scored.token));
                let log_ratios = log_ratios.proposed(count.count, scored.prob);
                scored.log_factor += reliability * log_ratios - absent;
            }
        }
    }
    let all_candidates: f32 = candidates.iter().map(|candidate| candidate.prob).sum();
    let mut sum = (1.0 - all_candidates).max(1e-6);
    for candidate in candidates.iter_mut() {
        let score = weights.sum(&candidate.keys) + all + scored[candidate.slot].log_factor;
        candidate.score = score.clamp(-MAX_SCORE, MAX_SCORE);
        candidate.prob *= exp(CANDIDATE_SHRINKAGE * candidate.score);
        sum += candidate.prob;
    }
    for candidate in candidates {
        candidate.prob /= sum;
    }
}

/// Log-likelihood ratios of an expert against the mixture.
struct LogRatios {
    scale: f32,
    smoothing: f32,
    /// The log-likelihood ratio of tokens that the expert does not propose.
    unproposed: f32,
}

impl LogRatios {
    fn of(expert: &Expert) -> Self {
        let smoothing = 0.3 * expert.counts.len() as f32;
        let scale = 1.0 / (expert.total + smoothing);
        Self { scale, smoothing, unproposed: ln(smoothing * scale).clamp(-MAX_RATIO, MAX_RATIO) }
    }

    /// Returns the log-likelihood ratio of a token that the expert proposes.
    fn proposed(&self, count: f32, prob: f32) -> f32 {
        let ratio = (count / prob + self.smoothing) * self.scale;
        ln(ratio).clamp(-MAX_RATIO, MAX_RATIO)
    }
}

/// Updates the weights: `token` was emitted after the node of this prediction.
pub(crate) fn learn(
    adaptation: &mut TenantAdaptation,
    arena: &DraftArena,
    node: &NodePrediction,
    token: u32,
) {
    let rate = adaptation.count_update();
    learn_experts(adaptation, arena, node, token, rate);
    learn_candidates(adaptation, arena, node, token, rate);
}

fn learn_experts(
    adaptation: &mut TenantAdaptation,
    arena: &DraftArena,
    node: &NodePrediction,
    token: u32,
    rate: f32,
) {
    let scored = &arena.scored[node.scored.clone()];
    let slot = scored.iter().position(|scored| scored.token == token);
    let experts = &arena.experts[node.experts.clone()];
    // The weight of each expert, and its part that supports the token.
    let weigh = |expert: &Expert| {
        let weight = exp(expert.score);
        let mut counts = arena.counts[expert.counts.clone()].iter();
        let count = counts.find(|count| Some(count.slot as usize) == slot);
        let prob = count.map_or(0.0, |count| weight * count.count / expert.total);
        (weight, prob)
    };
    let weighed: Vec<(f32, f32)> = experts.iter().map(weigh).collect();
    let all = 1.0 + weighed.iter().map(|of| of.0).sum::<f32>();
    let total = UNPROPOSED_PROB + weighed.iter().map(|of| of.1).sum::<f32>();
    for (expert, (weight, prob)) in experts.iter().zip(weighed) {
        let gradient = rate * (prob / total - weight / all);
        let [order, agreement] = expert.keys.shapes;
        adaptation.add(order, ORDER_RATE * gradient);
        adaptation.add(agreement, EXPERT_RATE * gradient);
        for key in expert.keys.tokens {
            adaptation.add_to_token(key, EXPERT_RATE * gradient);
        }
    }
}

fn learn_candidates(
    adaptation: &mut TenantAdaptation,
    arena: &DraftArena,
    node: &NodePrediction,
    token: u32,
    rate: f32,
) {
    const MIN_GRADIENT: f32 = 1e-4;
    let scored = &arena.scored[node.scored.clone()];
    let candidates = &arena.candidates[node.candidates.clone()];
    let prob = |candidate: &Candidate| scored[candidate.slot].prob;
    let odds = |candidate: &Candidate| prob(candidate) * exp(candidate.score);
    let odds: Vec<f32> = candidates.iter().map(odds).collect();
    let others = (1.0 - candidates.iter().map(prob).sum::<f32>()).max(1e-6);
    let all = others + odds.iter().sum::<f32>();
    let mut gradients = [0.0; MAX_SCORED];
    let mut sum = 0.0;
    for (candidate, odds) in candidates.iter().zip(odds) {
        let came = if candidate.token == token { 1.0 } else { 0.0 };
        let gradient: f32 = rate * (came - odds / all);
        if gradient.abs() >= MIN_GRADIENT {
            for key in candidate.keys.shapes {
                adaptation.add(key, CANDIDATE_RATE * gradient);
            }
            for key in candidate.keys.tokens {
                adaptation.add_to_token(key, TOKEN_RATE * gradient);
            }
            gradients[candidate.slot] = gradient;
            sum += gradient;
        }
    }
    for expert in &arena.experts[node.experts.clone()] {
        let log_ratios = LogRatios::of(expert);
        let mut change = sum * log_ratios.unproposed;
        for count in &arena.counts[expert.counts.clone()] {
            let gradient = gradients[count.slot as usize];
            if gradient != 0.0 {
                let ScoredToken { token, prob, .. } = scored[count.slot as usize];
                let change_here = gradient * log_ratios.proposed(count.count, prob);
                change += change_here - gradient * log_ratios.unproposed;
                let key = TOKEN_RELIABILITY.key_of(expert.matched.kind, token);
                adaptation.add_to_token(key, TOKEN_RELIABILITY_RATE * change_here);
            }
        }
        adaptation.add(expert.reliability_key, RELIABILITY_RATE * change);
    }
}
