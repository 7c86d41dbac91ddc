//! What has each kind of evidence proved to be worth?

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::base::error::{Error, Result};
use crate::base::portable_math::hash;
use crate::fused::anchors::Anchors;
use crate::fused::evidence::Kind;

/// The longest match that has weights of its own.
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
}

impl Table {
    const fn after(before: Self, len: usize) -> Self {
        Self {
            start: before.start + before.len,
            len,
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

const START: Table = Table { start: 0, len: 0 };
/// Of experts, by kind, length of the match, number of matches, and how many tokens followed.
pub(crate) const ORDER: Table =
    Table::after(START, Kind::COUNT * MAX_ORDER * NUM_SIZES * NUM_SPREADS);
/// Of experts, by kind, rank, and who else has the same favourite.
pub(crate) const AGREEMENT: Table = Table::after(ORDER, Kind::COUNT * NUM_RANKS * 3 * 3 * 2);
/// Of experts, by kind and the last token.
pub(crate) const LAST_TOKEN: Table = Table::after(AGREEMENT, Kind::COUNT << KIND_BITS);
/// Of experts, by kind, their favourite, and how many tokens followed.
pub(crate) const FAVOURITE: Table = Table::after(LAST_TOKEN, Kind::COUNT << KIND_BITS);
/// Of candidates, by how often the request used them, how frequent they are, and how likely.
pub(crate) const USE: Table = Table::after(FAVOURITE, NUM_USES * NUM_FREQUENCIES * NUM_LEVELS / 2);
/// Of candidates, by token.
pub(crate) const TOKEN: Table = Table::after(USE, 1 << TOKEN_BITS);
/// Of candidates, by how long ago they came last, and how likely they are.
pub(crate) const RECENT: Table = Table::after(TOKEN, NUM_PLACES * NUM_LEVELS);
/// Of candidates, by the last token and their own.
pub(crate) const PAIR: Table = Table::after(RECENT, 1 << PAIR_BITS);
/// Of an expert's opinion on a candidate, by kind, rank, length, and number of matches.
pub(crate) const TRUST: Table = Table::after(
    PAIR,
    Kind::COUNT * NUM_TRUST_RANKS * (MAX_ORDER + 1) * NUM_TRUST_SIZES,
);
/// Of the opinion of a kind of expert on a candidate that it names, by the token.
pub(crate) const TOKEN_TRUST: Table = Table::after(TRUST, Kind::COUNT << KIND_BITS);
/// Of how likely a path is, by how much the tree was expected to accept and how likely the path.
pub(crate) const CALIBRATION: Table = Table::after(TOKEN_TRUST, NUM_SUMS * NUM_KNOTS);
const NUM_WEIGHTS: usize = CALIBRATION.start + CALIBRATION.len;

/// What a fused drafter has learned of its sources: numbers that every session reads and changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    numbers: Box<[f32]>,
    pub(crate) anchors: Anchors,
}

impl Default for Weights {
    /// What is reasonable before anything is learned: longer matches count more, and a request's own
    /// text more than a corpus; what skips a token counts least.
    #[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
    fn default() -> Self {
        const OWN: [Kind; 4] = [Kind::CONTEXT, Kind::MEMORY, Kind::EXPECTED, Kind::RECYCLED];
        const SKIPS: [Kind; 4] = [
            Kind::CORPUS_SKIP,
            Kind::CONTEXT_SKIP,
            Kind::MEMORY_SKIP,
            Kind::EXPECTED_SKIP,
        ];
        let mut weights = vec![0.0; NUM_WEIGHTS];
        let sizes = NUM_SIZES * NUM_SPREADS;
        for (index, weight) in weights[ORDER.range()].iter_mut().enumerate() {
            let (kind, order) = (index / sizes / MAX_ORDER, index / sizes % MAX_ORDER);
            let is_kind = |other: &Kind| other.index() == kind;
            let own = if OWN.iter().any(is_kind) { 1.5 } else { 0.0 };
            let skips = SKIPS.iter().any(is_kind);
            *weight = if skips {
                -1.0
            } else {
                0.9 * order as f32 + own
            };
        }
        for (knot, weight) in weights[CALIBRATION.range()].iter_mut().enumerate() {
            *weight = (knot % NUM_KNOTS) as f32 - (NUM_KNOTS / 2) as f32;
        }
        Self {
            numbers: weights.into(),
            anchors: Anchors::default(),
        }
    }
}

/// The first bytes of stored weights; the last one is the version.
const MAGIC: [u8; 8] = *b"specdsw\x07";

impl Weights {
    /// All of them as bytes: a mark, the numbers, the checksum of both.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.numbers.iter().flat_map(|weight| weight.to_le_bytes()));
        bytes.extend(self.anchors.to_bytes());
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the bytes are not that: cut, changed, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let invalid = |reason| Error::invalid("weights", reason);
        let rest = bytes
            .strip_prefix(&MAGIC)
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
        let (numbers, anchors) = rest
            .split_at_checked(NUM_WEIGHTS * size_of::<f32>())
            .ok_or_else(|| invalid("have another length than this version's: fit them again"))?;
        let (numbers, _) = numbers.as_chunks();
        let numbers: Box<[f32]> = numbers
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        if numbers.iter().all(|weight| weight.is_finite()) {
            let anchors = Anchors::from_bytes(anchors)?;
            Ok(Self { numbers, anchors })
        } else {
            Err(invalid("are not all finite: fit them again"))
        }
    }

    /// The same for other texts: which tokens repeat what is not known of them.
    #[must_use]
    pub(crate) fn without_anchors(self) -> Self {
        Self {
            anchors: Anchors::default(),
            ..self
        }
    }

    pub(crate) fn get(&self, key: usize) -> f32 {
        self.numbers[key]
    }

    pub(crate) fn add(&mut self, key: usize, change: f32) {
        self.numbers[key] += change;
    }

    pub(crate) fn table(&self, table: Table) -> &[f32] {
        &self.numbers[table.range()]
    }

    pub(crate) fn table_mut(&mut self, table: Table) -> &mut [f32] {
        &mut self.numbers[table.range()]
    }
}
