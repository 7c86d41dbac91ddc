//! What has each kind of evidence proved to be worth?

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::base::error::{Error, Result};
use crate::base::portable_math::hash;
use crate::fused::evidence::Kind;

/// How many lengths of matches are told apart.
pub(crate) const MAX_ORDER: usize = 8;
/// How many kinds of numbers of matches are told apart.
pub(crate) const NUM_SIZES: usize = 8;
pub(crate) const NUM_SPREADS: usize = 3;
/// How many ranks of experts are told apart where they are compared.
pub(crate) const NUM_RANKS: usize = 5;
/// The bits of a hash by which tables tell tokens apart: for each kind of expert, for each token, and
/// for each pair of tokens.
const KIND_BITS: u32 = 11;
pub(crate) const TOKEN_BITS: u32 = 14;
pub(crate) const PAIR_BITS: u32 = 14;
pub(crate) const NUM_USES: usize = 5;
pub(crate) const NUM_FREQUENCIES: usize = 13;
pub(crate) const NUM_LEVELS: usize = 16;
/// How many of the last tokens are told apart, and none of them.
pub(crate) const NUM_PLACES: usize = 9;
pub(crate) const NUM_TRUST_RANKS: usize = 3;
pub(crate) const NUM_TRUST_SIZES: usize = 4;
/// From -8 to 8 on the scale of log odds.
pub(crate) const NUM_KNOTS: usize = 17;
/// From a quarter to 16 tokens, by doublings.
pub(crate) const NUM_SUMS: usize = 7;

/// Where the weights of one kind of key lie among all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    start: usize,
    len: usize,
    /// Whether it has a part for each kind of expert.
    is_by_kind: bool,
}

impl Table {
    const fn after(before: Self, len: usize) -> Self {
        Self {
            start: before.start + before.len,
            len,
            is_by_kind: false,
        }
    }

    /// A part of this length for each kind of expert.
    const fn of_kinds(before: Self, len: usize) -> Self {
        Self {
            is_by_kind: true,
            ..Self::after(before, Kind::COUNT * len)
        }
    }

    /// Its length in version 9.
    const fn len_before(self) -> usize {
        if self.is_by_kind {
            self.len / Kind::COUNT * KINDS_BEFORE
        } else {
            self.len
        }
    }

    pub(crate) const fn key(self, index: usize) -> usize {
        self.start + index
    }

    /// The key of a token, where each kind of expert has weights for tokens.
    pub(crate) fn key_of(self, kind: Kind, token: u32) -> usize {
        self.key((kind.index() << KIND_BITS) + hash::<KIND_BITS>(token))
    }

    pub(crate) const fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

const START: Table = Table {
    start: 0,
    len: 0,
    is_by_kind: false,
};
/// Of experts, by kind, length of the match, number of matches, and how many tokens followed.
pub(crate) const ORDER: Table = Table::of_kinds(START, MAX_ORDER * NUM_SIZES * NUM_SPREADS);
/// Of experts, by kind, rank, and who else has the same favourite.
pub(crate) const AGREEMENT: Table = Table::of_kinds(ORDER, NUM_RANKS * 3 * 3 * 2);
/// Of candidates, by how often the request used them, how frequent they are, and how likely.
pub(crate) const USE: Table = Table::after(AGREEMENT, NUM_USES * NUM_FREQUENCIES * NUM_LEVELS / 2);
/// Of candidates, by how long ago they came last, and how likely they are.
pub(crate) const RECENT: Table = Table::after(USE, NUM_PLACES * NUM_LEVELS);
/// Of an expert's opinion on a candidate, by kind, rank, length, and number of matches.
pub(crate) const TRUST: Table =
    Table::of_kinds(RECENT, NUM_TRUST_RANKS * (MAX_ORDER + 1) * NUM_TRUST_SIZES);
/// Of how likely a path is, by how much the tree was expected to accept and how likely the path.
pub(crate) const CALIBRATION: Table = Table::after(TRUST, NUM_SUMS * NUM_KNOTS);
/// The tables above tell no tokens apart; those below do.
pub(crate) const NUM_SHAPES: usize = CALIBRATION.start + CALIBRATION.len;
/// Of experts, by kind and the last token.
pub(crate) const LAST_TOKEN: Table = Table::of_kinds(CALIBRATION, 1 << KIND_BITS);
/// Of experts, by kind, their favourite, and how many tokens followed.
pub(crate) const FAVOURITE: Table = Table::of_kinds(LAST_TOKEN, 1 << KIND_BITS);
/// Of candidates, by token.
pub(crate) const TOKEN: Table = Table::after(FAVOURITE, 1 << TOKEN_BITS);
/// Of candidates, by the last token and their own.
pub(crate) const PAIR: Table = Table::after(TOKEN, 1 << PAIR_BITS);
/// Of the opinion of a kind of expert on a candidate that it names, by the token.
pub(crate) const TOKEN_TRUST: Table = Table::of_kinds(PAIR, 1 << KIND_BITS);
const NUM_WEIGHTS: usize = TOKEN_TRUST.start + TOKEN_TRUST.len;

const TABLES: [Table; 11] = [
    ORDER,
    AGREEMENT,
    USE,
    RECENT,
    TRUST,
    CALIBRATION,
    LAST_TOKEN,
    FAVOURITE,
    TOKEN,
    PAIR,
    TOKEN_TRUST,
];

/// What the sources of a fused drafter are held to be worth before a tenant taught it anything: the same
/// numbers for all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights(Box<[f32]>);

impl Default for Weights {
    /// What is reasonable before anything is learned: longer matches count more, and a request's own
    /// text more than a corpus; what skips a token counts least.
    #[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
    fn default() -> Self {
        const OWN: [Kind; 5] = [
            Kind::CONTEXT,
            Kind::MEMORY,
            Kind::EXPECTED,
            Kind::RECYCLED,
            Kind::GROUP,
        ];
        const SKIPS: [Kind; 5] = [
            Kind::CORPUS_SKIP,
            Kind::CONTEXT_SKIP,
            Kind::MEMORY_SKIP,
            Kind::EXPECTED_SKIP,
            Kind::GROUP_SKIP,
        ];
        /// As much as a long match: who suggests knows the model.
        const SUGGESTED: f32 = 5.0;
        let mut weights = vec![0.0; NUM_WEIGHTS];
        let sizes = NUM_SIZES * NUM_SPREADS;
        for (index, weight) in weights[ORDER.range()].iter_mut().enumerate() {
            let (kind, order) = (index / sizes / MAX_ORDER, index / sizes % MAX_ORDER);
            let is_kind = |other: &Kind| other.index() == kind;
            let own = if OWN.iter().any(is_kind) { 1.5 } else { 0.0 };
            *weight = if SKIPS.iter().any(is_kind) {
                -1.0
            } else if is_kind(&Kind::SUGGESTED) {
                SUGGESTED
            } else {
                0.9 * order as f32 + own
            };
        }
        for (knot, weight) in weights[CALIBRATION.range()].iter_mut().enumerate() {
            *weight = (knot % NUM_KNOTS) as f32 - (NUM_KNOTS / 2) as f32;
        }
        Self(weights.into())
    }
}

/// The version of all these tables.
pub(crate) const VERSION: u8 = 10;

/// The first bytes of stored weights.
const MAGIC: [u8; 8] = [b's', b'p', b'e', b'c', b'd', b's', b'w', VERSION];

/// Those of version 9, its number of weights, and its kinds of experts: the first ones of today's.
const MAGIC_BEFORE: [u8; 8] = *b"specdsw\x09";
const NUM_BEFORE: usize = {
    let (mut sum, mut table) = (0, 0);
    while table < TABLES.len() {
        sum += TABLES[table].len_before();
        table += 1;
    }
    sum
};
const KINDS_BEFORE: usize = 12;

impl Weights {
    /// All of them as bytes: a mark, the numbers, the checksum of both.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.0.iter().flat_map(|weight| weight.to_le_bytes()));
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote, or what version 9 did, which knew no groups.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the bytes are not that: cut, changed, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let invalid = |reason| Error::invalid("weights", reason);
        let is_before = bytes.starts_with(&MAGIC_BEFORE);
        let magic = if is_before { MAGIC_BEFORE } else { MAGIC };
        let rest = bytes
            .strip_prefix(&magic)
            .ok_or_else(|| invalid("are not weights of this version: fit them again"))?;
        let (rest, checksum) = rest
            .split_last_chunk::<8>()
            .ok_or_else(|| invalid("are cut: copy or fit them again"))?;
        let checked = &bytes[..bytes.len() - checksum.len()];
        if xxh3_64(checked).to_le_bytes() != *checksum {
            return Err(invalid(
                "do not match their checksum: copy or fit them again",
            ));
        }
        let length = if is_before { NUM_BEFORE } else { NUM_WEIGHTS };
        if rest.len() != length * size_of::<f32>() {
            let reason = "have another length than this version's: fit them again";
            return Err(invalid(reason));
        }
        let (numbers, _) = rest.as_chunks();
        let numbers: Box<[f32]> = numbers
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        if !numbers.iter().all(|weight| weight.is_finite()) {
            return Err(invalid("are not all finite: fit them again"));
        }
        Ok(if is_before {
            Self::with_groups(&numbers)
        } else {
            Self(numbers)
        })
    }

    /// The weights of version 9, and those of groups as before anything is learned.
    fn with_groups(before: &[f32]) -> Self {
        let mut weights = Self::default();
        let mut at = 0;
        for table in TABLES {
            let known = &before[at..at + table.len_before()];
            weights.0[table.start..][..known.len()].copy_from_slice(known);
            at += known.len();
        }
        weights
    }

    pub(crate) fn get(&self, key: usize) -> f32 {
        self.0[key]
    }

    pub(crate) fn add(&mut self, key: usize, change: f32) {
        // A changed snapshot may name any key.
        if let Some(weight) = self.0.get_mut(key) {
            *weight += change;
        }
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_64;

    use super::{MAGIC_BEFORE, ORDER, TABLES, Weights};

    #[test]
    fn weights_of_version_9_are_read_and_groups_are_as_if_nothing_was_learned() {
        let mut numbers = (0_u16..1000).cycle().map(f32::from);
        let mut bytes = MAGIC_BEFORE.to_vec();
        let mut expected = Weights::default();
        for table in TABLES {
            for key in table.start..table.start + table.len_before() {
                expected.0[key] = numbers.next().unwrap();
                bytes.extend(expected.0[key].to_le_bytes());
            }
        }
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        assert_eq!(Weights::from_bytes(&bytes).unwrap(), expected);
        let of_group = ORDER.range().end - 1;
        let bits = |weights: &Weights| weights.get(of_group).to_bits();
        assert_eq!(bits(&expected), bits(&Weights::default()));
        bytes.remove(9);
        assert!(Weights::from_bytes(&bytes).is_err());
    }
}
