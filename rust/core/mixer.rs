//! What do all sources together make of the next token?

use crate::evidence::{Candidate, END, Evidence, Known};
use crate::numeric::{exp, ln};
use crate::weights::{LAST_TOKENS, ORDERS, TOKENS, Weights};

/// What the mixer knows of the place it predicts for.
pub(crate) struct Place<'a> {
    /// The tokens before it, the last ones.
    pub(crate) tail: &'a [u32],
    /// How often a token came in the request: half for the prompt.
    pub(crate) occurrences: &'a dyn Fn(u32) -> f32,
    /// How frequent a token is in the corpus: half of log2.
    pub(crate) frequency: &'a dyn Fn(u32) -> u32,
    /// What is less likely is no candidate.
    pub(crate) min_share: f32,
}

const MAX_CANDIDATES: usize = 32;

pub struct Rates {
    pub order: f32,
    pub key: f32,
    pub feature: f32,
    pub trust: f32,
}
pub const RATES: Rates = Rates { order: 0.3, key: 0.09, feature: 0.03, trust: 0.006 };

/// Predicts.
pub(crate) fn mix(weights: &Weights, evidence: &mut Evidence, known: &mut Known, place: &Place<'_>) {
    set_keys(evidence, known, place);
    weigh(weights, evidence, known);
    choose(evidence, known, place);
    refine(weights, evidence, known);
}

fn set_keys(evidence: &mut Evidence, known: &Known, place: &Place<'_>) {
    let last = place.tail.last().copied().unwrap_or(0);
    let last_token = (last.wrapping_mul(40503) >> 3) as usize % LAST_TOKENS;
    let mut longest: [Option<u16>; 3] = [None; 3];
    for expert in evidence.experts[known.experts.clone()].iter().rev() {
        if let Some(slot) = longest.get_mut(expert.kind as usize) {
            *slot = Some(expert.top);
        }
    }
    for expert in &mut evidence.experts[known.experts.clone()] {
        let kind = expert.kind as usize;
        let log = (expert.num_matches.max(1.0).to_bits() >> 23) as usize - 127;
        let num_distinct = expert.counts.len();
        let spread = if num_distinct == 1 {
            0
        } else if (num_distinct as f32) < 0.3 * expert.num_matches {
            1
        } else {
            2
        };
        let order = expert.order.min(ORDERS);
        let order_key = ((kind * ORDERS + order - 1) * 8 + (log / 2).min(7)) * 3 + spread;
        let (a, b) = match kind {
            0 => (1, 2),
            1 => (0, 2),
            _ => (0, 1),
        };
        let compare = |other: usize| match longest[other] {
            None => 0,
            Some(top) if top == expert.top => 1,
            Some(_) => 2,
        };
        let own = match longest.get(kind) {
            Some(Some(top)) if *top != expert.top => 2,
            _ => 1,
        };
        let agreement_key =
            (((kind * 5 + expert.rank.min(4)) * 3 + compare(a)) * 3 + compare(b)) * 3 + own;
        let last_key = kind * LAST_TOKENS + last_token;
        expert.keys = [order_key as u32, agreement_key as u32, last_key as u32];
        let size = ((log as f32 + expert.num_matches.max(1.0) / (1u64 << log) as f32 - 1.0) / 1.5) as usize;
        expert.trust_key =
            (((kind * 3 + expert.rank.min(2)) * 9 + expert.order.min(8)) * 4 + size.min(3)) as u32;
    }
}

fn weigh(weights: &Weights, evidence: &mut Evidence, known: &mut Known) {
    let experts = &mut evidence.experts[known.experts.clone()];
    let mut sum = 1.0;
    for expert in experts.iter_mut() {
        let [order, agreement, last] = expert.keys.map(|key| key as usize);
        let score =
            weights.order[order] + weights.agreement[agreement] + weights.last_token[last];
        expert.weight = exp(score.clamp(-20.0, 20.0));
        sum += expert.weight;
    }
    known.none = 1.0 / sum;
    let shares = &mut evidence.shares[known.tokens.clone()];
    for expert in experts {
        expert.weight /= sum;
        let scale = expert.weight / expert.total;
        for count in &evidence.counts[expert.counts.clone()] {
            shares[count.place as usize] += scale * count.count;
        }
    }
}

fn choose(evidence: &mut Evidence, known: &mut Known, place: &Place<'_>) {
    let start = evidence.candidates.len();
    let tokens = &evidence.tokens[known.tokens.clone()];
    let shares = &evidence.shares[known.tokens.clone()];
    for (index, (&token, &share)) in tokens.iter().zip(shares).enumerate() {
        if share >= place.min_share {
            evidence.candidates.push(Candidate {
                token,
                place: index as u16,
                cache_key: 0,
                token_key: 0,
                recent_key: 0,
                prob: share,
            });
        }
    }
    let likelier = |a: &Candidate, b: &Candidate| b.prob.total_cmp(&a.prob).then(a.token.cmp(&b.token));
    if evidence.candidates.len() - start > MAX_CANDIDATES {
        evidence.candidates[start..].select_nth_unstable_by(MAX_CANDIDATES - 1, likelier);
        evidence.candidates.truncate(start + MAX_CANDIDATES);
    }
    let top = evidence.candidates[start..].iter().copied().min_by(likelier).map_or(END, |top| top.token);
    known.candidates = start..evidence.candidates.len();
    let mut named = 0.0;
    for candidate in &mut evidence.candidates[start..] {
        named += candidate.prob;
        let q = ((-1.5 / std::f32::consts::LN_2 * ln(candidate.prob)) as usize).min(15);
        let u = (place.occurrences)(candidate.token);
        let ub = if u == 0.0 { 0 } else if u < 1.5 { 1 } else if u < 3.5 { 2 } else if u < 8.0 { 3 } else { 4 };
        let fb = (place.frequency)(candidate.token).min(12) as usize;
        candidate.cache_key = (((ub * 13 + fb) * 4 + q / 4) * 2 + usize::from(candidate.token == top)) as u32;
        candidate.token_key = (candidate.token.wrapping_mul(7919).wrapping_add(13) as usize % TOKENS) as u32;
        let recent = place.tail.iter().rev().take(8).position(|&t| t == candidate.token).map_or(0, |p| p + 1);
        candidate.recent_key = (recent * 16 + q) as u32;
    }
    known.rest = (1.0 - named).max(1e-6);
}

fn refine(weights: &Weights, evidence: &mut Evidence, known: &mut Known) {
    let mut shift = [0.0_f32; 512];
    let num_tokens = known.tokens.len();
    let shift = &mut shift[..num_tokens.min(512)];
    let shares = &evidence.shares[known.tokens.clone()];
    let floor = evidence.candidates[known.candidates.clone()].iter().map(|c| c.prob).fold(1.0, f32::min);
    let mut all = 0.0;
    for expert in &evidence.experts[known.experts.clone()] {
        if expert.rank >= 5 {
            continue;
        }
        let trust = weights.trust[expert.trust_key as usize];
        let (absent, scale, smoothing) = smoothing(expert.total, expert.counts.len());
        all += trust * absent;
        for count in &evidence.counts[expert.counts.clone()] {
            let share = shares[count.place as usize];
            if share >= floor {
                let x = log_ratio(count.count, share, scale, smoothing);
                shift[count.place as usize] += trust * (x - absent);
            }
        }
    }
    let candidates = &mut evidence.candidates[known.candidates.clone()];
    let mut sum = 0.0;
    for candidate in candidates.iter_mut() {
        let z = weights.cache[candidate.cache_key as usize]
            + weights.token[candidate.token_key as usize]
            + weights.recent[candidate.recent_key as usize]
            + all
            + shift[candidate.place as usize];
        candidate.prob *= exp(z.clamp(-20.0, 20.0));
        sum += candidate.prob;
    }
    sum += known.rest;
    for candidate in candidates {
        candidate.prob /= sum;
    }
}

/// The log ratio for absent tokens, and what [`log_ratio`] takes.
fn smoothing(total: f32, num_distinct: usize) -> (f32, f32, f32) {
    let extra = 0.3 * num_distinct as f32;
    let scale = 1.0 / (total + extra);
    (ln(extra * scale).clamp(-3.0, 3.0), scale, extra)
}

fn log_ratio(count: f32, share: f32, scale: f32, smoothing: f32) -> f32 {
    ln((count / share + smoothing) * scale).clamp(-3.0, 3.0)
}

/// Learns that `token` came.
pub(crate) fn learn(weights: &mut Weights, evidence: &Evidence, known: &Known, token: u32, rates: &Rates) {
    let tokens = &evidence.tokens[known.tokens.clone()];
    let place = tokens.iter().position(|&other| other == token).map(|p| p as u16);
    let experts = &evidence.experts[known.experts.clone()];
    let share_of = |expert: &crate::evidence::Expert| {
        let counts = &evidence.counts[expert.counts.clone()];
        let count = counts.iter().find(|count| Some(count.place) == place);
        count.map_or(0.0, |count| expert.weight * count.count / expert.total)
    };
    let mut total = known.none * (30.0 / 32000.0);
    for expert in experts {
        total += share_of(expert);
    }
    for expert in experts {
        let gradient = share_of(expert) / total - expert.weight;
        let [order, agreement, last] = expert.keys.map(|key| key as usize);
        weights.order[order] += rates.order * gradient;
        weights.agreement[agreement] += rates.key * gradient;
        weights.last_token[last] += rates.key * gradient;
    }
    let candidates = &evidence.candidates[known.candidates.clone()];
    let shares = &evidence.shares[known.tokens.clone()];
    let mut gradients = [0.0_f32; 512];
    let mut sum = 0.0;
    for candidate in candidates {
        let hit = if candidate.token == token { 1.0 } else { 0.0 };
        let gradient = hit - candidate.prob;
        if gradient.abs() < 1e-4 {
            continue;
        }
        weights.cache[candidate.cache_key as usize] += rates.feature * gradient;
        weights.token[candidate.token_key as usize] += rates.feature * gradient;
        weights.recent[candidate.recent_key as usize] += rates.feature * gradient;
        gradients[candidate.place as usize] = gradient;
        sum += gradient;
    }
    for expert in experts {
        if expert.rank >= 5 {
            continue;
        }
        let (absent, scale, smoothing) = smoothing(expert.total, expert.counts.len());
        let mut change = sum * absent;
        for count in &evidence.counts[expert.counts.clone()] {
            let gradient = gradients[count.place as usize];
            if gradient != 0.0 {
                let x = log_ratio(count.count, shares[count.place as usize], scale, smoothing);
                change += gradient * (x - absent);
            }
        }
        weights.trust[expert.trust_key as usize] += rates.trust * change;
    }
}
