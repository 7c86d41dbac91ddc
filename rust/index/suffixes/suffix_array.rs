//! Suffix arrays and their packed positions.

use libsais::{LibsaisError, SuffixArrayConstruction};

use std::ops::Range;

use crate::base::error::{Error, Result};
use crate::storage::section::{KEY_LEN, KEY_STRIDE, Section, SectionWriter, position_bits};
use crate::storage::token_array::{TokenWidth, Tokens};

/// Returns the positions of a shard's suffixes in lexicographic order; a suffix sorts after its prefixes. O(n).
pub(crate) fn sort(tokens: &Tokens) -> Result<Vec<i32>> {
    let mut positions = zeros(tokens.len())?;
    let sorted = match tokens.width {
        TokenWidth::Two => {
            let text = tokens.section.numbers::<u16>();
            let construction = SuffixArrayConstruction::for_text(text);
            construction.in_borrowed_buffer(&mut positions).single_threaded().run().map(drop)
        }
        TokenWidth::Three => {
            let mut text: Vec<i32> = zeros(tokens.len())?;
            let mut places = text.iter_mut();
            tokens.visit(0, |token| {
                places.next().map(|place| *place = token.cast_signed()).is_some()
            });
            let construction = SuffixArrayConstruction::for_text_mut(&mut text);
            construction.in_borrowed_buffer(&mut positions).single_threaded().run().map(drop)
        }
    };
    match sorted {
        Ok(()) => Ok(positions),
        Err(LibsaisError::OutOfMemory) => Err(out_of_memory(positions.len() * size_of::<i32>())),
        Err(error) => Err(tokens.section.corrupt(format!("it cannot be sorted: {error}"))),
    }
}

/// Returns the private memory of [`sort`], in bytes.
pub(crate) fn memory(num_tokens: u64, width: TokenWidth) -> u64 {
    num_tokens.saturating_mul(bytes_per_token(width)).saturating_add(BUCKETS)
}

/// Returns the maximum number of tokens that [`sort`] can sort in `max_memory` bytes.
pub(crate) fn most_tokens(max_memory: u64, width: TokenWidth) -> u64 {
    max_memory.saturating_sub(BUCKETS) / bytes_per_token(width)
}

/// Fixed memory of libsais, in bytes.
const BUCKETS: u64 = 2 << 20;

fn bytes_per_token(width: TokenWidth) -> u64 {
    match width {
        TokenWidth::Two => 4,   // a position
        TokenWidth::Three => 8, // a position, and a token as libsais takes it
    }
}

fn zeros<T: Default + Clone>(count: usize) -> Result<Vec<T>> {
    let mut zeros = Vec::new();
    zeros
        .try_reserve_exact(count)
        .map_err(|_| out_of_memory(count.saturating_mul(size_of::<T>())))?;
    zeros.resize(count, T::default());
    Ok(zeros)
}

fn out_of_memory(num_bytes: usize) -> Error {
    Error::OutOfMemory(num_bytes as u64)
}

/// Returns the number of suffixes that begin with a token below `t`, for each `t` in `0..=vocab_size + 1`. O(n).
pub(crate) fn firsts(tokens: &Tokens, vocab_size: u32) -> Result<Vec<u32>> {
    let mut firsts = vec![0; vocab_size as usize + 2];
    let mut is_known = true;
    tokens.visit(0, |token| {
        match firsts.get_mut(token as usize + 1) {
            Some(count) => *count += 1,
            None => is_known = false,
        }
        is_known
    });
    if !is_known {
        let reason = "a token is outside the vocabulary";
        return Err(tokens.section.corrupt(reason));
    }
    let mut sum = 0;
    for count in &mut firsts {
        sum += *count;
        *count = sum;
    }
    Ok(firsts)
}

/// Packs numbers of `bits` bits without gaps.
pub(crate) struct Packer {
    writer: SectionWriter,
    bits: u16,
    /// An incomplete word, of which the lower `num_filled` bits are set.
    word: u64,
    num_filled: u16,
    bytes: Vec<u8>,
}

impl Packer {
    pub(crate) fn new(writer: SectionWriter, bits: u16) -> Self {
        Self { writer, bits, word: 0, num_filled: 0, bytes: Vec::new() }
    }

    pub(crate) fn add(&mut self, numbers: &[u32]) -> Result<()> {
        self.bytes.clear();
        for &number in numbers {
            let number = u64::from(number);
            self.word |= number << self.num_filled;
            self.num_filled += self.bits;
            if let Some(num_left) = self.num_filled.checked_sub(64) {
                self.bytes.extend_from_slice(&self.word.to_le_bytes());
                self.word = number >> (self.bits - num_left);
                self.num_filled = num_left;
            }
        }
        self.writer.write(&self.bytes)
    }

    pub(crate) fn finish(mut self) -> Result<Section> {
        let num_bytes = usize::from(self.num_filled.div_ceil(8));
        self.writer.write(&self.word.to_le_bytes()[..num_bytes])?;
        self.writer.finish()
    }
}

pub(crate) fn keys(suffixes: &Suffixes, tokens: &Tokens) -> Vec<u8> {
    let mut keys = Vec::new();
    let sampled = (0..suffixes.len()).step_by(KEY_STRIDE);
    for position in sampled.filter_map(|rank| suffixes.get(rank)) {
        let mut key = [0; KEY_LEN];
        let mut length = 0;
        tokens.visit(position, |token| {
            key[length] = token;
            length += 1;
            length < KEY_LEN
        });
        tokens.width.encode(&key, &mut keys);
    }
    keys
}

#[derive(Debug)]
pub(crate) struct Suffixes {
    pub(crate) section: Section,
    count: usize,
    bits: usize,
    mask: u64,
}

impl Suffixes {
    pub(crate) fn new(section: Section, count: usize) -> Self {
        let bits = position_bits(count as u64);
        Self { section, count, bits: bits.into(), mask: (1 << bits) - 1 }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn not_in_order(&self) -> Error {
        self.section.corrupt("it is not the order of the suffixes")
    }

    pub(crate) fn will_need(&self, ranks: Range<usize>) {
        let byte = |rank: usize| rank.saturating_mul(self.bits) / 8;
        let end = byte(ranks.end).saturating_add(1);
        self.section.will_need(byte(ranks.start)..end);
    }

    /// Returns the position of the suffix of this rank. It may be past the end if the file is damaged.
    pub(crate) fn get(&self, rank: usize) -> Option<usize> {
        if rank >= self.count {
            return None;
        }
        let bit = rank.checked_mul(self.bits)?;
        let word = self.section.padded_payload().get(bit / 8..)?.first_chunk()?;
        let position = (u64::from_le_bytes(*word) >> (bit % 8)) & self.mask;
        usize::try_from(position).ok()
    }
}

/// Checks that the suffixes are sorted. O(n) time, 4 bytes a token.
///
/// Two suffixes compare as their first tokens, or if these are equal, as the suffixes one position later, whose
/// ranks are known (Burkhardt and Kärkkäinen, 2003). Strictly ascending suffixes also imply distinct positions.
pub(crate) fn verify(suffixes: &Suffixes, tokens: &Tokens) -> Result<()> {
    let mut ranks: Vec<u32> = zeros(tokens.len() + 1)?;
    for (rank, position) in (1..).zip((0..suffixes.count).map(|rank| suffixes.get(rank))) {
        match position {
            Some(position) if position < tokens.len() => ranks[position] = rank,
            _ => return Err(suffixes.not_in_order()),
        }
    }
    let order = |position: usize| Some((tokens.get(position)?, ranks.get(position + 1)?));
    let orders = (0..suffixes.count).map(|rank| suffixes.get(rank).and_then(order));
    if orders.is_sorted_by(|before, after| before < after) {
        Ok(())
    } else {
        Err(suffixes.not_in_order())
    }
}
