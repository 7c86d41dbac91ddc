//! Adaptation of the weights to one tenant.

use std::hint::select_unpredictable;

use crate::portable_math::{hash, saturating_u32};
use crate::weights::associations::TokenAssociations;
use crate::weights::initial::{NUM_SHAPES, VERSION, Weights};

/// A tenant's offsets from the initial weights, and its token associations. The size is constant. Drafts
/// of other tenants do not depend on it.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantAdaptation {
    /// The offsets of weights that no token selects.
    shapes: Box<[f32; NUM_SHAPES]>,
    /// A two-way set-associative table of offsets that a token selects.
    tokens: Box<[TokenWeightPair; NUM_SETS]>,
    pub(crate) associations: TokenAssociations,
    /// The number of tokens that updated the weights.
    num_updates: u32,
}

/// The offset of a weight that a token selects. The table keeps the weights with the largest offsets.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TokenWeight {
    key: u32,
    change: f32,
}

const SET_BITS: u32 = 13;
const NUM_SETS: usize = 1 << SET_BITS;

type TokenWeightPair = [TokenWeight; 2];

const FREE: TokenWeight = TokenWeight { key: u32::MAX, change: 0.0 };

/// The additional weight of the first update, relative to a late one.
const EARLY_BOOST: f32 = 2.0;
/// The number of updates after which the additional weight has halved.
const NUM_EARLY_UPDATES: f32 = 300.0;

/// The fraction of a new offset that is subtracted from the weaker of the two entries it competes with.
const EVICTION_RATE: f32 = 0.3;

impl Default for TenantAdaptation {
    fn default() -> Self {
        Self {
            shapes: vec![0.0; NUM_SHAPES].try_into().expect("as long as its type says"),
            tokens: vec![[FREE; 2]; NUM_SETS].try_into().expect("as long as its type says"),
            associations: TokenAssociations::default(),
            num_updates: 0,
        }
    }
}

impl TenantAdaptation {
    /// Returns to the initial weights. The associations stay, which are of texts.
    pub(crate) fn reset_weights(&mut self) {
        let associations = std::mem::take(&mut self.associations);
        *self = Self { associations, ..Self::default() };
    }

    pub(crate) fn add(&mut self, key: usize, change: f32) {
        self.shapes[key] += change;
    }

    /// Counts an update, and returns its weight relative to one of a tenant with many updates.
    pub(crate) fn count_update(&mut self) -> f32 {
        let number = self.num_updates as f32;
        self.num_updates = self.num_updates.saturating_add(1);
        1.0 + EARLY_BOOST * NUM_EARLY_UPDATES / (NUM_EARLY_UPDATES + number)
    }

    /// Number of tokens that changed the weights.
    pub(crate) fn num_updates(&self) -> u32 {
        self.num_updates
    }

    pub(crate) fn add_to_token(&mut self, key: usize, change: f32) {
        let key = saturating_u32(key);
        let set = &mut self.tokens[hash::<SET_BITS>(key)];
        if let Some(known) = set.iter_mut().find(|known| known.key == key) {
            known.change += change;
            return;
        }
        let [first, second] = set;
        let least = if first.change.abs() <= second.change.abs() { first } else { second };
        let displaced = EVICTION_RATE * change.abs();
        if least.change.abs() <= displaced {
            *least = TokenWeight { key, change };
        } else {
            least.change -= displaced.copysign(least.change);
        }
    }

    fn of_token(&self, key: usize) -> f32 {
        let key = saturating_u32(key);
        let [first, second] = &self.tokens[hash::<SET_BITS>(key) % NUM_SETS];
        // A branch would be unpredictable, and only integers are selected without one.
        let of = |known: &TokenWeight| {
            f32::from_bits(select_unpredictable(known.key == key, known.change.to_bits(), 0))
        };
        of(first) + of(second)
    }

    /// The size in memory, which is equal for all tenants.
    pub(crate) const NUM_BYTES: usize = size_of::<Self>()
        + 4 * NUM_SHAPES
        + size_of::<TokenWeightPair>() * NUM_SETS
        + TokenAssociations::NUM_BYTES;

    /// Appends the serialized adaptation.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.push(VERSION);
        bytes.extend(self.num_updates.to_le_bytes());
        bytes.extend(self.shapes.iter().flat_map(|change| change.to_le_bytes()));
        let known = self.tokens.as_flattened().iter();
        let known: Vec<_> = known.filter(|&&known| known != FREE).collect();
        bytes.extend(saturating_u32(known.len()).to_le_bytes());
        for TokenWeight { key, change } in known {
            bytes.extend(key.to_le_bytes());
            bytes.extend(change.to_le_bytes());
        }
        self.associations.put(bytes);
    }

    /// Parses the output of [`put`](Self::put), or returns `None` for other data or another version.
    pub(crate) fn take(mut bytes: &[u8]) -> Option<Self> {
        let bytes = &mut bytes;
        let mut adaptation = Self::default();
        if *bytes.split_off_first()? != VERSION {
            return None;
        }
        adaptation.num_updates = u32::from_le_bytes(four(bytes)?);
        for change in adaptation.shapes.iter_mut() {
            *change = number(bytes)?;
        }
        for _ in 0..u32::from_le_bytes(four(bytes)?) {
            let key = u32::from_le_bytes(four(bytes)?);
            let change = number(bytes)?;
            let set = &mut adaptation.tokens[hash::<SET_BITS>(key)];
            *set.iter_mut().find(|place| **place == FREE)? = TokenWeight { key, change };
        }
        adaptation.associations = TokenAssociations::take(bytes)?;
        Some(adaptation)
    }
}

fn four(bytes: &mut &[u8]) -> Option<[u8; 4]> {
    let four;
    (four, *bytes) = bytes.split_first_chunk()?;
    Some(*four)
}

fn number(bytes: &mut &[u8]) -> Option<f32> {
    Some(f32::from_le_bytes(four(bytes)?)).filter(|number| number.is_finite())
}

/// The keys of the weights of an expert or a candidate.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AdaptationKeys {
    /// The keys that do not depend on a token.
    pub(crate) shapes: [usize; 2],
    /// The keys that depend on a token.
    pub(crate) tokens: [usize; 2],
}

/// The initial weights and the adaptation of one tenant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TenantWeights<'a> {
    pub(crate) start: &'a Weights,
    pub(crate) adaptation: &'a TenantAdaptation,
}

impl TenantWeights<'_> {
    /// Returns a weight that no token selects.
    #[inline]
    pub(crate) fn get(&self, key: usize) -> f32 {
        // A key within the shorter of the two arrays is within both.
        let change = self.adaptation.shapes[key];
        self.start.get(key) + change
    }

    /// Returns the offset of a weight that a token selects.
    #[inline]
    pub(crate) fn of_token(&self, key: usize) -> f32 {
        self.adaptation.of_token(key)
    }

    pub(crate) fn sum(&self, keys: &AdaptationKeys) -> f32 {
        let ([a, b], [c, d]) = (keys.shapes, keys.tokens);
        self.get(a) + self.get(b) + self.of_token(c) + self.of_token(d)
    }
}

#[cfg(test)]
mod tests {
    use super::TenantAdaptation;

    #[test]
    fn non_finite_offsets_are_rejected() {
        let stored = |change: f32| {
            let mut adaptation = TenantAdaptation::default();
            adaptation.add(0, change);
            let mut bytes = Vec::new();
            adaptation.put(&mut bytes);
            bytes
        };
        assert!(TenantAdaptation::take(&stored(1.0)).is_some());
        for change in [f32::NAN, f32::INFINITY] {
            assert!(TenantAdaptation::take(&stored(change)).is_none());
        }
    }
}
