//! The mixture of all experts of a node, and how its weights learn.
//!
//! In two stages. The first mixes the experts' shares by weights that depend on what each matched:
//!
//! ```text
//! p(t) = sum over e of w(e) c(e, t) / N(e)      w = softmax of the sums of e's weights, and of 0 for none
//! ```
//!
//! The second corrects the likeliest tokens by what is known of them besides, and by what each
//! expert's opinion has been worth as a factor:
//!
//! ```text
//! P(t) ~ p(t) exp(use(t) + token(t) + recent(t) + pair(t) + sum over e of trust(e, t) x(e, t))
//! x(e, t) = ln of (c(e, t) + s p(t)) / ((N(e) + s) p(t)), within -3..=3       s = 0.3 D(e), e's tokens
//! ```
//!
//! Trust in an expert is in the expert and, of tokens that it names, in the token as well. Every weight
//! moves by the gradient of the log likelihood of the token that came.
//!
//! Each weight has learned from few tokens, so their sums are too far from 0. A prediction therefore
//! multiplies a sum by less than 1; learning takes it whole.

use std::cmp::Reverse;
use std::hint::select_unpredictable;

use crate::fused::evidence::{
    Candidate, END, Evidence, Expert, MAX_NAMED, NodePrediction, TokenStat,
};
use crate::memory::token_counts::TokenCounts;
use crate::portable_math::{
    exp, greater, hash, hash_of_two, ln, log2, min_finite, rank_of, saturating_u32,
};
use crate::weights::initial::{
    AGREEMENT, FAVOURITE, LAST_TOKEN, MAX_ORDER, NUM_FREQUENCIES, NUM_LEVELS, NUM_PLACES,
    NUM_RANKS, NUM_SIZES, NUM_SPREADS, NUM_TRUST_RANKS, NUM_TRUST_SIZES, ORDER, PAIR, PAIR_BITS,
    RECENT, TOKEN, TOKEN_BITS, TOKEN_TRUST, TRUST, USE,
};
use crate::weights::kind::ExpertKind;
use crate::weights::learned::Keys;
use crate::weights::learned::{Learned, TenantWeights};

/// The learning rates of an expert's weights: of those for what it matched, and of all others.
const ORDER_RATE: f32 = 0.3;
const EXPERT_RATE: f32 = 0.12;
/// The learning rates of a candidate's weights: by its shape and by its token; then of the trust in experts, and of
/// that by token.
const CANDIDATE_RATE: f32 = 0.03;
const TOKEN_RATE: f32 = 0.06;
const TRUST_RATE: f32 = 0.006;
const TOKEN_TRUST_RATE: f32 = 0.009;

/// Which share of an expert's score counts in a prediction; below it, of a candidate's.
const EXPERT_SHRINKAGE: f32 = 0.85;
const CANDIDATE_SHRINKAGE: f32 = 0.8;

/// The probability that a token is taken to have which no expert names.
const UNNAMED: f32 = 1e-3;
const MAX_SCORE: f32 = 20.0;
/// The largest log ratio that an expert's opinion counts.
const MAX_RATIO: f32 = 3.0;

/// What is known of a request besides its experts.
pub(crate) struct Request<'a> {
    /// The last tokens before the one that is predicted.
    pub(crate) tail: &'a [u32],
    pub(crate) uses: &'a TokenCounts,
    /// The same of its group.
    pub(crate) uses_of_group: Option<&'a TokenCounts>,
    /// For each token of the corpus, half the logarithm of how often it occurs.
    pub(crate) frequencies: &'a [u8],
    /// A token with a smaller share is no candidate.
    pub(crate) min_share: f32,
    /// The most candidates, at least 1.
    pub(crate) max_candidates: usize,
}

/// Predicts what comes after the node whose experts were added last.
pub(crate) fn predict(
    weights: TenantWeights<'_>,
    evidence: &mut Evidence,
    request: &Request<'_>,
) -> NodePrediction {
    let mut node = evidence.node();
    set_expert_keys(evidence, &node, request);
    weigh(weights, evidence, &mut node);
    choose(evidence, &mut node, request);
    correct(weights, evidence, &node);
    node
}

fn set_expert_keys(evidence: &mut Evidence, node: &NodePrediction, request: &Request<'_>) {
    let last = request.tail.last().copied().unwrap_or(0);
    let named = &evidence.named[node.named.clone()];
    let experts = &mut evidence.experts[node.experts.clone()];
    let mut favourites = [None; ExpertKind::COUNT];
    for expert in experts.iter().rev() {
        favourites[expert.matched.kind.index()] = Some(expert.top);
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
        let [first, second] = others.map(|other| match favourites[other.index()] {
            None => 0,
            Some(top) if top == expert.top => 1,
            Some(_) => 2,
        });
        let is_alone = usize::from(favourites[kind] != Some(expert.top));
        let rank = kind * NUM_RANKS + matched.rank.min(NUM_RANKS - 1);
        let agreement = ((rank * 3 + first) * 3 + second) * 2 + is_alone;
        let spread = spread(expert);
        let favourite = named[expert.top].token.wrapping_mul(4) + saturating_u32(spread);
        expert.keys = Keys {
            shapes: [ORDER.key(order_index * NUM_SPREADS + spread), AGREEMENT.key(agreement)],
            tokens: [
                LAST_TOKEN.key_of(matched.kind, last),
                FAVOURITE.key_of(matched.kind, favourite),
            ],
        };
        let rank = kind * NUM_TRUST_RANKS + matched.rank.min(NUM_TRUST_RANKS - 1);
        let trust_size = level(size / 1.5, NUM_TRUST_SIZES);
        expert.trust_key =
            TRUST.key((rank * (MAX_ORDER + 1) + order) * NUM_TRUST_SIZES + trust_size);
    }
}

/// The level of a match's length: lengths of one level share weights, and long matches share more.
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

/// The level of variety: 0 where one token followed, 1 where few did for the number of matches, else 2.
fn spread(expert: &Expert) -> usize {
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

fn weigh(weights: TenantWeights<'_>, evidence: &mut Evidence, node: &mut NodePrediction) {
    let experts = &mut evidence.experts[node.experts.clone()];
    let named = &mut evidence.named[node.named.clone()];
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
        for count in &evidence.counts[expert.counts.clone()] {
            let named = &mut named[count.slot as usize];
            let share = scale * count.count;
            named.share += share;
            let is_largest = share > named.largest;
            named.largest = greater(share, named.largest);
            named.kind = select_unpredictable(is_largest, expert.matched.kind, named.kind);
        }
    }
}

fn choose(evidence: &mut Evidence, node: &mut NodePrediction, request: &Request<'_>) {
    let first = evidence.candidates.len();
    let named = &evidence.named[node.named.clone()];
    let ranked = &mut evidence.ranked;
    ranked.clear();
    let likely = named.iter().zip(0..);
    let likely = likely.filter(|(named, _)| named.share >= request.min_share);
    ranked.extend(likely.map(|(named, slot)| (rank_of(named.share, named.token), slot)));
    let most = request.max_candidates;
    if ranked.len() > most {
        ranked.select_nth_unstable_by_key(most - 1, |&(rank, _)| Reverse(rank));
        ranked.truncate(most);
    }
    let highest = ranked.iter().map(|&(rank, _)| rank).max();
    let recent = Recent::of(request.tail);
    evidence.candidates.extend(ranked.iter().map(|&(rank, slot)| {
        let slot = slot as usize;
        let is_favourite = highest == Some(rank);
        let TokenStat { token, share, kind, .. } = named[slot];
        Candidate {
            token,
            slot,
            keys: candidate_keys(token, share, is_favourite, &recent, request),
            score: 0.0,
            prob: share,
            source: kind.source(),
        }
    }));
    node.candidates = first..evidence.candidates.len();
}

/// The last tokens, the latest first.
struct Recent([u32; NUM_PLACES - 1]);

impl Recent {
    fn of(tail: &[u32]) -> Self {
        let mut recent = Self([END; NUM_PLACES - 1]);
        for (slot, &token) in recent.0.iter_mut().zip(tail.iter().rev()) {
            *slot = token;
        }
        recent
    }

    /// How long ago a token came last, from 1 on; 0 where it is none of them.
    fn place_of(&self, token: u32) -> usize {
        // All at once: most tokens are at no place.
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
    is_favourite: bool,
    recent: &Recent,
    request: &Request<'_>,
) -> Keys {
    let unlikeliness = level(-1.5 * log2(prob), NUM_LEVELS);
    let frequency = request.frequencies.get(token as usize).copied().unwrap_or(0);
    let frequency = usize::from(frequency).min(NUM_FREQUENCIES - 1);
    let of_group = request.uses_of_group.map_or(0, |uses| uses.times(token));
    let times = request.uses.times(token).saturating_add(of_group);
    let used = use_level(times) * NUM_FREQUENCIES + frequency;
    let used = (used * (NUM_LEVELS / 4) + unlikeliness / 4) * 2 + usize::from(is_favourite);
    let last_token = request.tail.last().copied().unwrap_or(0);
    Keys {
        shapes: [USE.key(used), RECENT.key(recent.place_of(token) * NUM_LEVELS + unlikeliness)],
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

fn correct(weights: TenantWeights<'_>, evidence: &mut Evidence, node: &NodePrediction) {
    let named = &mut evidence.named[node.named.clone()];
    let candidates = &mut evidence.candidates[node.candidates.clone()];
    let least = candidates.iter().map(|candidate| candidate.prob).fold(1.0, min_finite);
    let mut all = 0.0;
    for expert in &evidence.experts[node.experts.clone()] {
        let trust = weights.get(expert.trust_key);
        let opinion = Opinion::of(expert);
        let absent = trust * opinion.absent;
        all += absent;
        for count in &evidence.counts[expert.counts.clone()] {
            let named = &mut named[count.slot as usize];
            if named.share >= least {
                let trust =
                    trust + weights.of_token(TOKEN_TRUST.key_of(expert.matched.kind, named.token));
                let opinion = opinion.on(count.count, named.share);
                named.log_factor += trust * opinion - absent;
            }
        }
    }
    let all_candidates: f32 = candidates.iter().map(|candidate| candidate.prob).sum();
    let mut sum = (1.0 - all_candidates).max(1e-6);
    for candidate in candidates.iter_mut() {
        let score = weights.sum(&candidate.keys) + all + named[candidate.slot].log_factor;
        candidate.score = score.clamp(-MAX_SCORE, MAX_SCORE);
        candidate.prob *= exp(CANDIDATE_SHRINKAGE * candidate.score);
        sum += candidate.prob;
    }
    for candidate in candidates {
        candidate.prob /= sum;
    }
}

/// How much likelier than the mixture an expert holds a token to be.
struct Opinion {
    scale: f32,
    smoothing: f32,
    /// The log ratio for tokens that the expert does not name.
    absent: f32,
}

impl Opinion {
    fn of(expert: &Expert) -> Self {
        let smoothing = 0.3 * expert.counts.len() as f32;
        let scale = 1.0 / (expert.total + smoothing);
        Self { scale, smoothing, absent: ln(smoothing * scale).clamp(-MAX_RATIO, MAX_RATIO) }
    }

    /// The log ratio for a token that the expert names.
    fn on(&self, count: f32, share: f32) -> f32 {
        let ratio = (count / share + self.smoothing) * self.scale;
        ln(ratio).clamp(-MAX_RATIO, MAX_RATIO)
    }
}

/// Learns that `token` came after the node of this prediction.
pub(crate) fn learn(learned: &mut Learned, evidence: &Evidence, node: &NodePrediction, token: u32) {
    let lesson = learned.next_lesson();
    learn_experts(learned, evidence, node, token, lesson);
    learn_candidates(learned, evidence, node, token, lesson);
}

fn learn_experts(
    learned: &mut Learned,
    evidence: &Evidence,
    node: &NodePrediction,
    token: u32,
    lesson: f32,
) {
    let named = &evidence.named[node.named.clone()];
    let slot = named.iter().position(|named| named.token == token);
    let experts = &evidence.experts[node.experts.clone()];
    // For each expert its weight, and the part of it that is for the token.
    let weigh = |expert: &Expert| {
        let weight = exp(expert.score);
        let mut counts = evidence.counts[expert.counts.clone()].iter();
        let count = counts.find(|count| Some(count.slot as usize) == slot);
        let share = count.map_or(0.0, |count| weight * count.count / expert.total);
        (weight, share)
    };
    let weighed: Vec<(f32, f32)> = experts.iter().map(weigh).collect();
    let all = 1.0 + weighed.iter().map(|of| of.0).sum::<f32>();
    let total = UNNAMED + weighed.iter().map(|of| of.1).sum::<f32>();
    for (expert, (weight, share)) in experts.iter().zip(weighed) {
        let gradient = lesson * (share / total - weight / all);
        let [order, agreement] = expert.keys.shapes;
        learned.add(order, ORDER_RATE * gradient);
        learned.add(agreement, EXPERT_RATE * gradient);
        for key in expert.keys.tokens {
            learned.add_to_token(key, EXPERT_RATE * gradient);
        }
    }
}

fn learn_candidates(
    learned: &mut Learned,
    evidence: &Evidence,
    node: &NodePrediction,
    token: u32,
    lesson: f32,
) {
    const MIN_GRADIENT: f32 = 1e-4;
    let named = &evidence.named[node.named.clone()];
    let candidates = &evidence.candidates[node.candidates.clone()];
    let share = |candidate: &Candidate| named[candidate.slot].share;
    let odds = |candidate: &Candidate| share(candidate) * exp(candidate.score);
    let odds: Vec<f32> = candidates.iter().map(odds).collect();
    let others = (1.0 - candidates.iter().map(share).sum::<f32>()).max(1e-6);
    let all = others + odds.iter().sum::<f32>();
    let mut gradients = [0.0; MAX_NAMED];
    let mut sum = 0.0;
    for (candidate, odds) in candidates.iter().zip(odds) {
        let came = if candidate.token == token { 1.0 } else { 0.0 };
        let gradient: f32 = lesson * (came - odds / all);
        if gradient.abs() >= MIN_GRADIENT {
            for key in candidate.keys.shapes {
                learned.add(key, CANDIDATE_RATE * gradient);
            }
            for key in candidate.keys.tokens {
                learned.add_to_token(key, TOKEN_RATE * gradient);
            }
            gradients[candidate.slot] = gradient;
            sum += gradient;
        }
    }
    for expert in &evidence.experts[node.experts.clone()] {
        let opinion = Opinion::of(expert);
        let mut change = sum * opinion.absent;
        for count in &evidence.counts[expert.counts.clone()] {
            let gradient = gradients[count.slot as usize];
            if gradient != 0.0 {
                let TokenStat { token, share, .. } = named[count.slot as usize];
                let change_here = gradient * opinion.on(count.count, share);
                change += change_here - gradient * opinion.absent;
                let key = TOKEN_TRUST.key_of(expert.matched.kind, token);
                learned.add_to_token(key, TOKEN_TRUST_RATE * change_here);
            }
        }
        learned.add(expert.trust_key, TRUST_RATE * change);
    }
}
